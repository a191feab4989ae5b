"""Configs of a binding that would do nothing. Each refusal says what to do instead.

They are refused when they are set. Stored ones (of an earlier release) do no harm: the topic is bound all the same, its
broker tells of them, and what else is to be changed may be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.nats.bound import CORE, JETSTREAM, KV, Binding
from barnabas.controller.nats.subjects import covers_together

AT_LEAST_ONCE: Final = "at-least-once"
_DEFAULT: Final = Binding("")


def check_effects(binding: Binding, before: Binding | None = None) -> None:
    """ConfigError when one of the topic's configs has no effect beside the others, or leaves nothing to be done, and it was
    not so `before`."""
    known = set() if before is None else set(_useless(before))
    for reason in _useless(binding):
        if reason not in known:
            raise ConfigError(reason)


def _useless(binding: Binding) -> Iterable[str]:
    """What is wrong, and what to do."""
    for name, is_set, is_of_use, needs in _conditions(binding):
        if is_set and not is_of_use:
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
    """Config, whether it is set, whether it does anything, what it needs."""
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
