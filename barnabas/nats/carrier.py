"""The interface of carriers, which carry a binding out on this broker, and their counters.

A topic may be bound in several ways at once (messages come in, records go out); each has a carrier. A bound topic
(bound_topic.py) starts and stops its carriers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition

GAPS_KEPT: Final = 100  # the newest; the broker's log has all of them


@dataclass(slots=True)
class Gap:
    """A time of which messages may be missing. `end_ms` is 0 while it lasts."""

    begin_ms: int
    end_ms: int
    cause: str


@dataclass(slots=True)
class CarrierStats:
    """Counters of one binding on this broker, since it was started here."""

    messages_in: int = 0
    bytes_in: int = 0  # subject, headers and payload
    messages_out: int = 0
    bytes_out: int = 0
    appended: int = 0  # records
    appended_bytes: int = 0  # batches, as they are in the log
    duplicates: int = 0  # by Nats-Msg-Id
    refused: int = 0  # answered with an error, or logged where no answer is expected
    dead_letters: int = 0
    too_large: int = (
        0  # for max.message.bytes: refused, dead letters, or a stream's message that reading waits at
    )
    looped: int = 0  # came from this very topic
    superseded: int = 0  # records not put into a bucket, because it had a newer value
    redelivered: int = 0
    lag: int = 0  # messages of the stream, or records of the topic, that are still to come
    lost_estimate: int = 0
    reconnects: int = 0
    ack_latency_ms: float = 0.0  # of the newest acknowledgement
    gap_count: int = 0
    gap_ms: int = 0  # of those that have ended
    gaps: deque[Gap] = field(default_factory=lambda: deque(maxlen=GAPS_KEPT))


class Carrier(Protocol):
    """Carries out one way of a topic's binding. All calls on the loop's thread."""

    stats: CarrierStats

    @property
    def state(self) -> str:
        """For users: "running", "connecting", "blocked: <why, and what to do>"."""
        ...

    def start(self, leading: Mapping[int, Partition]) -> None:
        """Starts. `leading` are the partitions led here, by index."""
        ...

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        """Other partitions are led here from now on."""
        ...

    def stop(self) -> None:
        """Stops for good. Appends or publishes what it holds first, as far as that is possible at once."""
        ...
