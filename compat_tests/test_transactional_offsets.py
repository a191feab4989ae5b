"""Groups that consume, transform and produce: outputs and offsets of a transaction count together, over aborts and rebalances."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, Sample
from compat_tests.harness.committed import committed
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.members import await_balance
from compat_tests.harness.transactional_clients import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    READERS,
    Value,
    read_with_confluent,
)
from compat_tests.harness.transformers import TRANSFORMERS, Transformer

PARTITIONS = 4
COUNT = 40  # records of each partition

by_library = pytest.mark.parametrize("library", TRANSFORMERS, ids=lambda one: one.library)

Transform = Callable[[type[Transformer]], Transformer]


def _fill(broker: Broker, source: str, text: str) -> list[Value]:
    sent = []
    for partition in range(PARTITIONS):
        values = [f"{text}-{partition}-{number}" for number in range(COUNT)]
        samples = [Sample(None, value.encode()) for value in values]
        CLIENTS[2].produce(broker.bootstrap, source, samples, partition=partition)
        sent += [(partition, value) for value in values]
    return sent


class Pipeline:
    """Two topics and a group of transformers between them."""

    def __init__(self, broker: Broker, topic: TopicFactory, unique: UniqueName) -> None:
        self.broker = broker
        self.unique = unique
        self.source, self.target = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
        self.group = unique("group")
        self.sent: list[Value] = []
        self.members: list[Transformer] = []
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def fill(self, text: str) -> None:
        self.sent += _fill(self.broker, self.source, text)

    def start(self, library: type[Transformer]) -> Transformer:
        name = self.unique("transformer")
        self.members.append(library(self.broker.bootstrap, self.group, self.source, self.target, name))
        return self.members[-1]

    def await_read(self, count: int) -> None:
        """Wait until that many records are committed in the target."""

        def check() -> bool:
            for member in self.members:
                if member.failure is not None:
                    raise member.failure
            return len(self.read()) >= count

        eventually(check)

    def read(self, isolation_level: str = READ_COMMITTED) -> list[Value]:
        return read_with_confluent(self.broker.bootstrap, self.target, PARTITIONS, isolation_level)

    def check(self) -> None:
        """Every record is copied once, in order; the offsets are those of the ends."""
        self.await_read(len(self.sent))
        for read in READERS:
            found = read(self.broker.bootstrap, self.target, PARTITIONS, READ_COMMITTED)
            for partition in range(PARTITIONS):
                mine = [value for where, value in found if where == partition]
                assert mine == [value for where, value in self.sent if where == partition]
        ends = {partition: len(self.sent) // PARTITIONS for partition in range(PARTITIONS)}
        eventually(lambda: self.offsets() == ends)

    def offsets(self) -> dict[int, int]:
        return {each.partition: each.offset for each in committed(self._admin, self.group)}


@pytest.fixture
def pipeline(broker: Broker, topic: TopicFactory, unique: UniqueName) -> Iterator[Pipeline]:
    made = Pipeline(broker, topic, unique)
    yield made
    for member in made.members:
        member.abandon()


@by_library
def test_every_record_is_copied_once(pipeline: Pipeline, library: type[Transformer]) -> None:
    pipeline.fill("first")
    member = pipeline.start(library)
    pipeline.check()
    pipeline.fill("second")
    pipeline.check()
    member.leave()
    assert member.aborted
    assert len(pipeline.read(READ_UNCOMMITTED)) > len(pipeline.sent)


@by_library
def test_every_record_is_copied_once_while_members_come_and_go(
    pipeline: Pipeline, library: type[Transformer]
) -> None:
    pipeline.fill("first")
    first = pipeline.start(library)
    pipeline.await_read(10)
    second = pipeline.start(library)
    await_balance([first, second], PARTITIONS)
    pipeline.fill("second")
    pipeline.await_read(len(pipeline.sent) - 100)
    first.leave()
    pipeline.fill("third")
    third = pipeline.start(library)
    pipeline.check()
    second.leave()
    third.leave()


def test_libraries_transform_in_one_group(pipeline: Pipeline) -> None:
    pipeline.fill("first")
    members = [pipeline.start(library) for library in TRANSFORMERS]
    await_balance(members, PARTITIONS)
    pipeline.fill("second")
    pipeline.check()
    for member in members:
        member.leave()
    assert any(member.aborted for member in members)
