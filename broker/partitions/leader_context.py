"""What all partitions that this broker leads with other replicas have in common: who is alive, what time it is, how much
lag is allowed, and the way to the controller. It looks for followers that have fallen behind every half of the lag that is
allowed (replica.lag.time.max.ms), as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from barnabas.broker.partitions.isr_proposals import IsrChange, IsrChanges
from barnabas.controller.metadata.image import MetadataImage
from barnabas.runtime.slices import Periodic, in_slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.partitions.isr_replica import RemoteReplica
    from barnabas.broker.partitions.leadership import Leadership
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.errors import ErrorCode
    from barnabas.wire.messages.alter_partition import ResponsePartitionData

LAG_TIME_MAX_S = 30.0  # Kafka's default


class _Asker:
    """The proposer of a change by a follower."""

    def answered(self, change: IsrChange, error: ErrorCode, decided: ResponsePartitionData | None) -> None:
        """Another one may have been faster."""


class Replication:
    """See the module. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, node_id: int) -> None:
        self.node_id = node_id
        self.runtime = runtime
        self.now = runtime.monotonic
        self.lag_time_max_s = LAG_TIME_MAX_S
        self.changes = IsrChanges(runtime, node_id)
        self._empty = MetadataImage()
        self.image: Callable[[], MetadataImage] = lambda: self._empty
        self.on_refused: Callable[[], object] = lambda: None  # the disk does not take what is led here
        # Whether a follower that has caught up could lead at once. What a leader holds besides its log, an extension knows.
        self.may_take_over: Callable[[Partition, RemoteReplica], bool] = lambda _partition, _replica: True
        self.kept_out: frozenset[int] = frozenset()  # brokers that join no ISR led here: a test's wish
        self._led: dict[Leadership, None] = {}  # in the order in which they came
        self._periodic: Periodic | None = None

    def start(self, lag_time_max_s: float) -> None:
        """Begin to look for followers that fall behind."""
        self.lag_time_max_s = lag_time_max_s
        self._periodic = Periodic(
            self.runtime, lag_time_max_s / 2, lag_time_max_s / 2, self._look_for_laggards
        )

    def stop(self) -> None:
        if self._periodic is not None:
            self._periodic.stop()

    def ask_to_lead(self, partition: Partition) -> None:
        """As a follower in sync, in the place of the leader that the metadata has now (controller/operations/
        alter_partition.py). What comes of it, the metadata tells."""
        members = [(broker_id, -1) for broker_id in partition.state.isr]
        change = IsrChange(
            _Asker(),
            partition.topic_id,
            partition.partition,
            partition.leader_epoch,
            partition.partition_epoch,
            members,
        )
        self.changes.propose(change)

    def leads(self, leadership: Leadership) -> None:
        self._led[leadership] = None

    def leads_no_more(self, leadership: Leadership) -> None:
        self._led.pop(leadership, None)

    def _look_for_laggards(self, done: Callable[[], object]) -> None:
        def each() -> Iterator[None]:
            now = self.now()
            for leadership in tuple(self._led):
                leadership.drop_laggards(now)
                yield

        in_slices(self.runtime, each(), done)

    # -- brokers, as the metadata has them

    def alive_epoch(self, broker_id: int) -> int | None:
        """The broker's epoch; None while it is fenced or not there."""
        broker = self.image().brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.broker_epoch

    def may_join_isr(self, broker_id: int, fetched_epoch: int | None) -> bool:
        """Whether a follower that fetches in this broker epoch may be in an ISR: it is neither fenced nor shutting
        down, and it is the one that is registered (KIP-841, KIP-903)."""
        broker = self.image().brokers.get(broker_id)
        return (
            broker is not None
            and broker_id not in self.kept_out
            and not broker.fenced
            and not broker.in_controlled_shutdown
            and fetched_epoch == broker.broker_epoch
        )
