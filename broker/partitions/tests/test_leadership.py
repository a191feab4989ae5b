"""A leader and its followers: commits, in-sync replicas, and what clients and followers get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.partitions import alter_partition
from barnabas.broker.partitions.replica import LocalReplica, RemoteReplica
from barnabas.broker.tests.leader import TIME, TOPIC_ID, Leader
from barnabas.broker.tests.reply import Reply
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.alter_partition import (
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
)
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch

LATEST = -1
LAG_S = 30.0


def silence(leader: Leader) -> None:
    """The controller answers nothing."""
    channel: Any = leader.node.services.controller_channel
    channel.send = lambda *_: None


@pytest.fixture
def leader() -> Leader:
    made = Leader("/d", MemoryDisk())
    made.register(2, 3)
    return made


def latest(leader: Leader, version: int = 10) -> tuple[int, int]:
    """(error, offset) of the end that a consumer gets."""
    wanted = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, LATEST)])
    call = leader.ask(2, version, ListOffsetsRequest(replica_id=-1, topics=[wanted]))
    answer = call.answer.topics[0].partitions[0]
    return answer.error_code, answer.offset


# -- what is committed


def test_acks_all_waits_for_every_replica_in_sync(leader: Leader) -> None:
    leader.create()
    two, three = leader.follower(2), leader.follower(3)
    two.fetch(0)
    three.fetch(0)
    call = leader.produce("a", "b")
    assert not call.done
    two.fetch(2)
    assert not call.done
    assert leader.partition().high_watermark == 0
    three.fetch(2)
    answer = leader.produced(call)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert leader.partition().high_watermark == 2


def test_one_acknowledgement_or_none_waits_for_no_replica(leader: Leader) -> None:
    leader.create()
    assert leader.produced(leader.produce("a", acks=1)).error_code == 0
    assert leader.produce("b", acks=0).outcome is not None
    assert leader.partition().log.log_end_offset == 2
    assert leader.partition().high_watermark == 0


def test_consumers_read_committed_records_and_followers_all(leader: Leader) -> None:
    leader.create()
    leader.produce("a")
    assert leader.fetched(leader.fetch(0)).records == b""
    two, three = leader.follower(2), leader.follower(3)
    given = leader.fetched(two.fetch(0))
    assert given.records
    assert given.high_watermark == 0
    waiting = leader.fetch(0, max_wait_ms=1000)
    two.fetch(1)
    three.fetch(0)
    leader.run()
    assert not waiting.done
    three.fetch(1)
    leader.run()
    seen = leader.fetched(waiting)
    assert seen.records
    assert seen.high_watermark == 1


def test_an_append_answers_a_waiting_follower_at_once(leader: Leader) -> None:
    leader.create()
    waiting = leader.follower(2).fetch(0, wait=True)
    assert not waiting.done
    leader.produce("a")
    leader.run()
    assert leader.fetched(waiting).records


def test_a_follower_gets_the_high_watermark_without_waiting_for_records(leader: Leader) -> None:
    leader.create()
    two, three = leader.follower(2), leader.follower(3)
    two.begin_session(0)
    waiting = two.go_on()
    leader.produce("a")
    leader.run()
    assert leader.fetched(waiting).records
    waiting = two.go_on(1)
    leader.runtime.advance(0.1)
    assert not waiting.done
    three.fetch(0)
    three.fetch(1)
    leader.runtime.advance(0.01)
    answer = leader.fetched(waiting)
    assert (answer.high_watermark, answer.records) == (1, b"")
    waiting = two.go_on()
    leader.runtime.advance(0.4)
    assert not waiting.done, "it knows everything"


def test_a_follower_gets_the_high_watermark_that_its_own_fetch_moves(leader: Leader) -> None:
    leader.create(replicas=[1, 2])
    two = leader.follower(2)
    two.begin_session(0)
    leader.produce("a")
    assert leader.fetched(two.go_on(wait=False)).records
    waiting = two.go_on(1)
    assert leader.partition().high_watermark == 1
    leader.runtime.advance(0.01)
    assert leader.fetched(waiting).high_watermark == 1


def test_a_produce_that_no_follower_fetches_times_out(leader: Leader) -> None:
    leader.create()
    call = leader.produce("a", timeout_ms=1500)
    leader.runtime.advance(1.4)
    assert not call.done
    leader.runtime.advance(0.2)
    answer = leader.produced(call)
    assert (answer.error_code, answer.base_offset) == (E.REQUEST_TIMED_OUT, 0)
    two, three = leader.follower(2), leader.follower(3)
    two.fetch(1)
    three.fetch(1)
    assert leader.partition().high_watermark == 1


def test_a_batch_of_acks_all_is_refused_while_too_few_are_in_sync() -> None:
    leader = Leader("/d", MemoryDisk(), min_insync_replicas="2")
    leader.register(2, 3)
    leader.create(isr=[1])
    assert leader.produced(leader.produce("a")).error_code == E.NOT_ENOUGH_REPLICAS
    assert leader.partition().log.log_end_offset == 0
    assert leader.produced(leader.produce("a", acks=1)).error_code == 0
    assert leader.partition().high_watermark == 0, "below min.insync.replicas nothing is committed (KIP-966)"


def test_the_high_watermark_does_not_move_while_too_few_are_in_sync() -> None:
    leader = Leader("/d", MemoryDisk(), min_insync_replicas="2")
    leader.register(2, 3)
    leader.create(replicas=[1, 2])
    call = leader.produce("a", timeout_ms=1000)
    leader.change(isr=[1])
    assert not call.done
    assert leader.partition().high_watermark == 0
    leader.runtime.advance(1.1)
    assert leader.produced(call).error_code == E.REQUEST_TIMED_OUT


def test_records_that_the_leader_has_not_synced_are_not_committed() -> None:
    leader = Leader("/d", MemoryDisk(), log_flush_interval_messages="1")
    leader.register(2)
    leader.create(replicas=[1, 2])
    leader.runtime.thread_delay_s = lambda: 0.5
    two = leader.follower(2)
    call = leader.produce("a")
    quick = leader.produce("b", acks=1)
    assert leader.fetched(two.fetch(0)).records, "followers need not wait for it"
    two.fetch(2)
    assert not call.done
    assert not quick.done
    assert leader.partition().high_watermark == 0
    leader.runtime.advance(2)
    assert leader.produced(call).error_code == leader.produced(quick).error_code == 0
    assert leader.partition().high_watermark == 2


@pytest.mark.parametrize("flush_messages", ["1", "1000"])
def test_a_waiting_fetch_gets_what_a_reassignment_to_the_leader_commits(flush_messages: str) -> None:
    leader = Leader("/d", MemoryDisk(), log_flush_interval_messages=flush_messages)
    leader.register(2)
    leader.create(replicas=[1, 2])
    delays_s = iter((0.5,) if flush_messages == "1" else ())  # of the sync of the first batch
    leader.runtime.thread_delay_s = lambda: next(delays_s, 0.0)
    leader.produce("a")
    waiting = leader.fetch(0, max_wait_ms=60_000)
    leader.run()
    assert not waiting.done
    epoch = leader.partition().leader_epoch
    leader.change(replicas=[1], isr=[1])
    leader.runtime.advance(0.1)
    assert leader.partition().leader_epoch == epoch
    if flush_messages == "1":  # it is not synced yet
        assert not leader.fetched(waiting).records
        waiting = leader.fetch(0, max_wait_ms=60_000)
        leader.run()
        assert not waiting.done
        leader.runtime.advance(2)
    assert leader.fetched(waiting).records


def test_with_one_replica_nothing_waits(leader: Leader) -> None:
    leader.create(replicas=[1])
    assert leader.produced(leader.produce("a")).error_code == 0
    assert leader.partition().high_watermark == 1


# -- who is in sync


def test_a_replica_that_falls_behind_leaves_the_isr(leader: Leader) -> None:
    leader.create()
    two, three = leader.follower(2), leader.follower(3)
    two.fetch(0)
    three.fetch(0)
    call = leader.produce("a", timeout_ms=120_000)
    for _ in range(100):
        two.fetch(1)
        leader.runtime.advance(0.5)
        if call.done:
            break
    assert leader.state.isr == [1, 2]
    assert leader.produced(call).error_code == 0
    assert LAG_S <= leader.runtime.monotonic() <= 2 * LAG_S + 1
    three.fetch(0)
    leader.run()
    assert leader.state.isr == [1, 2], "it lacks what is committed"
    three.fetch(1)
    leader.run()
    assert leader.state.isr == [1, 2, 3]
    assert leader.partition().isr == [1, 2, 3]


def test_a_replica_that_copies_everything_within_the_lag_stays_in_the_isr(leader: Leader) -> None:
    """Kafka's rule: at or behind the leader's end of its last fetch, it was caught up then."""
    leader.create(replicas=[1, 2])
    two = leader.follower(2)
    for end in range(40):
        leader.produce("a", acks=1)
        two.fetch(end)  # always one behind
        leader.runtime.advance(5)
    assert leader.state.isr == [1, 2]


def test_an_idle_replica_is_in_sync_until_its_last_fetch(leader: Leader) -> None:
    leader.create(replicas=[1, 2])
    two = leader.follower(2)
    two.begin_session(0)
    leader.produce("a", acks=1)
    two.go_on(wait=False)
    two.go_on(1, wait=False)
    for _ in range(400):
        two.go_on(wait=False)
        leader.runtime.advance(0.5)
    leader.produce("b", acks=1)
    leader.runtime.advance(LAG_S - 1)
    assert leader.state.isr == [1, 2], "it has fetched a moment before the append"
    leader.runtime.advance(LAG_S)
    assert leader.state.isr == [1], "and never again"


def test_a_replica_joins_when_it_has_reached_the_high_watermark_and_the_epoch(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    two, three = leader.follower(2), leader.follower(3)
    leader.produce("a", acks=1)
    leader.produce("b", acks=1)
    leader.change(leader=1)  # the same leader in another epoch, which begins at 2, while 0 is committed
    assert leader.partition().knows_high_watermark is False
    three.fetch(1)
    leader.run()
    assert leader.state.isr == [1, 2]
    three.fetch(2)
    leader.run()
    assert leader.state.isr == [1, 2, 3]
    two.fetch(2)
    assert leader.partition().high_watermark == 2


def test_the_high_watermark_waits_for_a_replica_whose_admission_is_proposed(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    silence(leader)
    two, three = leader.follower(2), leader.follower(3)
    three.fetch(0)
    leader.run()
    leader.produce("a", acks=1)
    two.fetch(1)
    assert leader.partition().high_watermark == 0, "3 is being admitted"
    three.fetch(1)
    assert leader.partition().high_watermark == 1


@pytest.mark.parametrize("how", ["fenced", "leaving", "of an older epoch"])
def test_a_follower_that_may_not_join(leader: Leader, how: str) -> None:
    leader.create(isr=[1, 2])
    three = leader.follower(3)
    if how == "fenced":
        leader.fence(3)
        three.fetch(0)
    elif how == "leaving":
        leader.commit(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=103, in_controlled_shutdown=1))
        three.fetch(0)
    else:
        leader.register(3, epoch=200)
        assert leader.fetched(three.fetch(0)).error_code == E.NOT_LEADER_OR_FOLLOWER
    leader.run()
    assert leader.state.isr == [1, 2]
    if how == "fenced":
        leader.fence(3, False)
        three.fetch(0)
        leader.run()
        assert leader.state.isr == [1, 2, 3], "the next fetch finds it eligible"


def test_a_replica_that_an_extension_keeps_out_joins_when_it_may(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    asked: list[tuple[LocalReplica, int, int | None]] = []
    is_ready = False

    def may_take_over(partition: LocalReplica, replica: RemoteReplica) -> bool:
        asked.append((partition, replica.broker_id, replica.broker_epoch))
        return is_ready

    leader.node.services.partitions.rules.may_take_over = may_take_over
    two, three = leader.follower(2), leader.follower(3)
    two.fetch(0)
    assert not asked, "it is in the ISR"
    three.fetch(0)
    leader.run()
    assert asked == [(leader.partition(), 3, 103)]
    assert leader.state.isr == [1, 2]
    is_ready = True
    leadership = leader.partition().leadership
    assert leadership is not None
    leadership.reconsider(3)
    leader.run()
    assert leader.state.isr == [1, 2, 3]
    leadership.reconsider(3)
    leadership.reconsider(4)
    assert len(asked) == 2


def test_an_idle_session_does_not_keep_a_replica_out(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    leader.fence(3)
    three = leader.follower(3)
    three.begin_session(0)
    leader.fence(3, False)
    three.go_on(wait=False)
    leader.run()
    assert leader.state.isr == [1, 2, 3]


def test_a_session_reads_nothing_again_while_a_proposal_is_in_flight(leader: Leader) -> None:
    leader.create(isr=[1])
    silence(leader)
    followers = [leader.follower(2), leader.follower(3)]
    for follower in followers:
        follower.begin_session(0)
        follower.go_on(wait=False)
    sessions = [leader.node.services.fetch_sessions.get(follower.session_id) for follower in followers]
    assert [session is not None and session.active for session in sessions] == [set(), set()]


def test_replicas_join_one_after_the_other_without_another_fetch(leader: Leader) -> None:
    """While a proposal is in flight, the fetches of others count for nothing, so their sessions do not read the partition."""
    leader.create(isr=[1])
    two, three = leader.follower(2), leader.follower(3)
    two.begin_session(0)
    three.begin_session(0)
    leader.run()
    assert leader.state.isr == [1, 2, 3]


def test_the_next_replica_is_proposed_where_the_answer_comes_before_the_metadata(leader: Leader) -> None:
    leader.create(isr=[1])
    proposed: list[list[int]] = []

    def agree(_key: int, request: Any, done: Any) -> None:
        (asked,) = request.topics[0].partitions
        isr = [member.broker_id for member in asked.new_isr_with_epochs]
        proposed.append(isr)
        decided = ResponsePartitionData(
            isr=isr, leader_id=1, leader_epoch=asked.leader_epoch, partition_epoch=asked.partition_epoch + 1
        )
        done(AlterPartitionResponse(topics=[ResponseTopicData(TOPIC_ID, [decided])]), E.NONE)

    channel: Any = leader.node.services.controller_channel
    channel.send = agree
    leader.follower(2).begin_session(0)
    leader.follower(3).begin_session(0)
    leader.run()
    assert proposed == [[1, 2], [1, 2, 3]]


def test_the_session_of_a_replica_that_the_controller_has_refused_counts_again(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    channel: Any = leader.node.services.controller_channel
    send, refused = channel.send, []

    def refuse(key: int, request: Any, done: Any) -> None:
        refused.append(key)
        partition = ResponsePartitionData(0, error_code=E.INELIGIBLE_REPLICA)
        done(AlterPartitionResponse(topics=[ResponseTopicData(TOPIC_ID, [partition])]), E.NONE)

    channel.send = refuse
    three = leader.follower(3)
    three.begin_session(0)
    leader.run()
    assert len(refused) == 1
    assert leader.state.isr == [1, 2]
    channel.send = send
    three.go_on(wait=False)  # before the proposal may be made again
    leader.runtime.advance(1)
    three.go_on(wait=False)
    leader.run()
    assert leader.state.isr == [1, 2, 3]


def test_the_session_of_a_replica_that_has_left_counts_again(leader: Leader) -> None:
    leader.create(isr=[1, 2, 3])
    three = leader.follower(3)
    three.begin_session(0)
    leader.runtime.advance(LAG_S + 1)
    leader.change(isr=[1, 2])
    three.go_on(wait=False)
    leader.run()
    assert leader.state.isr == [1, 2, 3]


def test_a_late_proposal_changes_nothing(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    three = leader.follower(3)
    three.fetch(0)  # proposed with partition epoch 0, sent on the next turn
    leader.change(isr=[1])
    leader.run()
    assert leader.state.isr == [1]
    assert leader.partition().isr == [1]
    three.fetch(0)
    leader.run()
    assert leader.state.isr == [1, 3]


@pytest.mark.parametrize(("request_max", "requests"), [(20, [20]), (8, [8, 8, 4])])
def test_many_changes_are_sent_to_the_controller_in_few_requests(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, request_max: int, requests: list[int]
) -> None:
    monkeypatch.setattr(alter_partition, "REQUEST_MAX", request_max)
    leader.create(isr=[1, 2], partitions=20)
    asked: list[int] = []
    channel: Any = leader.node.services.controller_channel
    send = channel.send

    def counted(key: int, request: Any, done: Any) -> None:
        asked.append(sum(len(topic.partitions) for topic in request.topics))
        send(key, request, done)

    channel.send = counted
    for index in range(20):
        leader.follower(3).fetch(0, index=index)
    leader.run()
    assert asked == requests
    assert all(leader.partition(index).isr == [1, 2, 3] for index in range(20))


def test_proposals_are_retried_while_the_controller_is_unreachable(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    channel: Any = leader.node.services.controller_channel
    send = channel.send
    channel.send = lambda _key, _request, done: done(None, E.REQUEST_TIMED_OUT)
    leader.follower(3).fetch(0)
    leader.runtime.advance(1)
    assert leader.state.isr == [1, 2]
    channel.send = send
    leader.runtime.advance(1)
    assert leader.state.isr == [1, 2, 3]


# -- roles


def test_waiting_requests_are_answered_when_leadership_ends(leader: Leader) -> None:
    leader.create()
    call = leader.produce("a")
    reading = leader.fetch(0, max_wait_ms=1000, version=10)
    leader.change(leader=2)
    answer = leader.produced(call)
    assert answer.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, 1)
    (endpoint,) = call.answer.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, "h2", 9002)
    assert leader.fetched(reading).error_code == E.NOT_LEADER_OR_FOLLOWER
    assert leader.fetcher_calls[-1] == ("following", "t", 0)
    refused = leader.produced(leader.produce("b"))
    assert (refused.error_code, refused.base_offset) == (E.NOT_LEADER_OR_FOLLOWER, -1)
    assert refused.current_leader.leader_id == 2
    late = leader.fetched(leader.follower(3).fetch(0, leader_epoch=1))
    assert late.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert late.current_leader.leader_id == 2
    assert latest(leader) == (E.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_consumer_reads_from_a_follower_up_to_its_high_watermark(leader: Leader) -> None:
    leader.create()
    leader.produce("a")
    leader.change(leader=2)
    assert leader.fetched(leader.fetch(0)).records == b""
    waiting = leader.fetch(0, max_wait_ms=1000)
    leader.partition().set_follower_high_watermark(1)
    leader.run()
    assert leader.fetched(waiting).records
    assert leader.fetched(leader.fetch(0, version=10)).error_code == E.NOT_LEADER_OR_FOLLOWER


def test_a_new_leader_returns_no_offsets_before_its_high_watermark_is_known(leader: Leader) -> None:
    leader.create()
    two, three = leader.follower(2), leader.follower(3)
    leader.produce("a")
    leader.produce("b")
    two.fetch(1)
    three.fetch(1)
    leader.change(leader=2)
    leader.change(leader=1)
    assert leader.fetcher_calls[-2:] == [("following", "t", 0), ("not following", "t", 0)]
    assert leader.partition().high_watermark == 1
    assert latest(leader) == (E.OFFSET_NOT_AVAILABLE, -1)
    assert latest(leader, version=4) == (E.LEADER_NOT_AVAILABLE, -1)
    two.fetch(2)
    three.fetch(2)
    assert latest(leader) == (0, 2)


def end_of(leader: Leader, epoch: int, current: int = 2) -> tuple[int, int, int]:
    """(error, epoch, offset) of the end of a leader epoch."""
    wanted = OffsetForLeaderPartition(0, current, epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic("t", [wanted])])
    answer = leader.ask(23, 4, request).answer.topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


def test_a_leader_whose_session_has_ended_returns_no_offsets(leader: Leader) -> None:
    """Another may lead by now, and have answered with later offsets. Produce and Fetch are served: nothing is committed
    without followers."""
    leader.create()
    leader.produce("a", "b")
    for follower in (leader.follower(2), leader.follower(3)):
        follower.fetch(2)
    partitions = leader.node.services.partitions
    assert (latest(leader), end_of(leader, 0, -1)) == ((0, 2), (0, 0, 2))
    partitions.has_session = lambda: False
    assert latest(leader) == (E.NOT_LEADER_OR_FOLLOWER, -1)
    assert end_of(leader, 0, -1)[0] == E.NOT_LEADER_OR_FOLLOWER
    assert not leader.node.services.partitions.is_led(leader.partition().log), "it removes nothing, either"
    leader.produce("c")
    assert leader.partition().log.log_end_offset == 3
    partitions.has_session = lambda: True
    assert (latest(leader), end_of(leader, 0, -1)) == ((0, 2), (0, 0, 3))


def test_an_epoch_starts_at_the_log_end_of_that_time(leader: Leader) -> None:
    leader.create()
    leader.produce("a")
    leader.change(leader=1)
    leader.produce("b")
    leader.change(leader=1)
    assert end_of(leader, 0) == (0, 0, 1)
    assert end_of(leader, 1) == (0, 1, 2)
    assert end_of(leader, 2) == (0, 2, 2)
    assert end_of(leader, 0, current=1)[0] == E.FENCED_LEADER_EPOCH
    assert end_of(leader, 0, current=3)[0] == E.UNKNOWN_LEADER_EPOCH


def test_a_diverging_follower_gets_the_diverging_epoch(leader: Leader) -> None:
    leader.create()
    leader.produce("a")
    leader.change(leader=1)
    two = leader.follower(2)
    answer = leader.fetched(two.fetch(3, last_epoch=0))
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)
    answer = leader.fetched(two.fetch(2, last_epoch=0))
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)
    leadership = leader.partition().leadership
    assert leadership is not None
    assert leadership.replicas[2].end_offset == -1, "it does not have this"
    assert leader.fetched(two.fetch(1, last_epoch=0)).error_code == 0
    assert leadership.replicas[2].end_offset == 1


def test_fetches_that_a_leader_refuses(leader: Leader) -> None:
    leader.create(replicas=[1, 2])
    leader.register(4)
    assert leader.fetched(leader.follower(4).fetch(0)).error_code == E.UNKNOWN_LEADER_EPOCH
    old = leader.follower(4).fetch(0, leader_epoch=-1)
    assert leader.fetched(old).error_code == E.NOT_LEADER_OR_FOLLOWER
    two = leader.follower(2)
    assert leader.fetched(two.fetch(0, leader_epoch=1)).error_code == E.UNKNOWN_LEADER_EPOCH
    leader.change(leader=1)
    fenced = leader.fetched(two.fetch(0, leader_epoch=0))
    assert fenced.error_code == E.FENCED_LEADER_EPOCH
    assert fenced.current_leader.leader_epoch == 1
    assert leader.fetched(two.fetch(5)).error_code == E.OFFSET_OUT_OF_RANGE
    unnamed = leader.fetched(two.fetch(0, version=13))
    assert unnamed.error_code == E.NOT_LEADER_OR_FOLLOWER, "it names no broker epoch"


def test_a_reassignment_adds_and_removes_a_replica(leader: Leader) -> None:
    leader.create(replicas=[1])
    assert leader.produced(leader.produce("a")).error_code == 0
    leader.change(replicas=[1, 2], adding_replicas=[2])
    call = leader.produce("b")
    assert leader.produced(call).error_code == 0, "2 is not in sync yet"
    two = leader.follower(2)
    two.fetch(0)
    two.fetch(2)
    leader.run()
    assert leader.state.isr == [1, 2]
    waiting = leader.produce("c")
    assert not waiting.done
    leader.change(replicas=[1], isr=[1])
    assert leader.produced(waiting).error_code == 0
    assert leader.produced(leader.produce("d")).error_code == 0
    leader.change(replicas=[2], isr=[2], leader=2)
    assert leader.node.services.partitions.get("t", 0) is None
    assert leader.node.services.log_manager.get("t", 0) is None
    assert leader.fetcher_calls[-1] == ("not following", "t", 0)
    answer_without_leadership = leader.produced(leader.produce("e"))
    assert (answer_without_leadership.error_code, answer_without_leadership.current_leader.leader_id) == (
        E.NOT_LEADER_OR_FOLLOWER,
        2,
    )
    assert leader.fetched(leader.fetch(0)).error_code == E.NOT_LEADER_OR_FOLLOWER
    assert latest(leader)[0] == E.NOT_LEADER_OR_FOLLOWER
    leader.change(replicas=[2, 1])
    assert leader.partition().log.log_end_offset == 0
    assert leader.fetcher_calls[-1] == ("following", "t", 0)


def test_the_high_watermark_survives_a_restart(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.register(2, 3)
    leader.create()
    for value in "abc":
        leader.produce(value)
    leader.follower(2).fetch(2)
    leader.follower(3).fetch(2)
    assert leader.partition().high_watermark == 2
    again = leader.restart(tmp_path)
    assert again.partition().high_watermark == 2
    assert again.partition().log.log_end_offset == 3
    again.node.stop()


# -- deleting records


def delete(leader: Leader, offset: int, timeout_ms: int = 1000) -> Reply:
    wanted = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, offset)])
    return leader.ask(21, 2, DeleteRecordsRequest([wanted], timeout_ms))


def test_delete_records_waits_for_every_live_replica(leader: Leader) -> None:
    leader.create()
    two, three = leader.follower(2), leader.follower(3)
    for value in "abc":
        leader.produce(value)
    two.fetch(2)
    three.fetch(2)
    assert delete(leader, 3).answer.topics[0].partitions[0].error_code == E.OFFSET_OUT_OF_RANGE
    call = delete(leader, 2)
    assert not call.done
    assert leader.partition().log.log_start_offset == 2
    two.fetch(2, start=2)
    assert not call.done
    leader.fence(3)
    two.fetch(3, start=2)
    late = delete(leader, -1)
    assert late.answer.topics[0].partitions[0].low_watermark == 2
    three.fetch(2, start=2)
    answer = call.answer.topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 2)


def test_delete_records_times_out_when_a_replica_does_not_follow(leader: Leader) -> None:
    leader.create()
    leader.produce("a")
    leader.follower(2).fetch(1)
    leader.follower(3).fetch(1)
    call = delete(leader, 1)
    leader.runtime.advance(1.1)
    answer = call.answer.topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (E.REQUEST_TIMED_OUT, -1)
    assert leader.partition().log.log_start_offset == 1


def test_a_replica_that_is_being_admitted_counts_even_while_it_lags(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    two, three = leader.follower(2), leader.follower(3)
    for value in "abc":
        leader.produce(value, acks=1)
    two.fetch(1)
    silence(leader)
    three.fetch(1)
    leader.run()
    two.fetch(3)
    assert leader.partition().high_watermark == 1
    three.fetch(2)
    assert leader.partition().high_watermark == 2


def test_a_new_leadership_starts_without_the_offsets_of_followers(leader: Leader) -> None:
    leader.create()
    leader.produce("a")
    leader.produce("b")
    leader.follower(2).fetch(2)
    leader.change(leader=2)
    leader.change(leader=1, isr=[1, 2])
    assert leader.partition().high_watermark == 0, "2 may have cut its log meanwhile"
    leader.follower(2).fetch(2)
    assert leader.partition().high_watermark == 2


def test_a_skipped_leader_epoch_resets_the_offsets_of_followers(leader: Leader) -> None:
    leader.create()
    two = leader.follower(2)
    waiting = leader.produce("a")
    two.fetch(1)
    leader.commit(  # 3 has led in between, and 2 has followed it: its log may have been cut
        PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, leader=3),
        PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, leader=1, isr=[1, 2]),
    )
    assert leader.partition().high_watermark == 0
    assert leader.produced(waiting).error_code == E.NOT_LEADER_OR_FOLLOWER
    two.fetch(1)
    assert leader.partition().high_watermark == 1


def test_records_that_no_follower_fetches_cost_no_memory_and_wake_readers_when_committed(
    leader: Leader,
) -> None:
    leader.create(replicas=[1, 2])
    for _ in range(600):
        leader.produce("a", acks=1)
    two = leader.follower(2)
    waiting = leader.fetch(0, max_wait_ms=1000)
    two.fetch(300)
    leader.run()
    assert leader.fetched(waiting).records
    waiting = leader.fetch(300, max_wait_ms=1000)
    two.fetch(301)
    leader.run()
    assert leader.fetched(waiting).records


def test_a_callback_that_fails_does_not_stop_the_others(
    leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    leader.create(replicas=[1, 2])

    def fails(_: E) -> None:
        raise ValueError("its own affair")

    leader.produce("a", acks=1)
    leader.partition().when_committed(1, fails)
    call = leader.produce("b")
    leader.follower(2).fetch(2)
    assert leader.produced(call).error_code == 0
    assert "its own affair" in caplog.text


# -- observers


def test_an_observer_delays_no_commit_and_never_joins(leader: Leader) -> None:
    leader.create(isr=[1, 2])
    leader.commit(
        ConfigRecord(resource_type=2, resource_name="t", name="barnabas.observers", value="3"),
        ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="3"),
    )
    two, three = leader.follower(2), leader.follower(3)
    two.fetch(0)
    three.fetch(0)
    leader.run()
    assert leader.state.isr == [1, 2], "it has caught up, and stays outside"
    call = leader.produce("a", "b")
    two.fetch(2)
    assert leader.produced(call).error_code == 0, "min.insync.replicas is at most 2 here"
    assert leader.partition().high_watermark == 2
    three.fetch(2)
    leader.run()
    assert leader.state.isr == [1, 2]
    leadership = leader.partition().leadership
    assert leadership is not None
    assert leadership.readable == [1, 2, 3]
    assert not leadership.is_under_replicated
    leader.change(isr=[1])
    assert leadership.is_under_replicated
    assert leadership.is_under_min_isr


def test_the_only_replica_that_is_no_observer_commits_alone(leader: Leader) -> None:
    leader.create(replicas=[1, 3], isr=[1])
    record = ConfigRecord(resource_type=2, resource_name="t", name="barnabas.observers", value="3")
    leader.commit(record)
    leader.follower(3).fetch(0)
    assert leader.produced(leader.produce("a")).error_code == 0
    assert leader.partition().high_watermark == 1


def test_a_retry_is_acknowledged_though_a_joining_replica_has_died() -> None:
    """It had held the high watermark back."""
    leader = Leader("/d", MemoryDisk())
    leader.register(2, 3)
    leader.create(replicas=[1, 2], isr=[1])

    def produce(sequence: int, timeout_ms: int = 1000) -> Reply:
        records = [Record(0, TIME, None, b"a")]
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        data = PartitionProduceData(0, memoryview(bytearray(batch)))
        topic = TopicProduceData("t", TOPIC_ID, [data])
        return leader.ask(0, 12, ProduceRequest(None, -1, timeout_ms, [topic]))

    produce(0)
    follower = leader.follower(2)
    follower.fetch(0)
    produce(1)
    follower.fetch(1)
    held_back = produce(2)
    leader.fence(2)
    leader.runtime.advance(1.1)
    assert leader.produced(held_back).error_code == E.REQUEST_TIMED_OUT
    again = produce(2, timeout_ms=30_000)
    leader.runtime.advance(60)
    assert leader.produced(again).error_code == 0


def test_what_a_joining_replica_held_back_is_acknowledged_once_laggards_are_looked_for() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.register(2, 3)
    leader.create(replicas=[1, 2], isr=[1])
    leader.produce("a")
    follower = leader.follower(2)
    follower.fetch(0)
    leader.produce("b")
    follower.fetch(1)
    held_back = leader.produce("c")
    leader.fence(2)
    leader.runtime.advance(60)
    assert leader.partition().high_watermark == 3
    assert held_back.done


def test_a_raised_min_isr_counts_before_a_later_change_of_the_isr() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.register(2, 3)
    leader.create(replicas=[1, 2], isr=[1, 2])
    leader.follower(2).fetch(0)
    leader.node.services.partitions._work._working = True  # busy: the logs of a large topic are being created
    leader.commit(ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2"))
    # 2 is fenced. By KIP-966 it stays eligible, as with an ISR below min.insync.replicas nothing is committed without it.
    leader.fence(2)
    leader.change(isr=[1], eligible_leader_replicas=[2])
    call = leader.produce("a")
    assert leader.produced(call).error_code == E.NOT_ENOUGH_REPLICAS
