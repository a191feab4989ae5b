"""Reads a topic's binding to NATS from its nats.* configs.

A topic is bound when nats.subjects is not empty or nats.stream names a stream (messages become records), when nats.mode=kv
with nats.bucket (a bucket and a compacted topic get the same contents), or when nats.publish.subject is set (records become
messages). Controllers validate configs with `read_configs` and brokers read them with it, so both agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from barnabas.controller.config.validators import ConfigError
from barnabas.nats.binding.binding import Binding
from barnabas.nats.binding.checks import check_binding
from barnabas.nats.binding.keys import parse_key, parse_partitioner, parse_start
from barnabas.nats.binding.subjects import pattern_problem
from barnabas.nats.binding.templates import parse_publish_template, parse_topic_template
from barnabas.nats.configs import PREFIX, TOPIC_CONFIGS, ConfigValues

TEMPLATE_OF: Final = "nats.template.of"  # the bound topic whose template created this one
SUBJECTS_MAX: Final = 500

_PLAIN_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_STREAM_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")
_GROUP_NAME: Final = re.compile(r"[^\s\x00-\x20\x7f]{1,255}")


def read_binding(topic: str, configs: Mapping[str, str]) -> Binding | None:
    """The binding of a topic's configs; None when they bind nothing. ConfigError says what to do instead, also for nats.*
    configs of a topic that is not bound."""
    return only_bound(read_configs(topic, configs))


def only_bound(binding: Binding | None) -> Binding | None:
    """The binding, or None when it takes and publishes nothing."""
    return binding if binding is not None and (binding.ingests or binding.publishes) else None


def read_configs(topic: str, configs: Mapping[str, str]) -> Binding | None:
    """As `read_binding`, but None only without any nats.* config."""
    given = {name: text for name, text in configs.items() if name.startswith(PREFIX)}
    if not given:
        return None
    values = ConfigValues(TOPIC_CONFIGS, given)
    binding = Binding(
        topic=topic,
        subjects=_patterns(values, "nats.subjects"),
        excludes=_patterns(values, "nats.exclude"),
        mode=values.text("nats.mode"),
        connection=_matching(values, "nats.connection", _PLAIN_NAME, "letters, digits, _ and -"),
        paused=values.boolean("nats.paused"),
        key=parse_key(values.text("nats.key")),
        partitioner=parse_partitioner(values.text("nats.partitioner")),
        acks=values.text("nats.acks"),
        dedup_window_ms=values.integer("nats.dedup.window.ms"),
        queue_group=_matching(values, "nats.queue.group", _GROUP_NAME, "characters other than blanks"),
        topic_template=parse_topic_template(text) if (text := values.text("nats.topic.template")) else None,
        topic_max=values.integer("nats.topic.max"),
        dead_letter_topic=values.text("nats.dead.letter.topic"),
        buffer_bytes=values.integer("nats.buffer.bytes"),
        stream=_matching(values, "nats.stream", _STREAM_NAME, "characters other than blanks . * > / \\"),
        delivery=values.text("nats.delivery"),
        durable=_matching(values, "nats.durable", _STREAM_NAME, "characters other than blanks . * > / \\"),
        start=parse_start(values.text("nats.start")),
        max_deliver=values.integer("nats.max.deliver"),
        bucket=_matching(values, "nats.bucket", _PLAIN_NAME, "letters, digits, _ and -"),
        direction=values.text("nats.direction"),
        publish_subject=(
            parse_publish_template(text) if (text := values.text("nats.publish.subject")) else None
        ),
        publish_jetstream=values.boolean("nats.publish.jetstream"),
        publish_group=values.text("nats.publish.group"),
    )
    check_binding(binding)
    return binding


def _matching(values: ConfigValues, name: str, allowed: re.Pattern[str], described: str) -> str:
    text = values.text(name)
    if text and not allowed.fullmatch(text):
        raise ConfigError.invalid(name, text, f"It is made of {described}")
    return text


def _patterns(values: ConfigValues, name: str) -> tuple[str, ...]:
    found = values.texts(name)
    if found and found[0][:1] == "[" and found[-1][-1:] == "]":
        raise ConfigError.invalid(
            name, found, "Give the list without brackets (only kafka-configs.sh takes them)"
        )
    if len(found) > SUBJECTS_MAX:
        raise ConfigError(f"Configuration '{name}' names {len(found)} subjects, more than {SUBJECTS_MAX}")
    for pattern in found:
        problem = pattern_problem(pattern)
        if problem:
            raise ConfigError.invalid(name, found, f'"{pattern}" is no subject of NATS: {problem}')
    return tuple(dict.fromkeys(found))
