"""Decisions about a topic's nats.* configs that depend on other topics and on the deciding node.

reader.py and checks.py check one topic's configs by themselves. Configs that do not change are not checked again, so other
configs of a bound topic can be changed whatever has happened to its servers since.

Topics and subjects must form no cycle: what a topic publishes would come back to it for ever, directly or through other
topics. A cycle that the image shows is refused. Messages carry a hop header, which stops other cycles, but a message that
is stopped there is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.image import INTERNAL_TOPICS, MetadataImage
from barnabas.nats.binding.binding import KV, Binding
from barnabas.nats.binding.checks import check_effects
from barnabas.nats.binding.reader import TEMPLATE_OF, only_bound, read_binding, read_configs
from barnabas.nats.configs import topics_with_configs

_INTAKE: Final = ">"  # before a topic's name: the messages received for it, which may go to other topics


def bindings_of(image: MetadataImage) -> dict[str, Binding]:
    """All bindings by topic, but for those that this version can't read."""
    found: dict[str, Binding] = {}
    for topic, configs in topics_with_configs(image).items():
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
            for topic, configs in topics_with_configs(image).items()
            if configs.get(TEMPLATE_OF)
        }
        self._value = value
        # Another broker may know a connection that this one does not, unless there is no other.
        self._is_alone = len(image.brokers) <= 1

    def check(self, topic: str, current: Mapping[str, str], configs: Mapping[str, str], policy: str) -> None:
        """ConfigError when a topic with the configs `current` can't have `configs`; `policy` is its effective
        cleanup.policy."""
        self._check_template(topic, configs.get(TEMPLATE_OF, ""))
        read = read_configs(topic, configs)
        if read is not None:
            before = _read_as_far(topic, current)
            if _is_pausing(before, read):
                return  # an invalid binding can be paused, too
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
        """The topic will have these configs, which have been checked."""
        self._of_template.pop(topic, None)
        if configs.get(TEMPLATE_OF):
            self._of_template[topic] = configs[TEMPLATE_OF]
        self._bindings.pop(topic, None)
        binding = read_binding(topic, configs)
        if binding is not None:
            self._bindings[topic] = binding

    def _check_template(self, topic: str, bound: str) -> None:
        """ConfigError when the template of `bound` can't have this topic. A topic of the template stays one."""
        if not bound or self._of_template.get(topic) == bound:
            return
        owner = self._bindings.get(bound)
        if owner is None or owner.topic_template is None:
            raise ConfigError.invalid(TEMPLATE_OF, bound, "It names a topic with a nats.topic.template")
        if topic == bound:
            raise ConfigError.invalid(TEMPLATE_OF, bound, "A topic can't be of its own template")
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
    """ConfigError when deleting nats.subjects, which users do to end a binding, would bind a whole stream."""
    if before is None or not (before.subjects and before.stream) or not binding.takes_whole_stream:
        return
    raise ConfigError(
        f"Without nats.subjects the topic would take all that nats.stream={binding.stream} holds. To unbind it delete "
        "nats.stream and nats.mode, too; for the whole stream set nats.subjects to >"
    )


def check_cycles(topic: str, binding: Binding, others: Mapping[str, Binding]) -> None:
    """ConfigError, naming the cycle, when `binding` of `topic` would close one with the bindings of other topics."""
    bindings = {**others, topic: binding}
    path = _path_back(topic, bindings) or _path_back(_INTAKE + topic, bindings)
    if path is None:
        return
    steps = "; ".join(
        f'topic {each} publishes to "{bindings[each].published_pattern}"' for each in path if each in bindings
    )
    advice = "Publish to other subjects, or name them in nats.exclude of one of these topics"
    if any(bindings[each].mode == KV for each in path if each in bindings):
        advice = "Set nats.direction=in on all but one of the topics that share a bucket"
    raise ConfigError(
        f"This closes a cycle in which each record comes back for ever: {steps}, which topic {topic} gets again. {advice}"
    )


def _path_back(start: str, bindings: Mapping[str, Binding]) -> list[str] | None:
    """The topics and intakes on a path from `start` back to it; None when there is none."""
    came_from: dict[str, str] = {}
    todo = [start]
    while todo:
        current = todo.pop(0)
        for following in _reached(current, bindings):
            if following == start:
                path = [current]
                while path[0] != start:
                    path.insert(0, came_from[path[0]])
                return path
            if following not in came_from:
                came_from[following] = current
                todo.append(following)
    return None


def _reached(place: str, bindings: Mapping[str, Binding]) -> Iterator[str]:
    """The intakes that receive a topic's records as messages, or the bound topics that an intake's messages may go to."""
    if place.startswith(_INTAKE):
        target = bindings[place.removeprefix(_INTAKE)]
        template = target.topic_template
        if template is None:
            yield target.topic
        else:  # all topics whose names it may give
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
        if name != place or source.mode != KV:  # the topic of a bucket recognizes its own changes
            yield _INTAKE + name
