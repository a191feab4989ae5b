"""What the clients of a share group have seen of each record, and the rules that hold for it.

Independent of the broker's code: a rule is checked only where the order of events is certain from outside. A delivery happened
between its request and its answer, an acknowledgement likewise. Which leader epoch a broker served in is known from the metadata that
it had applied (Leaderships). The rules:

1. A record is delivered to one member at a time, while its lock holds and its member's session lasts. What a member acknowledges
   without error was delivered to no other member since.
2. A record whose acceptance or rejection was answered without error is never delivered again.
3. At the end each record was accepted, was rejected, or was delivered as often as the limit allows.
4. The start offset of a share partition never goes back, nor do the epochs of the group and of its members.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, NamedTuple

from compat_tests.simulation.history import History, Partition, Violation, name
from compat_tests.virtual.network import KERNEL_TIMEOUT_S

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FINAL: Final = frozenset({ACCEPT, REJECT})
NEVER: Final = float("inf")
LOST_FETCH_S: Final = (
    2 * KERNEL_TIMEOUT_S
)  # within which a fetch arrives and is served, or its connection ends


class Epoch(NamedTuple):
    """A time in which a process of a broker led a partition. They are compared by `number`."""

    host: str
    start: int  # which process of the node
    number: int  # the leader epoch


class Leaderships:
    """The leader epochs of partitions that each broker has applied."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, Partition], list[float]] = {}
        self._epochs: dict[tuple[str, Partition], list[Epoch | None]] = {}

    def applied(self, now: float, host: str, start: int, partition: Partition, number: int | None) -> None:
        """`number`: None if the broker does not lead it."""
        key = host, partition
        epoch = None if number is None else Epoch(host, start, number)
        epochs = self._epochs.setdefault(key, [])
        if not epochs or epochs[-1] != epoch:
            epochs.append(epoch)
            self._times.setdefault(key, []).append(now)

    def during(self, host: str, partition: Partition, since: float, until: float) -> Epoch | None:
        """The epoch in which the broker has led the partition all this time."""
        times = self._times.get((host, partition), [])
        first, last = bisect.bisect_left(times, since) - 1, bisect.bisect_right(times, until) - 1
        return self._epochs[host, partition][first] if first == last and first >= 0 else None


class Delivery:
    """Records that one answer brought to a member."""

    __slots__ = (
        "conflicts", "count", "epoch", "host", "is_over", "lock_until", "member", "received_at", "sent_at",
    )  # fmt: skip

    def __init__(
        self,
        member: str,
        host: str,
        sent_at: float,
        received_at: float,
        epoch: Epoch | None,
        count: int,
        lock_s: float,
    ) -> None:
        self.member = member
        self.host = host
        self.sent_at = sent_at
        self.received_at = received_at
        self.epoch = epoch
        self.count = count
        self.lock_until = sent_at + lock_s  # at least
        self.is_over = False  # acknowledged, or its session may have ended
        self.conflicts: list[tuple[int, Delivery]] = []  # (offset, delivery of it while this one's lock held)


class Acknowledgement(NamedTuple):
    """Of one record. `epoch`: of the leader that answered without error, if it is certain; `ended_at` is NEVER without such an answer."""

    member: str
    kind: int
    sent_at: float
    ended_at: float
    epoch: Epoch | None


class Record:
    """One offset of a share partition."""

    __slots__ = ("acknowledgements", "deliveries", "finals")

    def __init__(self) -> None:
        # (member, when it accepted or rejected it, or said that it is not there; answered or not)
        self.finals: list[tuple[str, float]] = []
        self.deliveries: list[Delivery] = []
        self.acknowledgements: list[Acknowledgement] = []  # all that may have been carried out


