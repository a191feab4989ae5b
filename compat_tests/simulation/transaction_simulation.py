"""One seed of transactions: producers, transformers and read_committed consumers while faults happen.

Two feeders and short-lived producers write to the input topic, and transformers consume each of its partitions, transform the
records and produce the results, with the group's offset in the same transaction. Several clients use one transactional id and
fence each other; holders crash, pause beyond their timeouts, and abort. At the end all ids that may have an open transaction are
taken over once more, which ends what is open, and TransactionHistory.check compares what the clients have seen with the logs and
the coordinators.

transactions.py runs it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from barnabas.broker.api import produce
from barnabas.broker.cluster import producer_ids as broker_ids
from barnabas.broker.coordinator import loading
from barnabas.broker.requests import sliced_handler
from barnabas.broker.transactions import transaction
from barnabas.controller.operations import features
from barnabas.controller.operations import producer_ids as controller_ids
from barnabas.controller.operations.features import Feature
from barnabas.runtime import slices
from barnabas.storage.log import producers
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from compat_tests.harness.transaction_history import CoordinatorState, TransactionHistory
from compat_tests.harness.transaction_state_log import MAX_EPOCH
from compat_tests.simulation import checkers
from compat_tests.simulation.admins import Admin, reassign
from compat_tests.simulation.committed_readers import OffsetObserver, ReadingConsumer
from compat_tests.simulation.coordinators import TRANSACTION as TRANSACTION_KEY
from compat_tests.simulation.coordinators import Coordinators
from compat_tests.simulation.faults import FAR_AHEAD_MS
from compat_tests.simulation.groups import Member
from compat_tests.simulation.history import Partition
from compat_tests.simulation.holders import Abortable, Fenced, GaveUp
from compat_tests.simulation.late_requests import LateRequests
from compat_tests.simulation.simulation import FORMS_WITHIN_S, HEALS_WITHIN_S, Simulation
from compat_tests.simulation.tasks import Task
from compat_tests.simulation.transaction_checkers import (
    STATE_TOPIC,
    batches,
    check_coordinator,
    check_producers,
)
from compat_tests.simulation.transactional_clients import (
    TIMEOUTS_MS,
    TransactionalProducer,
    Transformer,
    Visitor,
)
from compat_tests.simulation.tuning import small
from compat_tests.simulation.wire_client import NoResponse

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import MetadataImage
    from compat_tests.simulation.wire_client import Client

INPUT, OUTPUT = "input", "output"
GROUPS = ("copies-0", "copies-1")  # each of the input partition of that number
PARTITIONS = 2
OFFSETS_TOPIC = "__consumer_offsets"
DESCRIBE_TRANSACTIONS, UPDATE_FEATURES = 65, 57
UNSAFE_DOWNGRADE = 3
COLD_READ_BYTES = 10_000
NOT_FOUND = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
ENDS_WITHIN_S = 60.0
ZONES_S = 0.04  # between brokers in zones that are far from each other
SHAPES = (
    ("broker,controller",) * 3,
    ("broker,controller",) * 3,
    ("broker,controller",) * 3 + ("broker",),
    ("controller",) * 3 + ("broker",) * 3,
)


def _cold(read: Callable[..., Any]) -> Callable[..., Any]:
    """Reads for which a thread is needed."""

    def cold(*arguments: Any, **named: Any) -> Callable[[], Any]:
        found = read(*arguments, **named)
        return found if callable(found) else lambda: found

    return cold


class _IdleMember(Member):
    """A member of a group that commits nothing."""

    def _partitions(self) -> list[Partition]:
        return []


class TransactionSimulation(Simulation):
    """See the module."""

    ids_expire: bool

    def __init__(self, seed: int) -> None:
        self.lost_answers = random.Random(f"answers {seed}").choice((0.0, 0.01, 0.05))
        super().__init__(seed, random.Random(seed).choice(SHAPES))
        self._part_nodes(random.Random(f"zones {seed}").choice((0.0, 0.0, 0.0, ZONES_S)))
        self.tasks: list[Task] = []
        self.transactions = TransactionHistory()
        self.works: list[TransactionalProducer] = []
        self.readers: list[ReadingConsumer] = []
        self.states: list[CoordinatorState] = []
        self.late = LateRequests(self.client("late"), self.history, self.should_continue)
        # Few epochs: producer ids change often. As in Kafka the last epoch is never given to a client.
        self.max_epoch = self.random.choice((MAX_EPOCH, 3, 9, 20))
        self.transaction_version = self.random.choice((0, 1, 2, 2, 2))
        # 0: work in slices goes on in the next turn after each step, so that others come in between
        self.turn_s = self.random.choice((slices.TURN_S, 0.0))
        self.block_size = self.random.choice((1000, 2))
        self.changes_version = self.random.random() < 0.2
        # Where a clock is ahead by more than a week, the ids and producers that it expires may be in use.
        left_out = [self.faults._far_ahead]
        for node in self.nodes:
            if abs(node.wall_offset_ms) >= FAR_AHEAD_MS // 2:
                node.wall_offset_ms = 0
        # A coordinator whose clock is wrong ends transactions too early, and fences their producers.
        self.clocks_are_right = self.random.random() < 0.5
        if self.clocks_are_right:
            left_out.append(self.faults._jump)
            for node in self.nodes:
                node.wall_offset_ms = 0
        self.faults._kinds = [each for each in self.faults._kinds if each[1] not in left_out]

    def _choose_properties(self) -> dict[str, str]:
        self.ids_expire = self.random.random() < 0.25
        expiry = {
            "transactional.id.expiration.ms": "2500",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        }
        return {
            **super()._choose_properties(),
            **(expiry if self.ids_expire else {}),
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.min.isr": "2",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "offsets.retention.check.interval.ms": "200",
        }

    def _part_nodes(self, seconds: float) -> None:
        """Replicas and coordinators are so far from each other."""
        delay_s, hosts = self.network.delay_s, {node.host for node in self.nodes}
        assert delay_s is not None

        def longer(source: str, target: str) -> float:
            return delay_s(source, target) + (seconds if source in hosts and target in hosts else 0.0)

        self.network.delay_s = longer

    def client(self, name: str) -> Client:
        client = super().client(name)
        client.lost_answers = self.lost_answers
        return client

    # -- the course of the simulation

    def _features(self) -> tuple[Feature, ...]:
        """With the transaction.version of this seed."""
        level = {features.TRANSACTION_VERSION: self.transaction_version}
        return tuple(each._replace(served=level.get(each.name, each.served)) for each in features.FEATURES)

    @contextmanager
    def _tuned(self) -> Iterator[None]:
        """The levels and epochs of this seed."""
        with ExitStack() as stack:
            for module, name, value in (
                (transaction, "LAST_CLIENT_EPOCH", self.max_epoch - 1),
                (transaction, "MAX_PRODUCER_EPOCH", self.max_epoch),
                (producers, "MAX_PRODUCER_EPOCH", self.max_epoch),
                (features, "FEATURES", self._features()),
                *((module, "TURN_S", self.turn_s) for module in (slices, produce, sliced_handler)),
                (produce, "FIRST_TURN_S", self.turn_s),
                (controller_ids, "BLOCK_SIZE", self.block_size),  # brokers run out of producer ids
                (broker_ids, "TIMEOUT_S", 1.0),  # less than a client waits
            ):
                assert hasattr(module, name), name
                stack.enter_context(mock.patch.object(module, name, value))
            if not self.turn_s:  # the disk is cold: coordinators are loaded in several pieces, by a thread
                stack.enter_context(mock.patch.object(loading, "READ_BYTES", COLD_READ_BYTES))
                stack.enter_context(mock.patch.object(loading, "_read", _cold(loading._read)))
            stack.enter_context(self.late.installed())
            stack.enter_context(self.watch.installed())
            stack.enter_context(small(random.Random(self.random.random())))
            yield

    def run(self) -> None:
        with self._tuned():
            for node in self.nodes:
                node.start()
            nodes = [node.node_id for node in self.brokers]
            admin = Admin(self.client("setup"), self.history, nodes, 3, lambda: True)
            setup = Task(self.client_runtime, self._create(admin))
            self._run_until(
                FORMS_WITHIN_S, lambda: setup.is_done and self.is_whole(), "the cluster does not form"
            )
            self._start_clients()
            self._let_faults_happen()
            self.faults.heal()
            self._run_until(HEALS_WITHIN_S, self.is_in_service, "the cluster does not heal")
            self._step(3.0)
            self.going_on = False
            self._run_until(
                ENDS_WITHIN_S, lambda: self.is_settled() and self.late.is_done, "clients do not end"
            )
            finish = Task(self.client_runtime, self._finish())
            self._run_until(ENDS_WITHIN_S, lambda: finish.is_done, "transactions do not end")
            self._run_until(
                HEALS_WITHIN_S, lambda: self.is_replicated() and self.is_whole(), "followers do not catch up"
            )
            self._check()

    async def _create(self, admin: Admin) -> None:
        # With 3 a single broker that is down holds up producers and markers.
        configs = {"min.insync.replicas": self.random.choice(("2", "2", "2", "3"))}
        if self.random.random() < 0.5:
            configs["segment.ms"] = "1000"  # transactions over several segments
        for topic in (INPUT, OUTPUT):
            await admin.create(topic, PARTITIONS, configs)

    def partitions(self, topic: str) -> list[Partition]:
        return [(self.history.topics[topic].topic_id, index) for index in range(PARTITIONS)]

    def _start_clients(self) -> None:
        chance = self.random
        versions = chance.choice(((True,), (True,), (False,), (True, False)))

        def raises_epochs() -> bool:
            return chance.choice(versions)

        shared = self.history, self.transactions
        for name, transactional_id in (("f0", "feed-0"), ("f1", "feed-1"), ("f2", "feed-1")):
            self.works.append(
                TransactionalProducer(
                    self.client(name), *shared, transactional_id, self.partitions(INPUT), raises_epochs,
                    self.should_continue, self.late,
                )
            )  # fmt: skip
        for name, index in (("t0", 0), ("t1", 1), ("t2", 1)):
            self.works.append(
                Transformer(
                    self.client(name), *shared, f"copy-{index}", self.partitions(OUTPUT), raises_epochs,
                    self.should_continue, self.late, group=GROUPS[index], source=self.partitions(INPUT)[index],
                )
            )  # fmt: skip
        for name in ("v0", "v1"):
            self.works.append(
                Visitor(
                    self.client(name), *shared, f"visitor-{name}", self.partitions(INPUT), raises_epochs,
                    self.should_continue, self.late,
                )
            )  # fmt: skip
        everything = [*self.partitions(INPUT), *self.partitions(OUTPUT)]
        self.readers = [
            ReadingConsumer(self.client(f"r{number}"), *shared, everything, self.should_continue)
            for number in range(2)
        ]
        observers = [
            OffsetObserver(self.client(f"o-{group}"), *shared, group, [partition], self.should_continue)
            for group, partition in zip(GROUPS, self.partitions(INPUT), strict=True)
        ]
        # Beside members, which own nothing: a commit inside a transaction needs none (KAFKA-18060).
        members = [
            _IdleMember(
                self.client("m0"),
                self.history,
                GROUPS[0],
                is_simple=False,
                should_continue=self.should_continue,
            )
        ]
        works = [
            *(member.run() for member in members if chance.random() < 0.5),
            *(work.run() for work in self.works),
            *(reader.run() for reader in self.readers),
            *(observer.run() for observer in observers),
            self._move(),
        ]
        self.tasks = [Task(self.client_runtime, work) for work in works]

    async def _move(self) -> None:
        """Partitions of all topics move to other brokers, those of coordinators too."""
        client = self.client("moves")
        while self.going_on:
            await client.pause(client.random.choice((1.0, 2.0, 5.0)))
            if self.changes_version:
                await self._change_version(client)
            if not self.is_whole():
                continue
            brokers = [node.node_id for node in self.brokers]
            # A replica less leaves the leader where it is, with the next epoch.
            replicas = client.random.sample(brokers, client.random.choice((2, 3, 3)))
            topic = client.random.choice((INPUT, OUTPUT, *(STATE_TOPIC,) * 3, OFFSETS_TOPIC))
            partition = client.random.randrange(PARTITIONS)
            if await reassign(client, topic, partition, replicas):
                self.note(f"{topic}-{partition} moves to {replicas}")
                self.history.count(f"moves of {topic}")

    async def _change_version(self, client: Client) -> None:
        """Finalize another transaction.version. Clients keep theirs, so the broker has to go by the version of each request."""
        level = client.random.randrange(3)
        update = FeatureUpdateKey("transaction.version", level, upgrade_type=UNSAFE_DOWNGRADE)
        for kind in (update, FeatureUpdateKey("transaction.version", level)):
            try:
                answer = await client.ask(
                    client.any_address(), UPDATE_FEATURES, 1, UpdateFeaturesRequest(2000, [kind])
                )
            except NoResponse:
                await client.refresh()
                return
            if not answer.error_code:
                self.note(f"transaction.version is {level}")
                self.history.count("changes of transaction.version")
                return

    async def _finish(self) -> None:
        """Take over each id that may have an open transaction, read everything, and ask for all offsets and states."""
        unfinished = [(work, each) for work in self.works for each in sorted(work.unfinished)]
        for work, transactional_id in unfinished:
            while True:
                holder = work.holder(transactional_id)
                try:
                    await holder.initialize(TIMEOUTS_MS[-1])
                    break
                except (Fenced, Abortable, GaveUp):
                    continue
        for reader in self.readers:
            await reader.read_to(self._end)
        client = self.client("last")
        for group, partition in zip(GROUPS, self.partitions(INPUT), strict=True):
            observer = OffsetObserver(
                client, self.history, self.transactions, group, [partition], lambda: True
            )
            while await observer.ask(partition) is None:
                await client.pause()
        coordinators = Coordinators(client, self.history, lambda: True)
        for name in sorted({transactional_id for _, transactional_id in unfinished}):
            state: Any = None
            while state is None or state.error_code:
                request = DescribeTransactionsRequest([name])
                answer = await coordinators.ask(TRANSACTION_KEY, name, DESCRIBE_TRANSACTIONS, 0, request)
                state = answer.transaction_states[0] if answer is not None else None
                if state is not None and self.ids_expire and state.error_code == NOT_FOUND:
                    break
                await client.pause()
            else:
                self.states.append(
                    CoordinatorState(name, state.transaction_state, (state.producer_id, state.producer_epoch))
                )

    def _leader(self, partition: Partition) -> Any:
        """The node of the leader; no leader changes any more."""
        topic = self.brokers[0].services.controller.image.topic_by_id(partition[0])
        assert topic is not None
        leader = topic.partitions[partition[1]].leader
        (node,) = [each for each in self.brokers if each.node_id == leader]
        return node.node

    def _end(self, partition: Partition) -> int:
        end: int = checkers._log(self._leader(partition), *partition).log_end_offset
        return end

    # -- invariants

    def _check(self) -> None:
        checkers._metadata_is_equal(self)
        image = self.brokers[0].services.controller.image
        for topic in image.topics.values():
            for index, found in topic.partitions.items():
                partition = topic.topic_id, index
                nodes = [node for node in self.brokers if node.node_id in found.replicas]
                replicas = {node.node_id: checkers._held(node.node, *partition) for node in nodes}
                if not topic.is_internal:
                    checkers._replicas_are_equal(partition, found, replicas, 0)
                for node in nodes:
                    check_producers(
                        f"{topic.name}-{index} on {node.host}",
                        replicas[node.node_id],
                        checkers._log(node.node, *partition),
                        may_expire=False,
                    )
        partitions = [*self.partitions(INPUT), *self.partitions(OUTPUT)]
        logs = {
            partition: batches(checkers._held(self._leader(partition), *partition))
            for partition in partitions
        }
        self.transactions.check(
            logs,
            self.states,
            max_epoch=self.max_epoch,
            clocks_are_right=self.clocks_are_right,
            ids_expire=self.ids_expire,
        )
        self._check_coordinators(image)
        for each in self.transactions.transactions:
            self.history.count(f"{each.outcome} transactions")

    def _check_coordinators(self, image: MetadataImage) -> None:
        logs = {
            (topic.name, index): batches(checkers._held(self._leader((topic.topic_id, index)), topic.topic_id, index))
            for topic in image.topics.values()
            if topic.name in (INPUT, OUTPUT, OFFSETS_TOPIC)
            for index in topic.partitions
        }  # fmt: skip
        topic = image.topics[STATE_TOPIC]
        for index in topic.partitions:
            node = self._leader((topic.topic_id, index))
            held = checkers._held(node, topic.topic_id, index)
            shard = node.services.transactions.shards.led[index].shard
            check_coordinator(held, shard, logs, self.max_epoch)
