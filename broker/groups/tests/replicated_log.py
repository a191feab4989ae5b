"""One partition with several replicas, as coordinators see it: an append is committed when the test says so, and the next leader
has what is committed and, of the rest, as much as the test leaves it."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.coordinator.loading import Replay
from barnabas.broker.coordinator.log import Marker
from barnabas.storage.log.verification import Verification
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.wire.errors import ErrorCode as E


def marker_batch(marker: Marker) -> bytes:
    return build_marker(
        marker.producer_id,
        marker.producer_epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=0,
    )


class ReplicatedLog:
    """One partition. `committed`: how many of the batches are."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.committed = 0
        self.leader: Replica | None = None
        self.too_few = False  # the ISR is smaller than min.insync.replicas

    def lead(self) -> Replica:
        self.leader = Replica(self)
        return self.leader

    def commit(self, count: int) -> None:
        """That many more are committed."""
        assert self.leader is not None
        for _ in range(min(count, len(self.batches) - self.committed)):
            self.committed += 1
            self.leader.committed()

    def lose(self, kept: int) -> None:
        """The leader is none any more; the next one has `kept` of what was not committed."""
        leader, self.leader = self.leader, None
        del self.batches[self.committed + kept :]
        assert leader is not None
        leader.lost()


class Replica:
    """The log of the broker that leads, for its coordinator."""

    topic = "__consumer_offsets"

    def __init__(self, log: ReplicatedLog) -> None:
        self._log = log
        self._waiting: list[Callable[[E], object]] = []
        self._loaded: Callable[[Exception | None], object] | None = None
        self.leads = True

    def append(self, partition_index: int, batch: bytes, done: Callable[[E], object]) -> None:
        if not self.leads:
            done(E.NOT_LEADER_OR_FOLLOWER)
        elif self._log.too_few:
            done(E.NOT_ENOUGH_REPLICAS)
        else:
            self._log.batches.append(batch)
            self._waiting.append(done)

    def append_in_transaction(
        self,
        partition_index: int,
        batch: bytes,
        verification: Verification | None,
        done: Callable[[E], object],
    ) -> None:
        self.append(partition_index, batch, done)

    def append_marker(self, partition_index: int, marker: Marker, done: Callable[[E], object]) -> None:
        self.append(partition_index, marker_batch(marker), done)

    def committed(self) -> None:
        self._waiting.pop(0)(E.NONE)

    def lost(self) -> None:
        self.leads = False
        while self._waiting:
            self._waiting.pop(0)(E.NOT_LEADER_OR_FOLLOWER)

    def load(
        self,
        partition_index: int,
        replay: Replay,
        done: Callable[[Exception | None], object],
    ) -> Replica:
        for number, batch in enumerate(self._log.batches):
            for _ in replay.take((number << 10).to_bytes(8, "big") + batch[8:]):
                pass
        for _ in replay.finish():
            pass
        done(None)
        return self

    def is_replicated(self, partition_index: int) -> bool:
        return True

    def when_committed(self, partition_index: int, done: Callable[[E], object]) -> None:
        uncommitted = len(self._log.batches) - self._log.committed
        self._waiting += [lambda _: None] * (uncommitted - 1)
        if uncommitted:
            self._waiting.append(done)
        else:
            done(E.NONE)

    def cancel(self) -> None:
        """It is all there."""
