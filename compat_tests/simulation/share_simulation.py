"""One seed with a share group beside all other clients: its members, faults, and at the end nothing is left to deliver.

At the end, when the faults are over, a member acquires records and ends its session, and another one gets them at once; or it keeps
its session, and the other one gets them when the locks have expired. Then one member accepts all that is left, until the coordinator
says that there is no lag. The rules are in share_history.py.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from barnabas.wire.records import iterate_records
from compat_tests.simulation import checkers, share_groups
from compat_tests.simulation.history import Partition, Violation, name
from compat_tests.simulation.nodes import BROKER_PORT
from compat_tests.simulation.share_groups import ShareMember, ShareObserver, configure, positions
from compat_tests.simulation.share_history import ShareHistory
from compat_tests.simulation.simulation import HEALS_WITHIN_S, Simulation
from compat_tests.simulation.tasks import Task
from compat_tests.simulation.wire_client import NoResponse

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import MetadataImage
    from compat_tests.simulation.admins import Admin
    from compat_tests.simulation.nodes import SimulatedNode
    from compat_tests.simulation.wire_client import Address, Client

MEMBERS = 3
EXPIRES_WITHIN_S = 2.0  # after the lock's time
UNANSWERED_S = (
    35.0  # a request to a coordinator that has lost its power ends after request.timeout.ms, and a little
)
DRAINS_WITHIN_S = 60.0  # what was delivered often is delivered record by record


class ShareSimulation(Simulation):
    """See the module."""

    def __init__(self, seed: int, shape: tuple[str, ...] | None = None, frequent_fault: str = "") -> None:
        chance = random.Random(f"share group {seed}")
        self._lock_s = chance.choice((1.0, 2.5, 5.0))
        self._limit = chance.choice((2, 3, 5))
        self._chance = chance
        super().__init__(seed, shape, frequent_fault)
        self.shared = ShareHistory(self.history, self._limit, self._lock_s)

    def _choose_properties(self) -> dict[str, str]:
        chance = self._chance
        return {
            **super()._choose_properties(),
            **share_groups.SETTINGS,
            "group.share.record.lock.duration.ms": str(int(self._lock_s * 1000)),
            "group.share.delivery.count.limit": str(self._limit),
            "group.share.assignment.interval.ms": chance.choice(("0", "1000")),
            "share.coordinator.snapshot.update.records.per.snapshot": chance.choice(("0", "5", "500")),
            "share.coordinator.state.topic.prune.interval.ms": chance.choice(("1000", "300000")),
            "share.coordinator.cold.partition.snapshot.interval.ms": chance.choice(("2000", "300000")),
        }

    # -- the course of the simulation

    async def _set_up(self, admin: Admin) -> None:
        await super()._set_up(admin)
        await configure(self.client("share-setup"), {"share.auto.offset.reset": "earliest"})

    def _start_clients(self) -> None:
        super()._start_clients()
        works = [
            *(
                ShareMember(
                    self.client(f"s{number}"), self.history, self.shared, should_continue=self.should_continue
                ).run()
                for number in range(MEMBERS)
            ),
            *(
                ShareObserver(
                    self.client(f"so{node.node_id}"), self.history, self.shared, (node.host, BROKER_PORT),
                    self.should_continue,
                ).run()
                for node in self.brokers
            ),
        ]  # fmt: skip
        self.tasks += [Task(self.client_runtime, work) for work in works]

    def _node_started(self, node: SimulatedNode) -> None:
        super()._node_started(node)
        if not node.is_broker:
            return
        controller = node.services.controller
        start = node.starts

        def changed(image: MetadataImage, topic_ids: Iterable[bytes], _names: set[str]) -> None:
            for topic_id in sorted(topic_ids):
                topic = image.topic_by_id(topic_id)
                for index, state in () if topic is None else topic.partitions.items():
                    number = state.leader_epoch if state.leader == node.node_id else None
                    self.shared.leaderships.applied(
                        self.world.now, node.host, start, (topic_id, index), number
                    )

        controller.add_listener(changed)
        changed(controller.image, [each.topic_id for each in controller.image.topics.values()], set())

    def _probe(self) -> None:
        super()._probe()
        for end, topic, index in (("closed", "safe", 0), ("lost", "safe", 1), ("kept", "single", 0)):
            work = self._let_go(end, (self.history.topics[topic].topic_id, index))
            self._run_until_done(work, HEALS_WITHIN_S + UNANSWERED_S, "a share group is not served again")
        try:
            self._run_until_done(self._drain(), DRAINS_WITHIN_S, "records are not delivered")
        except Violation as violation:
            raise Violation(f"{violation}; lags by partition: {self._left}") from violation

    def _run_until_done(self, work: Coroutine[Any, Any, object], seconds: float, otherwise: str) -> None:
        task = Task(self.client_runtime, work)
        self._run_until(seconds, lambda: task.is_done, otherwise)

    _left: object = "the coordinator is not found"

    async def _let_go(self, end: str, partition: Partition) -> None:
        """Records of that partition which a member has acquired are available again when its session ends, before their locks
        expire; where the session is kept, when they have expired."""
        history, shared = self.history, self.shared
        first, second = (
            ShareMember(
                self.client(f"{end}-{place}"), history, shared, should_continue=lambda: True, accepts_all=True
            )
            for place in ("first", "second")
        )
        acquired: list[tuple[Partition, int, int, int]] = []
        while not acquired:
            await first._client.refresh()
            address, _ = first._client.leader(*partition)
            # A write whose coordinator has lost its power is tried again later, and others wait for it.
            if address is not None and not self._is_writing(address, partition):
                begun_at = self.world.now
                acquired = await first.fetch(address, [partition], 100)
        assert address is not None
        session = first._sessions[address]
        session.due.clear()
        if end == "closed":
            await first.close(session)
        elif end == "lost":
            first._client.disconnect(address)
            first.lose(session)
        wanted = {
            offset
            for _, low, high, count in acquired
            if count < self._limit
            for offset in range(low, high + 1)
        }
        # Those that were delivered often come one by one.
        is_available = not wanted
        deadline = begun_at + (self._lock_s + EXPIRES_WITHIN_S if end == "kept" else 0.9 * self._lock_s)
        while not is_available and self.world.now < deadline:
            again = await second.fetch(address, [partition], 500)
            is_available = any(low <= offset <= high for _, low, high, _ in again for offset in wanted)
            await second._client.pause(0.02)
        if (
            not is_available
            and shared.leaderships.during(address[0], partition, begun_at, self.world.now) is not None
        ):
            raise Violation(
                f"{end} session: {min(wanted)} of {name(partition)} was acquired at {begun_at:.3f} and is not "
                f"available at {self.world.now:.3f}, its lock lasts {self._lock_s} s"
            )
        history.count(f"share sessions {end} with records")
        await second._client.pause(0.05)
        for member in (first, second):
            while member._sessions:
                await member.close(next(iter(member._sessions.values())))

    def _is_writing(self, address: Address, partition: Partition) -> bool:
        (leader,) = [node for node in self.brokers if node.host == address[0]]
        led = leader.services.share_partitions.find(share_groups.NAME, *partition)
        return led is not None and led.is_writing

    async def _drain(self) -> None:
        """One member accepts everything, until there is no lag."""
        client = self.client("share-last")
        member = ShareMember(
            client, self.history, self.shared, should_continue=lambda: True, accepts_all=True
        )
        left = {
            (topic.topic_id, index)
            for topic in self.history.topics.values()
            if topic.topic_id and topic.is_safe and not topic.is_deleted and not topic.expires
            for index in range(topic.partitions)
        }
        while left:
            for _ in range(5):
                await member.step()
                await client.pause(0.02)
            lags = await self._lags(client, sorted(left))
            left -= {partition for partition, lag in lags.items() if lag == 0}
            self._left = {name(partition): lags.get(partition) for partition in sorted(left)}
        await member.leave()

    async def _lags(self, client: Client, partitions: list[Partition]) -> dict[Partition, int]:
        addresses: list[Address] = [(node.host, BROKER_PORT) for node in self.brokers]
        for address in addresses:
            try:
                found = await positions(client, address, self.history, self.shared, partitions)
            except NoResponse:
                continue
            if found:
                return {partition: each.lag for partition, each in found.items()}
        return {}

    def _check(self) -> None:
        super()._check()
        history = self.history
        image = self.brokers[0].services.controller.image
        for topic in image.topics.values():
            known = history.topic(topic.topic_id)
            if known is None or known.is_deleted or not known.is_safe or known.expires:
                continue
            for index, state in topic.partitions.items():
                partition = topic.topic_id, index
                (leader,) = [node for node in self.brokers if node.node_id == state.leader]
                records = [
                    record
                    for _, batch in checkers._held(leader.node, *partition)
                    for record in iterate_records(batch)
                    if record.offset >= history.last_start(partition)
                ]
                offsets = [record.offset for record in records]
                if known.is_compacted:  # others may have been missing where they were to be delivered
                    last = {bytes(record.key or b""): record.offset for record in records}
                    offsets = list(last.values())
                self.shared.check_end(partition, offsets)
