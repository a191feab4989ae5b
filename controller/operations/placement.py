"""Placement of replicas: in stripes, or checked when the request names the brokers.

Replicas are spread over the racks first and over the brokers of each rack second. The next partition begins with the next rack,
and in each rack with the next broker. The begin is random, so that not all topics begin with the same broker. Fenced brokers
come last in their rack, and are never the first replica. Kafka's StripedReplicaPlacer places replicas in the same way.

Where the balancer is on, of the first two replicas the one with the less loaded broker leads. Kafka has no such rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Final, TypeVar

from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage, PartitionState
from barnabas.controller.operations.cluster_view import default_directory
from barnabas.wire.errors import ErrorCode

T = TypeVar("T")
NO_LOADS: Final[Mapping[int, float]] = {}
Draw = Callable[[int], int]  # draw(n): a random number from 0 to n - 1


def place(
    image: MetadataImage,
    count: int,
    replication_factor: int,
    draw: Draw,
    observers: Collection[int] = (),
    loads: Mapping[int, float] = NO_LOADS,
) -> list[list[int]]:
    """Replicas of `count` partitions, on brokers that hold no observers. `loads`: of active brokers, in any unit; for those of others
    the order stays. Raises ApiError: INVALID_REPLICATION_FACTOR."""
    usable = [
        broker
        for broker in image.brokers.values()
        if broker.broker_id not in observers and takes_replicas(broker)
    ]
    prefix = f"Unable to replicate the partition {replication_factor} time(s): "
    if all(broker.fenced for broker in usable):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{prefix}All brokers are currently fenced, or have all their log directories cordoned.",
        )
    if replication_factor > len(usable):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{prefix}The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(usable)} broker(s) are registered or some brokers have all their log directories cordoned.",
        )
    stripes = _Stripes(usable, draw)
    placed = [stripes.next(replication_factor) for _ in range(count)]
    if loads:
        _lead_by_load(placed, loads, sum(len(topic.partitions) for topic in image.topics.values()))
    return placed


def _lead_by_load(placed: list[list[int]], loads: Mapping[int, float], partitions: int) -> None:
    """Put the less loaded of the first two replicas first. A new partition counts as much as one of the `partitions` that exist, so
    that not all of them choose the same broker."""
    expected = dict(loads)
    each = sum(load for load in loads.values() if isfinite(load)) / max(partitions, 1)
    for replicas in placed:
        if len(replicas) > 1 and replicas[0] in expected and replicas[1] in expected:
            if expected[replicas[1]] + each < expected[replicas[0]]:
                replicas[:2] = [replicas[1], replicas[0]]
            expected[replicas[0]] += each


def takes_replicas(broker: BrokerRegistration) -> bool:
    """Whether new replicas may be placed there: it does not shut down, and a directory is not cordoned."""
    cordoned = broker.cordoned_log_dirs or []
    return not broker.in_controlled_shutdown and (
        not cordoned or any(directory not in cordoned for directory in broker.log_dirs)
    )


class _Rack:
    """The brokers of a rack, unfenced and fenced, each a ring that begins with the next broker for every partition."""

    def __init__(self, brokers: list[BrokerRegistration], draw: Draw) -> None:
        self.unfenced = sorted(broker.broker_id for broker in brokers if not broker.fenced)
        self.fenced = sorted(broker.broker_id for broker in brokers if broker.fenced)
        self._start_unfenced = draw(len(self.unfenced)) if self.unfenced else 0
        self._start_fenced = draw(len(self.fenced)) if self.fenced else 0

    def order(self, turn: int) -> list[int]:
        """Its brokers in the order for partition number `turn`."""
        return _rotated(self.unfenced, self._start_unfenced + turn) + _rotated(
            self.fenced, self._start_fenced + turn
        )


def _rotated(ring: list[int], start: int) -> list[int]:
    start = start % len(ring) if ring else 0
    return ring[start:] + ring[:start]


class _Stripes:
    """Chooses the replicas of one partition after the other."""

    def __init__(self, brokers: list[BrokerRegistration], draw: Draw) -> None:
        self._draw = draw
        by_rack: dict[str, list[BrokerRegistration]] = {}
        for broker in brokers:
            by_rack.setdefault(broker.rack or "", []).append(broker)
        self._racks = [_Rack(by_rack[name], draw) for name in sorted(by_rack)]
        self._unfenced = sum(len(rack.unfenced) for rack in self._racks)
        self._first_rack = draw(len(self._racks))
        self._turn = 0

    def next(self, replication_factor: int) -> list[int]:
        if self._turn == self._unfenced:
            self._shuffle()
        orders = [rack.order(self._turn) for rack in self._racks]
        count = len(orders)
        first = self._first_rack
        while not self._racks[first].unfenced:  # `place` has checked that a rack has some
            first = (first + 1) % count
        replicas = [orders[first].pop(0)]
        # The others from the racks in turn; the rack of the first replica is skipped once.
        at, passed_over = self._first_rack, False
        while len(replicas) < replication_factor:
            if at == first and not passed_over:
                passed_over = True
            elif orders[at]:
                replicas.append(orders[at].pop(0))
            at = (at + 1) % count
        self._turn += 1
        self._first_rack = (self._first_rack + 1) % count
        return replicas

    def _shuffle(self) -> None:
        """Every broker has been first once: continue with another order."""
        _shuffle(self._racks, self._draw)
        for rack in self._racks:
            _shuffle(rack.unfenced, self._draw)
            _shuffle(rack.fenced, self._draw)
        self._turn = 0


def _shuffle(ring: list[T], draw: Draw) -> None:
    for last in range(len(ring) - 1, 0, -1):
        other = last - draw(last + 1)
        ring[last], ring[other] = ring[other], ring[last]


def check_assignment(
    image: MetadataImage,
    replicas: Sequence[int],
    replication_factor: int | None,
    observers: Collection[int] = (),
) -> None:
    """Checks a manual assignment of one partition. `replication_factor`: of the topic's other partitions, None for its first;
    without the `observers`.
    Raises ApiError: INVALID_REPLICA_ASSIGNMENT."""
    prefix = "The manual partition assignment includes"
    if not replicas:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} an empty replica list.")
    previous: int | None = None
    for broker in sorted(replicas):
        if broker not in image.brokers:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{prefix} broker {broker}, but no such broker is registered.",
            )
        if broker == previous:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} the broker {broker} more than once."
            )
        previous = broker
    count = sum(broker not in observers for broker in replicas)
    if not count:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} only observers of the topic.")
    if replication_factor is not None and count != replication_factor:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{prefix} a partition with {count} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s).",
        )


def new_partition(
    image: MetadataImage,
    index: int,
    replicas: Sequence[int],
    observers: Collection[int] = (),
    leader_epoch: int = 0,
) -> PartitionState:
    """A new partition: its active replicas but for the observers are in sync, and the first of them leads, in `leader_epoch`.

    Raises ApiError: INVALID_REPLICA_ASSIGNMENT when none is active.
    """
    isr = [broker for broker in replicas if broker not in observers and image.brokers[broker].is_active]
    if not isr:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            f"controlled shutdown.",
        )
    return PartitionState(
        replicas=list(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=leader_epoch,
        partition_epoch=0,
        directories=[default_directory(image.brokers[broker]) for broker in replicas],
    )
