"""What a broker tells of its bindings on the subject $BARNABAS.BINDINGS, to publishers that wait for acknowledgements.

A message on a subject that several topics are bound to is acknowledged by the leader of one partition of each, so a
publisher has to know how many answers to expect. Every broker answers for the partitions it leads:

    request: a subject, or nothing for all bindings
    answer:  {"broker": 1, "cluster": "...", "bindings": [{"topic": "orders", "subjects": ["orders.>"],
              "exclude": [], "mode": "core", "partitions": [0, 2], "acks": "header", "expected_acks": 1,
              "state": "running"}]}

`expected_acks` is how many answers a message that asks for one gets from this topic, from all brokers together: 1, or 0
when the binding is paused or answers none. Whoever asks adds those of different topics and not of different brokers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.nats.errors import NatsError
from barnabas.controller.nats.bound import CORE, Binding
from barnabas.controller.nats.subjects import compile_filter, is_valid_subject

if TYPE_CHECKING:
    from barnabas.broker.nats.client import NatsClient

SUBJECT: Final = "$BARNABAS.BINDINGS"
SUBJECT_BYTES_MAX: Final = 4096


class Bound(NamedTuple):
    """A binding on this broker: the partitions of the topic that it leads, and its state in a word or a few."""

    binding: Binding
    partitions: Sequence[int]
    state: str


def describe(bindings: Iterable[Bound], broker_id: int, cluster_id: str, subject: bytes = b"") -> bytes:
    """The answer to a request with this payload. What is no subject to publish to matches nothing."""
    entries = [
        _entry(bound)
        for bound in bindings
        if bound.binding.ingests and (not subject or _takes(bound, subject))
    ]
    entries.sort(key=lambda entry: str(entry["topic"]))
    answer = {"broker": broker_id, "cluster": cluster_id, "bindings": entries}
    return json.dumps(answer, separators=(",", ":")).encode()


def _takes(bound: Bound, subject: bytes) -> bool:
    if len(subject) > SUBJECT_BYTES_MAX or not is_valid_subject(subject):
        return False
    return compile_filter(bound.binding.patterns, bound.binding.unwanted)(subject)


def _entry(bound: Bound) -> dict[str, object]:
    binding = bound.binding
    answers = binding.mode == CORE and binding.acks != "off" and not binding.paused
    return {
        "topic": binding.topic,
        "subjects": list(binding.patterns),
        "exclude": list(binding.excludes),
        "mode": binding.mode,
        "partitions": sorted(bound.partitions),
        "acks": binding.acks if binding.mode == CORE else "off",
        "expected_acks": int(answers),
        "state": bound.state,
    }


class BindingsService:
    """Answers the requests that come in on one connection. `tell(payload)` makes the answer."""

    def __init__(self, client: NatsClient, tell: Callable[[bytes], bytes]) -> None:
        self._client = client
        self._tell = tell
        client.subscribe(SUBJECT, self._asked)

    def _asked(self, _subject: bytes, reply: bytes, _header_block: bytes, payload: bytes) -> None:
        if reply:
            with suppress(NatsError, ValueError):  # who asked asks again
                self._client.publish(reply, self._tell(payload))
