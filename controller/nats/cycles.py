"""Circles of topics and subjects: what a topic publishes comes back to it, directly or through others, for ever.

Messages carry a hop header, too, which stops what this broker alone can't see; a circle that it can see is refused when
it would be closed, because a message that is stopped on its way is a message lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.nats.bound import KV, Binding

_INTAKE: Final = ">"  # before a topic's name: what comes in for it, which may go to other topics


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
    """The topics and intakes from `start` on whose records reach it again; None when none do."""
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
        else:  # whichever may have such a name
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
