"""What an `error` rule does to one request: answer it, or have the rest of it served, or the whole and change the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from barnabas.testing.faults.call import FETCH
from barnabas.testing.faults.failures import OVERWRITTEN, depth_of, failed, merged, overwritten, without

if TYPE_CHECKING:
    from barnabas.testing.faults.call import Call
    from barnabas.testing.faults.rules import Rule
    from barnabas.testing.faults.shapes import Topic


def answer_with_error(call: Call, rule: Rule) -> tuple[Any, bytes | None]:
    """(answer, None), or (None, frame): the broker shall serve that, and `call.change` makes of its answer what the rule
    says. NoSuchError when the answer has no place for the error in this version."""
    error, message, api_key = rule.error_code, rule.error_message, call.api_key
    assert error is not None
    request = _complete(call)
    depth = depth_of(
        api_key,
        call.version,
        request,
        error,
        single=rule.conditions.is_single or rule.error_depth == -1,
        whole=rule.error_depth == 0,
    )

    def matches(topic: Topic | None, partition: int | None) -> bool:
        return rule.conditions.is_about(topic, partition, call)

    if rule.is_error_served or (depth and api_key in OVERWRITTEN):
        failures = failed(api_key, request, error, depth, matches, message) if depth else None

        def change(answer: Any) -> Any:
            answer = overwritten(api_key, answer, error, depth, matches, message)
            return answer if failures is None else merged(api_key, answer, failures)

        call.change = change
        return None, call.data if api_key != FETCH else _at_once(call)
    failures = failed(api_key, request, error, depth, matches, message)
    rest = without(request, matches) if depth and rule.conditions.is_single else None
    if rest is None:
        return failures, None
    call.change = lambda answer: merged(api_key, answer, failures)
    return None, call.with_request(rest)


def _at_once(call: Call) -> bytes:
    """A fetch that waits for nothing: its answer has something to say."""
    return call.with_request(msgspec.structs.replace(call.request, max_wait_ms=0, min_bytes=0))


def _complete(call: Call) -> Any:
    """The request with all that it is about: a fetch names what has changed since the last one of its session."""
    if call.api_key != FETCH:
        return call.request
    from barnabas.wire.messages.fetch import (
        FetchPartition,
        FetchTopic,
    )  # late: large, and most rules are of others

    topics: dict[Topic, FetchTopic] = {}
    for topic, partition in call.targets():
        assert topic is not None
        entry = topics.get(topic)
        if entry is None:
            name, topic_id = (topic, bytes(16)) if isinstance(topic, str) else ("", topic)
            entry = topics[topic] = FetchTopic(topic=name, topic_id=topic_id, partitions=[])
        if partition is not None:
            entry.partitions.append(FetchPartition(partition=partition))
    return msgspec.structs.replace(call.request, topics=list(topics.values()))
