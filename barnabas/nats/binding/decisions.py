"""Decisions about a topic's nats.* configs that depend on other topics and on the deciding node.

What one topic's configs mean by themselves is in reader.py and checks.py. Configs that stay as they are are not checked
again, so a topic that was bound once can still be changed in every other way, whatever became of the servers meanwhile.

Topics and subjects must form no circle: what a topic publishes would come back to it, directly or through others, for ever.
Messages carry a hop header, which stops circles that this broker alone can't see. A circle that it can see is refused
when it would be closed, because a message that is stopped on its way is a message lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.image import INTERNAL_TOPICS, TOPIC_RESOURCE, MetadataImage
from barnabas.nats.binding.binding import KV, Binding
from barnabas.nats.binding.checks import check_effects
from barnabas.nats.binding.reader import TEMPLATE_OF, only_bound, read_binding, read_configs
from barnabas.nats.configs import PREFIX

_INTAKE: Final = ">"  # before a topic's name: messages that come in for it, which may go to other topics


def bindings_of(image: MetadataImage) -> dict[str, Binding]:
    """Every topic's binding, by topic, without those that this version can't read."""
    found: dict[str, Binding] = {}
    for (kind, topic), configs in image.configs.items():
        if kind != TOPIC_RESOURCE or not any(name.startswith(PREFIX) for name in configs):
            continue
        try:
            binding = read_binding(topic, configs)
        except ConfigError:
            continue
        if binding is not None:
            found[topic] = binding
    return found


class BindingDecisions:
    """The decisions of one request, which depend on each other. `value` returns the deciding node's own properties as text."""

    def __init__(self, image: MetadataImage, value: Callable[[str], str | None]) -> None:
        self._bindings = bindings_of(image)
        self._of_template = {
            topic: configs[TEMPLATE_OF]
            for (kind, topic), configs in image.configs.items()
            if kind == TOPIC_RESOURCE and configs.get(TEMPLATE_OF)
        }
        self._value = value
        # Another broker may know a connection that this one does not, unless there is no other.
        self._is_alone = len(image.brokers) <= 1

    def check(self, topic: str, current: Mapping[str, str], configs: Mapping[str, str], policy: str) -> None:
        """ConfigError when a topic that has the configs `current` can't have these; `policy` is its cleanup.policy, set or
        not."""
        self._check_template(topic, configs.get(TEMPLATE_OF, ""))
        read = read_configs(topic, configs)
        if read is not None:
            before = _read_as_far(topic, current)
            if _is_pausing(before, read):
                return  # a binding can be paused, whatever else is wrong
            _check_widening(before, read)
            check_effects(read, before)
        binding = only_bound(read)
        if binding is None:
            return
        if topic in INTERNAL_TOPICS:
            raise ConfigError(f"{topic} is internal to Kafka and can't be bound to NATS. Use another topic")
        if binding.mode == KV and "compact" not in policy:
            raise ConfigError(
                "nats.mode=kv keeps the last value of each key, and so must the topic: set cleanup.policy=compact, too"
            )
        self._check_connection(binding)
        others = {name: other for name, other in self._bindings.items() if name != topic}
        check_cycles(topic, binding, others)

    def accept(self, topic: str, configs: Mapping[str, str]) -> None:
        """The topic will have these configs."""
        self._of_template.pop(topic, None)
        if configs.get(TEMPLATE_OF):
            self._of_template[topic] = configs[TEMPLATE_OF]
        self._bindings.pop(topic, None)
        binding = read_binding(topic, configs)
        if binding is not None:
            self._bindings[topic] = binding

    def _check_template(self, topic: str, bound: str) -> None:
        """ConfigError when a template may have no further topic. A topic that is one of its topics already stays one."""
        if not bound or self._of_template.get(topic) == bound:
            return
        owner = self._bindings.get(bound)
        if owner is None or owner.topic_template is None:
            raise ConfigError.invalid(TEMPLATE_OF, bound, "It names a topic with a nats.topic.template")
        if topic == bound:
            raise ConfigError.invalid(TEMPLATE_OF, bound, "A topic is not of its own template")
        count = sum(each == bound for each in self._of_template.values())
        if count >= owner.topic_max:
            raise ConfigError(
                f"The template of topic {bound} has {count} topics, and nats.topic.max={owner.topic_max} allows no more: "
                f"raise it on {bound}"
            )

    def _check_connection(self, binding: Binding) -> None:
        if binding.paused or "broker" not in (self._value("process.roles") or "broker"):
            return  # a node that is only a controller has no connections
        name = binding.connection
        prefix = f"nats.connection.{name}" if name else "nats"
        if self._value(f"{prefix}.servers") or (name and not self._is_alone):
            return
        which = f"nats.connection={name}" if name else "A topic bound to NATS"
        raise ConfigError(
            f"{which} needs a server to connect to, and this broker was started without {prefix}.servers: start it "
            f"with --set {prefix}.servers=nats://HOST:4222, or with that line in its server.properties"
        )


