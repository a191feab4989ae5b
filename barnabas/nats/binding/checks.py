"""Checks of one topic's nats.* configs: contradictions, and configs that have no effect. Each error says what to do instead.

Configs without an effect are refused when they are set. Stored ones (of an earlier release) are harmless: the topic is
bound, its broker logs them, and other configs can still be changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.nats.binding.binding import CORE, IN_STREAMS, JETSTREAM, KV, Binding
from barnabas.nats.binding.keys import SUBJECT_KEY, StartSpec
from barnabas.nats.binding.subjects import REST, covers, covers_together
from barnabas.nats.binding.templates import is_internal_subject

AT_LEAST_ONCE: Final = "at-least-once"
_DEFAULT: Final = Binding("")


def check_binding(binding: Binding) -> None:
    """ConfigError when the configs of one topic contradict each other."""
    _check_mode(binding)
    _check_internal(binding)
    _check_tokens(binding)
    _check_dead_letters(binding)
    _check_own_cycle(binding)


def _check_mode(binding: Binding) -> None:
    mode = binding.mode
    if mode != JETSTREAM:
        _refuse_set(
            f"has an effect only with nats.mode=jetstream (it is {mode}): set that, too, or remove it",
            **{
                "nats.stream": binding.stream,
                "nats.durable": binding.durable,
                "nats.start": binding.start != StartSpec("all"),
                "nats.max.deliver": binding.max_deliver != _DEFAULT.max_deliver,
            },
        )
    if mode != KV:
        _refuse_set(
            f"has an effect only with nats.mode=kv (it is {mode}): set that, too, or remove it",
            **{"nats.bucket": binding.bucket, "nats.direction": binding.direction != _DEFAULT.direction},
        )
    if mode != CORE:
        why = {
            JETSTREAM: "a JetStream consumer shares its messages out itself, by partition",
            KV: "a bucket's values go to one topic, in their order",
        }[mode]
        _refuse_set(
            f"can't be used with nats.mode={mode}: {why}. Remove it",
            **{"nats.queue.group": binding.queue_group},
        )
        _refuse_set(
            f"can't be used with nats.mode={mode}: what is read is one topic's. Remove it",
            **{"nats.topic.template": binding.topic_template},
        )
    elif binding.queue_group:
        _refuse_set(
            "can't be used with nats.queue.group: every broker has to see every message, to know which topics there are. "
            "Remove one of them",
            **{"nats.topic.template": binding.topic_template},
        )
    if mode == KV:
        if not binding.bucket:
            raise ConfigError("nats.mode=kv needs a bucket: set nats.bucket=NAME, too, or delete nats.mode")
        _refuse_set(
            "can't be used with nats.mode=kv: the bucket says which subjects and keys there are. Remove it",
            **{
                "nats.subjects": binding.subjects,
                "nats.exclude": binding.excludes,
                "nats.key": binding.key != SUBJECT_KEY,
                "nats.topic.template": binding.topic_template,
                "nats.publish.subject": binding.publish_subject,
            },
        )


def _refuse_set(reason: str, **values: object) -> None:
    for name, value in values.items():
        if value:
            raise ConfigError(f"{name} {reason}")


def _check_internal(binding: Binding) -> None:
    if binding.mode == KV:
        return
    allowed = IN_STREAMS if binding.mode == JETSTREAM else ()
    for pattern in binding.subjects:
        if any(covers(each, pattern) for each in allowed):
            continue
        if is_internal_subject(pattern.encode()):
            advice = "They are not bound"
            if pattern.startswith("$KV."):
                advice = "For a key-value bucket use nats.mode=kv with nats.bucket, or nats.mode=jetstream"
            raise ConfigError.invalid(
                "nats.subjects",
                list(binding.subjects),
                f'"{pattern}" is internal to NATS: subjects that begin with $ are the server\'s, those with _INBOX '
                f"carry answers to requests. {advice}",
            )


def _check_tokens(binding: Binding) -> None:
    """ConfigError for token numbers that no subject of a pattern has: they never give a key, a partition or a topic."""
    for name, numbers in (
        ("nats.key", binding.key.tokens),
        ("nats.partitioner", (binding.partitioner.token,) if binding.partitioner.token else ()),
        (
            "nats.topic.template",
            (binding.topic_template.token_max,) if binding.topic_template is not None else (),
        ),
    ):
        for pattern in binding.patterns if numbers else ():
            tokens = pattern.split(".")
            if tokens[-1] != REST and max(numbers) > len(tokens):
                raise ConfigError(
                    f'{name} asks for token {max(numbers)}, but subjects of "{pattern}" in nats.subjects have '
                    f"{len(tokens)}. Tokens are counted from 1"
                )


def _check_dead_letters(binding: Binding) -> None:
    name = binding.dead_letter_topic
    if not name:
        return
    problem = invalid_topic_name(name)
    if problem is None and name.startswith("__"):
        problem = 'Names that begin with "__" are those of Kafka\'s internal topics'
    if problem is None and name == binding.topic and binding.topic:
        problem = "A topic can't be its own dead-letter topic. Name another one"
    if problem:
        raise ConfigError.invalid("nats.dead.letter.topic", name, problem)


def _check_own_cycle(binding: Binding) -> None:
    published = None if binding.mode == KV else binding.published_pattern
    if published is None or binding.publish_subject is None:
        return
    if "" in published.split("."):
        raise ConfigError.invalid(
            "nats.publish.subject",
            binding.publish_subject.text,
            f"With this topic's name it is \"{published}\", which has an empty token: subjects can't have one",
        )
    if binding.takes_of(published):
        own = f"nats.subjects={','.join(binding.subjects)} takes"
        advice = "Publish to other subjects, or name them in nats.exclude"
        if binding.takes_whole_stream:
            own = f"nats.stream={binding.stream} may take, without nats.subjects"
            advice = "Name the stream's subjects in nats.subjects, or the published ones in nats.exclude"
        raise ConfigError(
            f'nats.publish.subject={binding.publish_subject.text} publishes to "{published}", which this topic\'s own '
            f"{own}: each record would come back for ever. {advice}"
        )


def check_effects(binding: Binding, before: Binding | None = None) -> None:
    """ConfigError when one of the topic's configs has no effect beside the others, or leaves no message to receive, unless
    that was so `before`."""
    known = set() if before is None else set(_without_effect(before))
    for reason in _without_effect(binding):
        if reason not in known:
            raise ConfigError(reason)


def _without_effect(binding: Binding) -> Iterable[str]:
    """Errors about configs without effect, each with what to do."""
    for name, is_set, has_effect, needs in _conditions(binding):
        if is_set and not has_effect:
            yield f"{name} has an effect only with {needs}: set that, too, or remove {name}"
    if binding.mode == JETSTREAM and not binding.ingests:
        yield (
            "nats.mode=jetstream needs a stream: set nats.subjects, or nats.stream=NAME for all that it holds, or delete "
            "nats.mode"
        )
    if binding.ingests and all(covers_together(binding.excludes, each) for each in binding.patterns):
        what = "nats.subjects" if binding.subjects else "the stream"
        yield (
            f"nats.exclude={','.join(binding.excludes)} leaves nothing of {what}, so no message would be taken: exclude "
            "less, or set nats.paused=true to take nothing for a while"
        )


def _conditions(binding: Binding) -> Iterable[tuple[str, object, bool, str]]:
    """Config, whether it is set, whether it has an effect, and what it needs."""
    mode = binding.mode
    yield "nats.exclude", binding.excludes, binding.ingests, "nats.subjects or nats.stream"
    if mode != CORE:
        core = f"nats.mode=core (it is {mode})"
        yield "nats.acks=reply", binding.acks == "reply", False, core
        yield "nats.dedup.window.ms", binding.dedup_window_ms != _DEFAULT.dedup_window_ms, False, core
    yield (
        f"nats.delivery={binding.delivery}",
        binding.delivery != _DEFAULT.delivery,
        mode == JETSTREAM,
        f"nats.mode=jetstream (it is {mode})",
    )
    is_acknowledged = binding.delivery == AT_LEAST_ONCE
    at_least_once = f"nats.delivery={AT_LEAST_ONCE} (it is {binding.delivery})"
    yield "nats.durable", binding.durable, is_acknowledged, at_least_once
    yield "nats.max.deliver", binding.max_deliver != _DEFAULT.max_deliver, is_acknowledged, at_least_once
    yield (
        "nats.topic.max",
        binding.topic_max != _DEFAULT.topic_max,
        binding.topic_template is not None,
        "nats.topic.template",
    )
    has_subject = binding.publish_subject is not None
    yield "nats.publish.jetstream", binding.publish_jetstream, has_subject, "nats.publish.subject"
    out = "nats.direction=both or out" if mode == KV else "nats.publish.subject"
    yield "nats.publish.group", binding.publish_group, binding.publishes, out
