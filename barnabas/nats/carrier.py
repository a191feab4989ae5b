"""What carries a binding out on this broker, and what it tells of itself.

A topic may be bound in several ways at once (subjects come in, records go out); each is a carrier of its own. The
bridge (bridge.py) starts and stops them and tells them which partitions are led here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition

GAPS_KEPT: Final = 100  # the newest; all are in the log


@dataclass(slots=True)
class Gap:
    """A time in which messages may have been published that never came here. `end_ms` is 0 while it lasts."""

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
    too_large: int = 0  # for max.message.bytes: refused, dead letters, or what a stream's reading waits at
    looped: int = 0  # came from this very topic
    superseded: int = 0  # records that were not put into a bucket, because it had a newer value
    redelivered: int = 0
    lag: int = 0  # messages of the stream, or records of the topic, that are still to come
    lost_estimate: int = 0
    reconnects: int = 0
    ack_latency_ms: float = 0.0  # of the newest acknowledgement
    gap_count: int = 0
    gap_ms: int = 0  # of those that have ended
    gaps: deque[Gap] = field(default_factory=lambda: deque(maxlen=GAPS_KEPT))


class Carrier(Protocol):
    """One way in which a topic is bound, on this broker. All calls on the loop's thread."""

    stats: CarrierStats

    @property
    def state(self) -> str:
        """One or a few words for people: "running", "connecting", "blocked: <why, and what to do>"."""
        ...

    def start(self, leading: Mapping[int, Partition]) -> None:
        """Begin; these partitions, by index, are led here."""
        ...

    def roles_changed(self, leading: Mapping[int, Partition]) -> None:
        """Other partitions are led here now."""
        ...

    def stop(self) -> None:
        """For good. What has been taken is appended or published first, as far as that can be done at once."""
        ...
