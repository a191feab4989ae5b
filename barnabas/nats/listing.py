"""The listing of bindings: a request to $BARNABAS.BINDINGS is answered on each of a broker's connections.

It is for users, with `nats req '$BARNABAS.BINDINGS' ''`, and for publishers that wait for acknowledgements: a message on a
subject that several topics are bound to is acknowledged by the leader of one partition of each, so a publisher has to know
how many answers to expect. Every broker answers for the topics of which it leads partitions:

    request: a subject, for the bindings of this connection that take it; or nothing, for all of them, and on the
             connection without a name (nats.servers) for those of all connections; other accounts see only their own
    answer:  {"broker": 1, "cluster": "...", "bindings": [{"topic": "orders", "connection": "", "subjects": ["orders.>"],
              "exclude": [], "mode": "core", "partitions": [0, 2], "acks": "header", "expected_acks": 1,
              "state": "running", "ways": [{"mode": "core", "state": "running", "messages_in": 17, ..., "gaps":
              [{"begin_ms": 1700000000000, "end_ms": 1700000001000, "cause": "..."}]}]}]}

`expected_acks` is how many answers a message that asks for one gets from this topic, from all brokers together: 1, or 0
when the binding is paused or answers none. A client sums those of different topics, not of different brokers. `state` says
why when it is not running, and `warning`, where there is one, which messages will be refused. A binding with invalid configs
has a topic, partitions and a state only. Counters are since the binding was started here; the end of a gap is 0 while it lasts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from barnabas.nats.binding.binding import CORE, Binding
from barnabas.nats.binding.subjects import compile_filter, is_valid_subject
from barnabas.nats.client.errors import NatsError

if TYPE_CHECKING:
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.overview import Overview, Way

SUBJECT: Final = "$BARNABAS.BINDINGS"
SUBJECT_BYTES_MAX: Final = 4096
GAPS_SHOWN_MAX: Final = 10  # the newest
ANSWER_SHARE: Final = 0.9  # of the server's max_payload
FILTERS_KEPT_MAX: Final = 2048
_COUNTERS: Final = (
    *(
        "messages_in",
        "messages_out",
        "appended",
        "duplicates",
        "refused",
        "dead_letters",
        "too_large",
        "looped",
    ),
    *("redelivered", "lag", "reconnects", "lost_estimate", "gap_count"),
)
# Requests may come from any client, at any rate: answers take no more than this share of the broker's time.
TIME_SHARE: Final = 0.1
TIME_AT_ONCE_S: Final = 0.2


def describe(
    overviews: Iterable[Overview],
    broker_id: int,
    cluster_id: str,
    subject: bytes = b"",
    *,
    connection: str = "",
    bytes_max: int = 1 << 20,
) -> bytes:
    """The answer to a request with the payload `subject` on `connection`. An invalid subject matches nothing. An answer larger
    than `bytes_max` is reduced to states, then to as many of them as fit ("truncated": true)."""
    found = sorted(
        (
            each
            for each in overviews
            if (_takes(each.binding, connection, subject) if subject else _shows(each.binding, connection))
        ),
        key=lambda each: each.topic,
    )
    head: dict[str, object] = {"broker": broker_id, "cluster": cluster_id}
    answer = _json({**head, "bindings": [entry(each, is_short=False) for each in found]})
    if len(answer) <= bytes_max:
        return answer
    entries: list[dict[str, object]] = []
    size = len(_json(head)) + 50
    for each in found:
        state = entry(each, is_short=True)
        size += len(_json(state)) + 1
        if size > bytes_max:
            return _json({**head, "truncated": True, "bindings": entries})
        entries.append(state)
    return _json({**head, "bindings": entries})


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _shows(binding: Binding | None, connection: str) -> bool:
    return not connection or (binding is not None and binding.connection == connection)


def _takes(binding: Binding | None, connection: str, subject: bytes) -> bool:
    if binding is None or not binding.ingests or binding.connection != connection:
        return False
    if len(subject) > SUBJECT_BYTES_MAX or not is_valid_subject(subject):
        return False
    return _filter(binding.patterns, binding.unwanted)(subject)


_filter = lru_cache(maxsize=FILTERS_KEPT_MAX)(compile_filter)


def entry(shown: Overview, *, is_short: bool = False) -> dict[str, object]:
    """One binding of the answer."""
    binding = shown.binding
    if binding is None:
        return {"topic": shown.topic, "partitions": sorted(shown.partitions), "state": shown.state}
    answers = binding.ingests and binding.mode == CORE and binding.acks != "off" and not binding.paused
    found: dict[str, object] = {
        "topic": shown.topic,
        "connection": binding.connection,
        "subjects": list(binding.patterns),
        "exclude": list(binding.excludes),
        "mode": binding.mode,
        "partitions": sorted(shown.partitions),
        "acks": binding.acks if binding.ingests and binding.mode == CORE else "off",
        "expected_acks": int(answers),
        "state": shown.state,
    }
    if binding.publishes:
        found["publish"] = binding.published_pattern
    if shown.warning:
        found["warning"] = shown.warning
    if not is_short:
        found["ways"] = [_way(way) for way in shown.ways]
    return found


def _way(way: Way) -> dict[str, object]:
    stats = way.stats
    return {
        "mode": way.mode,
        "state": way.state,
        **{name: getattr(stats, name) for name in _COUNTERS},
        "gap_seconds": stats.gap_ms / 1000,
        "gaps": [asdict(gap) for gap in list(stats.gaps)[-GAPS_SHOWN_MAX:]],
    }


class BindingsService:
    """Answers the requests on one connection, with `answer(payload, bytes_max)`. Drops requests that would take more than
    TIME_SHARE of the time; clients ask again."""

    def __init__(
        self, client: NatsClient, answer: Callable[[bytes, int], bytes], now: Callable[[], float]
    ) -> None:
        self._client = client
        self._answer = answer
        self._now = now
        self._left_s = TIME_AT_ONCE_S
        self._answered_at_s = now()
        client.subscribe(SUBJECT, self._asked)

    def _asked(self, _subject: bytes, reply: bytes, _header_block: bytes, payload: bytes) -> None:
        if not reply or reply.startswith(b"$"):  # the broker may publish where the client may not
            return
        begun_s = self._now()
        self._left_s = min(TIME_AT_ONCE_S, self._left_s + TIME_SHARE * (begun_s - self._answered_at_s))
        if self._left_s > 0:
            info = self._client.info
            bytes_max = int((info.max_payload if info is not None else 1 << 20) * ANSWER_SHARE)
            with suppress(NatsError, ValueError):  # the client asks again
                self._client.publish(reply, self._answer(payload, bytes_max))
        self._answered_at_s = self._now()
        self._left_s -= self._answered_at_s - begun_s