class ShareHistory:
    """See the module. Of one group."""

    def __init__(self, history: History, delivery_limit: int, lock_s: float) -> None:
        self.history = history
        self.leaderships = Leaderships()
        self.delivery_limit = delivery_limit
        self.lock_s = lock_s
        self._records: dict[Partition, dict[int, Record]] = {}
        self._lost: dict[Partition, list[float]] = {}  # fetches without an answer
        self._floors: dict[
            object, list[tuple[float, int]]
        ] = {}  # (time of the answer, largest number so far)

    # -- deliveries

    def delivered(self, partition: Partition, first: int, last: int, delivery: Delivery) -> None:
        """An answer has brought these records."""
        if not 1 <= delivery.count <= self.delivery_limit:
            raise Violation(
                f"{delivery.member}: {first}-{last} of {name(partition)} have the delivery count {delivery.count}, "
                f"the limit is {self.delivery_limit}"
            )
        records = self._records.setdefault(partition, {})
        for offset in range(first, last + 1):
            record = records.setdefault(offset, Record())
            for done in record.acknowledgements:
                if done.kind in FINAL and self._is_after(delivery, done):
                    raise Violation(
                        f"{delivery.member} got {offset} of {name(partition)} at {delivery.received_at:.3f} in {delivery.epoch}, "
                        f"which {done.member} had acknowledged at {done.ended_at:.3f} in {done.epoch}"
                    )
            for other in record.deliveries:
                if (
                    other.member != delivery.member
                    and not other.is_over
                    and other.epoch is not None
                    and other.epoch == delivery.epoch
                    and other.received_at <= delivery.sent_at
                    and delivery.received_at < other.lock_until
                ):
                    other.conflicts.append((offset, delivery))
            record.deliveries.append(delivery)
        self.history.count("share records delivered", last - first + 1)
        if delivery.count > 1:
            self.history.count("share records delivered again", last - first + 1)
        if delivery.count == self.delivery_limit:
            self.history.count("share records delivered for the last time", last - first + 1)

    def _is_after(self, delivery: Delivery, done: Acknowledgement) -> bool:
        """Whether the leader that delivered must have known the acknowledgement: a leader of an earlier epoch knows for a while only
        that it leads."""
        if delivery.sent_at < done.ended_at:
            return False
        if (
            delivery.epoch is not None
            and done.epoch is not None
            and delivery.epoch.number >= done.epoch.number
        ):
            return True
        return delivery.sent_at >= done.ended_at + self.history.stale_s

    def is_held(self, partition: Partition, delivery: Delivery, sent_at: float) -> None:
        """The session of the delivery lasted when a request was sent, so its lock held until then, or until it expired."""
        for offset, other in delivery.conflicts:
            if other.received_at <= sent_at:
                raise Violation(
                    f"{other.member} got {offset} of {name(partition)} between {other.sent_at:.3f} and {other.received_at:.3f} in "
                    f"{other.epoch}; {delivery.member} has it since {delivery.received_at:.3f}, locked until {delivery.lock_until:.3f}"
                )

    def lost_fetch(self, partitions: Iterable[Partition], sent_at: float) -> None:
        """The answer to a fetch was lost: it may have acquired records, or will when the network lets it through."""
        for partition in partitions:
            self._lost.setdefault(partition, []).append(sent_at)

    # -- acknowledgements

    def gives_up(self, member: str, partition: Partition, kinds: dict[int, int], sent_at: float) -> None:
        """The member acknowledges these records, whichever delivery it means: from now on they may belong to others.
        `kinds`: by offset."""
        records = self._records[partition]
        for offset, kind in kinds.items():
            if kind in FINAL or kind == GAP:
                records[offset].finals.append((member, sent_at))
            for delivery in records[offset].deliveries:
                if delivery.member == member:
                    delivery.is_over = True

    def acknowledged(self, partition: Partition, offset: int, acknowledgement: Acknowledgement) -> None:
        """It was carried out, or may have been."""
        record = self._records[partition][offset]
        delivery = [
            each
            for each in record.deliveries
            if each.member == acknowledgement.member and each.received_at <= acknowledgement.sent_at
        ][-1]
        if acknowledgement.ended_at != NEVER:
            self._check_owner(partition, offset, delivery, acknowledgement, record)
        if acknowledgement.ended_at >= delivery.lock_until:
            # The record may have been given up when the lock expired, in memory: what is below the start offset is ignored.
            acknowledgement = acknowledgement._replace(ended_at=NEVER)
        if acknowledgement.kind != RENEW:
            record.acknowledgements.append(acknowledgement)

    def _check_owner(
        self, partition: Partition, offset: int, delivery: Delivery, done: Acknowledgement, record: Record
    ) -> None:
        """No other member can have got it since, unless it is finished, or compaction has removed it: then an acknowledgement has no
        effect."""
        if offset < self.history.last_start(partition) or self.history.is_compacted(partition):
            return
        for other in record.deliveries:
            if (
                other.member != delivery.member
                and other.epoch is not None
                and delivery.epoch is not None
                and other.epoch.number >= delivery.epoch.number
                and other.sent_at >= delivery.received_at
                and other.received_at <= done.sent_at
                and other.count < self.delivery_limit
                and not any(
                    sent_at >= delivery.received_at and (member, sent_at) != (done.member, done.sent_at)
                    for member, sent_at in record.finals
                )
                and not self._lost_since(partition, other.received_at)
            ):
                raise Violation(
                    f"{done.member} acknowledged {offset} of {name(partition)} at {done.sent_at:.3f} in {done.epoch}, acquired "
                    f"before {delivery.received_at:.3f} in {delivery.epoch}; meanwhile {other.member} had got it, between "
                    f"{other.sent_at:.3f} and {other.received_at:.3f} in {other.epoch}"
                )

    def _lost_since(self, partition: Partition, time: float) -> int:
        """How many fetches may have acquired records unseen."""
        return sum(each >= time - self.lock_s for each in self._lost.get(partition, ()))

    # -- what never goes back

    def saw(self, what: object, number: int, asked_at: float, now: float) -> None:
        """An answer of any broker, which may not know for a while that it was replaced."""
        seen = self._floors.setdefault(what, [])
        index = bisect.bisect_right(seen, asked_at - self.history.stale_s, key=lambda each: each[0])
        if index and number < seen[index - 1][1]:
            raise Violation(f"{what} is {number} at {now:.3f}; {seen[index - 1][1]} was the answer earlier")
        seen.append((now, max(number, seen[-1][1] if seen else number)))

    # -- the end

    def check_end(self, partition: Partition, offsets: Iterable[int]) -> None:
        """These records exist, and nothing is left to deliver."""
        records = self._records.get(partition, {})
        for offset in offsets:
            record = records.get(offset)
            if record is not None and any(each.kind in FINAL for each in record.acknowledgements):
                continue
            count, since = (
                (0, 0.0) if record is None else max((each.count, -each.sent_at) for each in record.deliveries)
            )
            missing = self.delivery_limit - count
            lost = sum(each >= -since - LOST_FETCH_S for each in self._lost.get(partition, ()))
            if missing and lost < missing:
                raise Violation(
                    f"{offset} of {name(partition)} was neither accepted nor rejected, and was delivered {count} of "
                    f"{self.delivery_limit} times"
                )
            self.history.count("share records given up at the limit")