def _read_as_far(topic: str, configs: Mapping[str, str]) -> Binding | None:
    """As `read_configs`, but None for stored configs that this version can't read."""
    try:
        return read_configs(topic, configs)
    except ConfigError:
        return None


def _is_pausing(before: Binding | None, binding: Binding) -> bool:
    """Whether nothing changes but nats.paused."""
    return (
        before is not None and not before.paused and binding == msgspec.structs.replace(before, paused=True)
    )


def _check_widening(before: Binding | None, binding: Binding) -> None:
    """ConfigError when deleting nats.subjects, which is meant to end a binding, would make it take a whole stream."""
    if before is None or not (before.subjects and before.stream) or not binding.takes_whole_stream:
        return
    raise ConfigError(
        f"Without nats.subjects the topic would take all that nats.stream={binding.stream} holds. To unbind it delete "
        "nats.stream and nats.mode, too; for the whole stream set nats.subjects to >"
    )


def check_cycles(topic: str, binding: Binding, others: Mapping[str, Binding]) -> None:
    """ConfigError, naming the circle, when `binding` of `topic` would close one with the bindings of other topics."""
    bindings = {**others, topic: binding}
    way = _way_back(topic, bindings) or _way_back(_INTAKE + topic, bindings)
    if way is None:
        return
    steps = "; ".join(
        f'topic {each} publishes to "{bindings[each].published_pattern}"' for each in way if each in bindings
    )
    advice = "Publish to other subjects, or name them in nats.exclude of one of these topics"
    if any(bindings[each].mode == KV for each in way if each in bindings):
        advice = "Set nats.direction=in on all but one of the topics that share a bucket"
    raise ConfigError(
        f"This closes a circle in which each record comes back for ever: {steps}, which topic {topic} gets again. {advice}"
    )


def _way_back(start: str, bindings: Mapping[str, Binding]) -> list[str] | None:
    """The topics and intakes on a way from `start` back to it; None when there is no such way."""
    came_from: dict[str, str] = {}
    todo = [start]
    while todo:
        current = todo.pop(0)
        for following in _reached(current, bindings):
            if following == start:
                way = [current]
                while way[0] != start:
                    way.insert(0, came_from[way[0]])
                return way
            if following not in came_from:
                came_from[following] = current
                todo.append(following)
    return None


def _reached(place: str, bindings: Mapping[str, Binding]) -> Iterator[str]:
    """The intakes that get a topic's records as messages, or the bound topics that an intake's messages may go to, by
    name."""
    if place.startswith(_INTAKE):
        target = bindings[place.removeprefix(_INTAKE)]
        template = target.topic_template
        if template is None:
            yield target.topic
        else:  # all that may have such a name
            yield from (each for each in sorted(bindings) if template.may_give(each))
        if target.dead_letter_topic in bindings:
            yield target.dead_letter_topic
        return
    source = bindings[place]
    published = source.published_pattern
    if published is None:
        return
    for name in sorted(bindings):
        target = bindings[name]
        if target.connection != source.connection or not target.takes_of(published):
            continue
        if name != place or source.mode != KV:  # a bucket's topic knows its own changes again
            yield _INTAKE + name
