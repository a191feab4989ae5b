"""`Steering`: what `Broker` can have its cluster do, as methods.

A broker in a thread has done it on return. One in the running loop returns something to await:
`await broker.move_leader("orders")`; what takes no turn of the loop is done even before.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop is the test's
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence

    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.operations import Start
    from barnabas.testing.steering.partitions import PartitionInfo

T = TypeVar("T")


class Finished:
    """Has happened; awaiting it takes no time."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Steering:
    """See the module. The modules behind it are loaded when they are needed."""

    nodes: list[BrokerNode]

    @abstractmethod
    def call(self, function: Callable[[], T]) -> T: ...

    @abstractmethod
    def wait(self, start: Start) -> None: ...

    @abstractmethod
    async def wait_async(self, start: Start) -> None: ...

    @abstractmethod
    def make_node(self, node_id: int, properties: Mapping[str, str]) -> BrokerNode: ...

    @property
    @abstractmethod
    def is_in_thread(self) -> bool: ...

    def perform(self, start: Start) -> Awaitable[None]:
        """Begin something, and be done with it or give back what to await."""
        if self.is_in_thread:
            self.wait(start)
            return Finished()
        return asyncio.ensure_future(self.wait_async(start))

    # -- partitions

    def partition(self, topic: str, partition: int = 0) -> PartitionInfo:
        """Leader, epoch, replicas and ISR, as the metadata has them. UnknownTopic."""
        from barnabas.testing.steering import partitions

        return self.call(lambda: partitions.partition_info(self.nodes, topic, partition))

    def move_leader(self, topic: str, partition: int = 0, node: int | None = None) -> Awaitable[None]:
        """To a node that has a replica in sync; None: another one than now. ValueError, UnknownTopic."""
        from barnabas.testing.steering import partitions

        return self.perform(lambda done: partitions.move_leader(self.nodes, topic, partition, node, done))

    def drop_leader(self, topic: str, partition: int = 0) -> Awaitable[None]:
        """Nobody leads the partition, until `move_leader` says who. UnknownTopic."""
        from barnabas.testing.steering import partitions

        return self.perform(lambda done: partitions.drop_leader(self.nodes, topic, partition, done))

    def bump_epoch(self, topic: str, partition: int = 0) -> Awaitable[None]:
        """The leader stays, in a new epoch. UnknownTopic."""
        from barnabas.testing.steering import partitions

        return self.perform(lambda done: partitions.bump_epoch(self.nodes, topic, partition, done))

    def shrink_isr(self, topic: str, partition: int, isr: Sequence[int]) -> Awaitable[None]:
        """Only these replicas are in sync, until `restore_isr`. ValueError, UnknownTopic."""
        from barnabas.testing.steering import partitions

        return self.perform(lambda done: partitions.shrink_isr(self.nodes, topic, partition, isr, done))

    def restore_isr(self) -> None:
        """Replicas that have caught up get in sync again."""
        from barnabas.testing.steering import partitions

        self.call(lambda: partitions.restore_isr(self.nodes))

    # -- groups

    def coordinator(self, group: str) -> int:
        """The node that coordinates a group. UnknownGroup while there has been none at all."""
        from barnabas.testing.steering import groups

        return self.call(lambda: groups.coordinator_of(self.nodes, group))

    def move_coordinator(self, group: str, node: int | None = None) -> Awaitable[None]:
        """To another node: the old one answers NOT_COORDINATOR. ValueError, UnknownGroup."""
        from barnabas.testing.steering import groups

        return self.perform(lambda done: groups.move_coordinator(self.nodes, group, node, done))

    def load_coordinator(self, group: str, seconds: float | None = None) -> None:
        """It answers COORDINATOR_LOAD_IN_PROGRESS, for so long or until `coordinator_loaded`. UnknownGroup."""
        from barnabas.testing.steering import groups

        self.call(lambda: groups.load_coordinator(self.nodes, group, seconds))

    def coordinator_loaded(self, group: str) -> None:
        """It serves its groups again."""
        from barnabas.testing.steering import groups

        self.call(lambda: groups.coordinator_loaded(self.nodes, group))

    def expire_member(self, group: str, member_id: str) -> None:
        """As when its session has timed out. UnknownGroup."""
        from barnabas.testing.steering import groups

        self.call(lambda: groups.expire_member(self.nodes, group, member_id))

    def force_rebalance(self, group: str) -> None:
        """Its members have to join again. UnknownGroup."""
        from barnabas.testing.steering import groups

        self.call(lambda: groups.force_rebalance(self.nodes, group))

    # -- nodes

    def kill_node(self, node: int) -> None:
        """As kill -9. UnknownNode."""
        from barnabas.testing.steering import nodes

        self.call(lambda: nodes.kill(self.nodes, node))

    def pause_node(self, node: int) -> None:
        """As SIGSTOP. ValueError, UnknownNode."""
        from barnabas.testing.steering import nodes

        self.call(lambda: nodes.pause(self.nodes, node))

    def resume_node(self, node: int) -> None:
        """As SIGCONT. UnknownNode."""
        from barnabas.testing.steering import nodes

        self.call(lambda: nodes.resume(self.nodes, node))

    def stop_node(self, node: int) -> Awaitable[None]:
        """In order: others take over what it leads. UnknownNode."""
        from barnabas.testing.steering import nodes

        return self.perform(lambda done: nodes.stop(self.nodes, node, done))

    def start_node(self, node: int) -> Awaitable[None]:
        """One that was killed or stopped: the same id, port and files. UnknownNode."""
        from barnabas.testing.steering import nodes

        return self.perform(lambda done: nodes.start(self.nodes, node, done))

    def restart_node(self, node: int) -> Awaitable[None]:
        """Stopped in order and started again. UnknownNode."""
        from barnabas.testing.steering import nodes

        return self.perform(lambda done: nodes.restart(self.nodes, node, done))

    def add_node(self, properties: Mapping[str, str] | None = None) -> Awaitable[None]:
        """A broker more, which is the last of `nodes`. ValueError where there is one node only."""
        from barnabas.testing.steering import nodes

        def make(node_id: int) -> BrokerNode:
            return self.make_node(node_id, properties or {})

        def begin(done: Callable[[Exception | None], object]) -> None:
            nodes.add(self.nodes, make, done)

        return self.perform(begin)

    def remove_node(self, node: int) -> Awaitable[None]:
        """One that was added. ValueError, UnknownNode."""
        from barnabas.testing.steering import nodes

        return self.perform(lambda done: nodes.remove(self.nodes, node, done))

    # -- upkeep

    def run_retention(self, topic: str | None = None) -> Awaitable[None]:
        """Remove what is too old or too much, now, from leaders; followers do so after their next fetch. UnknownTopic."""
        from barnabas.testing.steering import upkeep

        return self.perform(lambda done: upkeep.run_retention(self.nodes, topic, done))

    def run_compaction(self, topic: str | None = None) -> Awaitable[None]:
        """Compact now, however little there is to gain. UnknownTopic."""
        from barnabas.testing.steering import upkeep

        return self.perform(lambda done: upkeep.run_compaction(self.nodes, topic, done))
