"""One seed of transactions: producers, transformers and read_committed consumers while faults happen.

Two feeders write to the input topic, and transformers consume each of its partitions, transform the records and produce
the results, with the group's offset in the same transaction. Several clients use one transactional id and fence each
other; holders crash, pause beyond their timeouts, and abort. At the end all ids are taken over once more, which ends what
is open, and TransactionHistory.check compares what the clients have seen with the logs and the coordinators.

`python -m compat_tests.simulation.transactions --seed N` runs one seed and prints its log; `--seeds N` runs many.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections import Counter
from typing import Any

from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.records import iterate_records
from compat_tests.harness.transaction_history import (
    ABORT,
    COMMIT,
    CoordinatorState,
    LogBatch,
    TransactionHistory,
)
from compat_tests.simulation import checkers
from compat_tests.simulation.admins import Admin, reassign
from compat_tests.simulation.faults import FAR_AHEAD_MS
from compat_tests.simulation.history import Partition
from compat_tests.simulation.simulation import FORMS_WITHIN_S, HEALS_WITHIN_S, Simulation
from compat_tests.simulation.tasks import Task
from compat_tests.simulation.transactional_clients import (
    TIMEOUTS_MS,
    Abortable,
    Coordinators,
    Fenced,
    GaveUp,
    OffsetObserver,
    ReadingConsumer,
    TransactionalProducer,
    Transformer,
)
from compat_tests.simulation.transactional_clients import TRANSACTION as TRANSACTION_KEY
from compat_tests.simulation.tuning import small

INPUT, OUTPUT, GROUP = "input", "output", "copies"
PARTITIONS = 2
DESCRIBE_TRANSACTIONS = 65
ENDS_WITHIN_S = 60.0
SHAPES = (
    ("broker,controller",) * 3,
    ("broker,controller",) * 3,
    ("broker,controller",) * 3 + ("broker",),
    ("controller",) * 3 + ("broker",) * 3,
)
COMMAND = "python -m compat_tests.simulation.transactions --seed"


class TransactionSimulation(Simulation):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(seed).choice(SHAPES))
        self.tasks: list[Task] = []
        self.transactions = TransactionHistory()
        self.works: list[TransactionalProducer] = []
        self.readers: list[ReadingConsumer] = []
        self.states: list[CoordinatorState] = []
        # Where a clock is ahead by more than a week, the ids and producers that it expires may be in use.
        self.faults._kinds = [each for each in self.faults._kinds if each[1] != self.faults._far_ahead]
        for node in self.nodes:
            if abs(node.wall_offset_ms) >= FAR_AHEAD_MS // 2:
                node.wall_offset_ms = 0

    def _choose_properties(self) -> dict[str, str]:
        return {
            **super()._choose_properties(),
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.min.isr": "2",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        }

    # -- the course of the simulation

    def run(self) -> None:
        with self.watch.installed(), small(random.Random(self.random.random())):
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
            self._run_until(HEALS_WITHIN_S, self.is_whole, "the cluster does not heal")
            self._step(3.0)
            self.going_on = False
            self._run_until(ENDS_WITHIN_S, self.is_settled, "clients do not end")
            finish = Task(self.client_runtime, self._finish())
            self._run_until(ENDS_WITHIN_S, lambda: finish.is_done, "transactions do not end")
            self._run_until(HEALS_WITHIN_S, self.is_replicated, "followers do not catch up")
            self._check()

    async def _create(self, admin: Admin) -> None:
        configs = {"min.insync.replicas": "2"}
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
                    self.should_continue,
                )
            )  # fmt: skip
        for name, index in (("t0", 0), ("t1", 1), ("t2", 1)):
            self.works.append(
                Transformer(
                    self.client(name), *shared, f"copy-{index}", self.partitions(OUTPUT), raises_epochs,
                    self.should_continue, group=GROUP, source=self.partitions(INPUT)[index],
                )
            )  # fmt: skip
        everything = [*self.partitions(INPUT), *self.partitions(OUTPUT)]
        self.readers = [
            ReadingConsumer(self.client(f"r{number}"), *shared, everything, self.should_continue)
            for number in range(2)
        ]
        observer = OffsetObserver(
            self.client("offsets"), *shared, GROUP, self.partitions(INPUT), self.should_continue
        )
        works = [
            *(work.run() for work in self.works),
            *(reader.run() for reader in self.readers),
            observer.run(),
            self._move(),
        ]
        self.tasks = [Task(self.client_runtime, work) for work in works]

    async def _move(self) -> None:
        """Partitions of all topics move to other brokers, those of coordinators too."""
        client = self.client("moves")
        while self.going_on:
            await client.pause(client.random.choice((2.0, 5.0)))
            if not self.is_whole():
                continue
            brokers = [node.node_id for node in self.brokers]
            replicas = client.random.sample(brokers, 3)
            topic = client.random.choice((INPUT, OUTPUT, "__transaction_state", "__consumer_offsets"))
            partition = client.random.randrange(PARTITIONS)
            if await reassign(client, topic, partition, replicas):
                self.note(f"{topic}-{partition} moves to {replicas}")
                self.history.count(f"moves of {topic}")

    async def _finish(self) -> None:
        """Take over each id, read everything, and ask for all offsets and states."""
        for work in self.works:
            while True:
                holder = work.holder()
                try:
                    await holder.initialize(TIMEOUTS_MS[-1])
                    break
                except (Fenced, Abortable, GaveUp):
                    continue
        for reader in self.readers:
            await reader.read_to(self._end)
        client = self.client("last")
        observer = OffsetObserver(
            client, self.history, self.transactions, GROUP, self.partitions(INPUT), lambda: True
        )
        for partition in self.partitions(INPUT):
            while await observer.ask(partition) is None:
                await client.pause()
        coordinators = Coordinators(client, self.history, lambda: True)
        for name in sorted({work.transactional_id for work in self.works}):
            state: Any = None
            while state is None or state.error_code:
                request = DescribeTransactionsRequest([name])
                answer = await coordinators.ask(TRANSACTION_KEY, name, DESCRIBE_TRANSACTIONS, 0, request)
                state = answer.transaction_states[0] if answer is not None else None
                await client.pause()
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
        partitions = [*self.partitions(INPUT), *self.partitions(OUTPUT)]
        logs = {
            partition: _batches(checkers._held(self._leader(partition), *partition))
            for partition in partitions
        }
        self.transactions.check(logs, self.states)
        for transaction in self.transactions.transactions:
            self.history.count(f"{transaction.outcome} transactions")


def _batches(held: checkers.Held) -> list[LogBatch]:
    """A log as the checker reads it."""
    found = []
    for header, data in held:
        marker = ""
        values: tuple[bytes, ...] = ()
        if header.is_control:
            (record,) = iterate_records(data)
            marker = COMMIT if int.from_bytes(bytes(record.key or b"")[2:4], "big") == 1 else ABORT
        else:
            values = tuple(bytes(record.value or b"") for record in iterate_records(data))
        found.append(
            LogBatch(
                header.base_offset,
                header.last_offset,
                (header.producer_id, header.producer_epoch),
                header.is_transactional,
                marker,
                values,
                header.base_sequence,
            )
        )
    return found


# -- the command line


def run_seed(seed: int) -> tuple[str, str, Counter[str], list[str]]:
    """(failure or "", its traceback, counters, log) of one seed."""
    simulation = TransactionSimulation(seed)
    failure = details = ""
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed has failed
        failure, details = f"{type(error).__name__}: {error}", traceback.format_exc()
    simulation.history.log.append(
        f"trace {simulation.world.trace:08x}, {simulation.world.now:.3f} simulated seconds"
    )
    return failure, details, Counter(simulation.history.counts), simulation.history.log


def _work(seed: int) -> tuple[int, str, Counter[str]]:
    failure, _, counts, _ = run_seed(seed)
    return seed, failure, counts


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        failure, details, counts, log = run_seed(options.seed)
        print("\n".join([*log, details, *(f"{count:>10}  {what}" for what, count in sorted(counts.items()))]))
        return 1 if failure else 0
    started = time.monotonic()
    total: Counter[str] = Counter()
    failed = 0
    with multiprocessing.get_context("fork").Pool(options.processes, maxtasksperchild=10) as pool:
        for seed, failure, counts in pool.imap_unordered(
            _work, range(options.first, options.first + options.seeds)
        ):
            total += counts
            if failure:
                failed += 1
                print(f"{COMMAND} {seed}   # {failure[:600]}", flush=True)
    print("\n".join(f"{count:>10}  {what}" for what, count in sorted(total.items())))
    print(f"{options.seeds} seeds in {time.monotonic() - started:.0f} s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
