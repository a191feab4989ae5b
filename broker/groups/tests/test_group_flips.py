"""Leadership of __consumer_offsets that flips while the partition is loaded, a callback of the loop at a time: what
is told is in the log and committed, and what was acknowledged is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator import compacted_records as last_records
from barnabas.broker.tests.one_of_several import View, state
from barnabas.controller.metadata.decision import Decision
from barnabas.runtime import slices as background
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.metadata_records import PartitionChangeRecord
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

PARTITIONS = 20  # of the topic that the group commits for: a load takes more turns than that


class Flipping(View):
    """Node 1, and broker 2 that leads __consumer_offsets-0 at other times. Partition 0's position is what counts."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.register(2)
        self.partitions(*[state(2, [2])] * PARTITIONS)
        assert self.find().error_code == 0
        self.offsets_id = self.node.services.controller.image.topics["__consumer_offsets"].topic_id
        self.lead(1, replicas=[1, 2], directories=[bytes(16), bytes(16)])
        self.runtime.run_until_idle()
        self.log: list[tuple[int, int]] = []  # (end offset, position) of what is in the log
        self.commits: list[tuple[int, int, Any]] = []  # (end offset, position, reply)
        self.asked: list[tuple[int, Any]] = []  # (end offset of what was acknowledged by then, reply)
        self.positions = 0
        self.told = 0
        for partition in reversed(range(PARTITIONS)):
            self.offset(partition)
        self.replicate()
        self.run(10_000)

    @property
    def hosted(self) -> Any:
        return self.node.services.partitions.get("__consumer_offsets", 0)

    def lead(self, leader: int, **more: Any) -> None:
        """The metadata say so; nothing else has happened since."""
        record = PartitionChangeRecord(
            topic_id=self.offsets_id, partition_id=0, leader=leader, isr=[1, 2], **more
        )
        self.node.services.controller.run(lambda _: Decision([record], None), lambda _: None)
        while self.hosted is None or self.hosted.leader_id != leader:
            assert self.runtime.step()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if not self.runtime.step():
                return
            self.check()

    def offset(self, partition: int = 0) -> None:
        """Commit the next position."""
        self.positions += 1
        topic = OffsetCommitRequestTopic(
            name="t",
            partitions=[
                OffsetCommitRequestPartition(partition_index=partition, committed_offset=self.positions)
            ],
        )
        request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
        before = self.hosted.log.log_end_offset
        reply = self.send(8, request, 9)
        end = self.hosted.log.log_end_offset
        if partition == 0:
            self.commits.append((end, self.positions, reply))
            if end > before:
                self.log.append((end, self.positions))

    def ask_position(self) -> None:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
        self.asked.append((self.acknowledged(), self.send(9, request, 9)))

    def send(self, key: int, request: Any, version: int) -> Any:
        """As `ask_later`, and nothing else happens meanwhile."""
        runtime, self.runtime = self.runtime, _Still()  # type: ignore[assignment]
        try:
            return self.ask_later(key, request, version)
        finally:
            self.runtime = runtime

    def acknowledged(self) -> int:
        """End offset of what was acknowledged."""
        done = [end for end, _, reply in self.commits if reply.responses and not _commit_error(reply)]
        return max(done, default=0)

    def replicate(self) -> None:
        if self.hosted.is_leader:
            self.hosted.follower_fetched(2, 102, self.hosted.log.log_end_offset, 0)

    def lose(self, kept: int) -> None:
        """Broker 2 leads, with so much of what was not committed; this one cuts its log accordingly."""
        self.lead(2)
        log = self.hosted.log
        end = min(log.high_watermark + kept, log.log_end_offset)
        if end < log.log_end_offset:
            log.truncate_to(end)
        self.log = [each for each in self.log if each[0] <= end]

    def check(self) -> None:
        """What has been told since."""
        for known, reply in self.asked[self.told :]:
            if not reply.responses:
                continue
            (group,) = reply.responses[0].groups
            if group.error_code:
                assert group.error_code in (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                told = group.topics[0].partitions[0].committed_offset
                committed = {
                    position: end for end, position in self.log if end <= self.hosted.log.high_watermark
                }
                assert told in committed, f"{told} is not committed: {committed}"
                assert committed[told] >= known, f"{told} was told after an acknowledgment"
        self.asked = [each for each in self.asked if not each[1].responses]


class _Still:
    def advance(self, _seconds: float) -> None:
        """Not now."""


def _commit_error(reply: Any) -> int:
    error: int = reply.responses[0].topics[0].partitions[0].error_code
    return error


@pytest.fixture(scope="module")
def slow_loads() -> Iterator[None]:
    """Every step of a load is a turn of the loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "TURN_S", 0)
        patch.setattr(last_records, "STEP", 8)
        yield


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offset"), st.just(0)),
        st.tuples(st.just("ask"), st.just(0)),
        st.tuples(st.just("replicate"), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 2)),
        st.tuples(st.just("lead"), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 2)),
        st.tuples(st.just("run"), st.integers(1, 40)),
        st.tuples(st.just("run"), st.just(200)),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_returned_offsets_are_in_the_log_and_committed(
    slow_loads: None, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    view = Flipping(tmp_path_factory.mktemp("flips"))
    try:
        for what, number in steps:
            if what == "offset":
                view.offset()
            elif what == "ask":
                view.ask_position()
            elif what == "replicate":
                view.replicate()
            elif what == "lose" and view.hosted.is_leader:
                view.lose(number)
            elif what == "lead" and not view.hosted.is_leader:
                view.lead(1)
            elif what == "move" and view.hosted.is_leader:
                view.offset()
                view.lose(number)
                view.lead(1)
                view.run(200)
                view.ask_position()
            elif what == "run":
                view.run(number)
            view.check()
        if not view.hosted.is_leader:
            view.lead(1)
        view.run(10_000)
        view.replicate()
        view.ask_position()
        (_, reply) = view.asked[-1]
        view.run(10_000)
        (group,) = reply.responses[0].groups
        assert group.error_code == E.NONE
        assert group.topics[0].partitions[0].committed_offset == view.log[-1][1]
    finally:
        view.node.stop()


def test_loading_ends_with_its_leader_epoch(slow_loads: None, tmp_path: Path) -> None:
    view = Flipping(tmp_path)
    view.offset()
    view.lose(1)
    view.lead(1)  # begins to load, the offset that nobody else has included
    view.run(5)
    view.ask_position()
    view.check()
    assert not view.asked  # loading: it was told so at once
    view.lose(0)
    view.lead(1)
    groups = view.node.services.groups
    assert groups.shards.is_loading
    view.run(10_000)
    assert not groups.shards.is_loading
    view.ask_position()
    (_, reply) = view.asked[-1]
    view.replicate()
    view.run(10_000)
    position = reply.responses[0].groups[0].topics[0].partitions[0].committed_offset
    assert position == view.log[-1][1] == PARTITIONS
    view.node.stop()
