"""Followers and their leaders: copying, divergence as the KIPs tell it, errors, restarts, quotas."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import pytest

from barnabas.broker.replica_fetcher.fetcher import TURN_BATCHES
from barnabas.broker.replica_fetcher.state import Status
from barnabas.broker.tests.replicas import Replicas
from barnabas.controller.metadata.image import NO_LEADER
from barnabas.storage.log.follower_append import FollowerAppend
from barnabas.storage.log.log import Log
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from barnabas.wire.records import Record, build_batch


def test_followers_copy_their_leader() -> None:
    replicas = Replicas()
    errors = replicas.produce(1, "a", "b", "c", acks=-1)
    replicas.run(0.01)
    assert errors == [ErrorCode.NONE] * 3
    replicas.run(0.1)
    for broker_id in replicas.ids:
        assert replicas[broker_id].messages == ["a", "b", "c"]
        assert replicas[broker_id].log.high_watermark == 3
    replicas.check_identical()


class Appends:
    """Of the followers: how many batches each call appended, and at which event of the world."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replicas: Replicas) -> None:
        self.at: list[tuple[int, int]] = []
        append = Log.append_as_follower

        def counted(log: Log, *arguments: Any) -> FollowerAppend:
            result = append(log, *arguments)
            self.at.append(
                (replicas.world.events_count, len(arguments[0][: result.size]) // SMALL_BATCH_BYTES)
            )
            return result

        monkeypatch.setattr(Log, "append_as_follower", counted)

    def most(self) -> int:
        """In one event."""
        batches: Counter[int] = Counter()
        for event, count in self.at:
            batches[event] += count
        return max(batches.values())


SMALL = "v"
SMALL_BATCH_BYTES = len(build_batch([Record(0, 0, None, SMALL.encode())]))


def behind(count: int = 5500, **properties: str) -> Replicas:
    """Broker 2 has been down while so many small batches were written, and is about to start."""
    replicas = Replicas(1, (1, 2), None, **properties)
    replicas.kill(2)
    replicas.produce(1, *[SMALL] * count)
    replicas.run()
    return replicas


def catch_up_to(replicas: Replicas, offset: int) -> None:
    """Start broker 2, and stop right after it has passed this offset."""
    replicas.start(2)
    replicas.tell(2)
    while replicas[2].log.log_end_offset < offset:
        assert replicas.world.step(replicas.world.now + 1)


def test_many_small_batches_are_appended_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = behind()
    appends = Appends(monkeypatch, replicas)
    catch_up_to(replicas, 5500)
    assert len({event for event, _ in appends.at}) >= 6
    assert appends.most() == TURN_BATCHES
    replicas.run()
    replicas.check_identical()
    assert replicas[2].log.high_watermark == 5500


def test_a_slice_is_appended_where_the_one_before_has_left_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = behind(10)
    catch_up_to(replicas, 10)
    replicas.run()
    (fetcher,) = replicas[2].fetchers._fetchers.values()
    replicas.network.block("h1", "h2")
    appends = Appends(monkeypatch, replicas)
    (state,) = fetcher._session.states.values()
    log = state.partition.log
    small = build_batch([Record(0, 0, None, SMALL.encode())])
    fetcher._batches_left = 3

    def records(first: int, count: int) -> memoryview:
        batches = bytearray(small * count)
        for number in range(count):
            batches[number * len(small) : number * len(small) + 8] = struct.pack(">q", first + number)
        return memoryview(batches)

    data = records(10, 5)
    fetcher._append(state, data, 10, 0)
    data[:] = bytes(len(data))  # its buffer is used again
    assert log.log_end_offset == 13
    fetcher._append(state, records(13, 5), 10, 0)  # a second answer about the same
    assert log.log_end_offset == 13
    replicas.run(0.01)
    assert log.log_end_offset == 15, "the second one speaks of what has changed"
    assert (state.status, state.failures) == (Status.READY, 0)
    assert appends.most() == 3
    fetcher._batches_left = 0
    fetcher._append(state, records(15, 5), 10, 0)
    fetcher.remove(*state.key)
    replicas.run(0.01)
    assert log.log_end_offset == 15, "it is fetched no more"


def test_the_lag_is_that_of_the_last_answer() -> None:
    replicas = Replicas(1, (1, 2))
    replicas.produce(1, *"abc")
    replicas.run()
    manager = replicas[2].fetchers
    assert manager.max_lag() == 0
    replicas.network.block("h1", "h2")
    (fetcher,) = manager._fetchers.values()
    (state,) = fetcher._session.states.values()
    fetcher._append(state, memoryview(b""), 7, 0)
    assert manager.max_lag() == 4
    fetcher.remove(*state.key)
    assert manager.max_lag() == 0


def test_an_answer_that_a_later_request_has_overtaken_still_tells_the_high_watermark() -> None:
    """Two requests are in flight, and the answer to the first has brought a record. The leader counts what the second answer says as
    known here and does not repeat it."""
    replicas = Replicas(1, (1, 2))
    replicas.produce(1, *"abc")
    replicas.run()
    replicas.network.block("h1", "h2")
    (fetcher,) = replicas[2].fetchers._fetchers.values()
    session = fetcher._session
    (state,) = session.states.values()
    log = state.partition.log
    batch = bytearray(build_batch([Record(0, 0, None, b"d")]))
    batch[:8] = struct.pack(">q", 3)
    log.append_as_follower(memoryview(bytes(batch)), state.leader_epoch, 1)
    number = session.request_number
    session.changed(state)
    session.next_request(2, -1)
    topic_id, index = state.key
    answer = PartitionData(
        partition_index=index, high_watermark=4, log_start_offset=0, records=memoryview(batch)
    )
    response = FetchResponse(
        session_id=session.id, responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[answer])]
    )
    fetcher._answered(number, response)
    assert log.high_watermark == 4
    assert log.log_end_offset == 4


def test_remaining_batches_are_dropped_when_the_log_has_a_new_role() -> None:
    replicas = behind(9500)
    catch_up_to(replicas, 2000)
    replicas.elect(2)  # takes a few events, and so slices
    end = replicas[2].log.log_end_offset
    assert end < 9500
    replicas.produce(2, "new")
    replicas.run()
    assert replicas[2].log.log_end_offset == end + 1
    assert replicas[2].messages[-1] == "new"
    replicas.check_identical()


def test_a_sync_that_a_slice_awaits_covers_all_of_them() -> None:
    """flush.messages is reached in one slice and not in the next ones: the follower goes on all the same."""
    replicas = behind(2100, log_flush_interval_messages="900")
    catch_up_to(replicas, 2100)
    replicas.run()
    (fetcher,) = replicas[2].fetchers._fetchers.values()
    assert fetcher._session.ready_count == 1
    assert replicas[1].partition.log.high_watermark == 2100
    replicas.produce(1, "more")
    replicas.run()
    replicas.check_identical()


def test_a_follower_restarts_and_catches_up() -> None:
    replicas = Replicas()
    replicas.produce(1, "a", "b")
    replicas.run()
    replicas.kill(3)
    replicas.produce(1, "c", "d")
    replicas.run()
    replicas.start(3)
    replicas.tell(3)
    replicas.run()
    assert replicas[3].messages == ["a", "b", "c", "d"]
    replicas.check_identical()


def test_a_wiped_follower_begins_at_the_leaders_start() -> None:
    replicas = Replicas()
    replicas.produce(1, *"abcdef")
    replicas.run()
    replicas[1].log.increment_log_start_offset(4)
    replicas.run(0.6)
    assert [replicas[broker_id].log.log_start_offset for broker_id in replicas.ids] == [4, 4, 4]
    replicas.kill(2)
    replicas.wipe(2)
    replicas.start(2)
    replicas.tell(2)
    replicas.run()
    log = replicas[2].log
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (4, 6, 6)
    assert replicas[2].messages == ["e", "f"]


def test_retention_is_the_leaders_and_followers_take_its_start_over() -> None:
    """A follower whose clock is ahead removes nothing of what its leader has."""
    replicas = Replicas(
        log_retention_ms="86400000", log_initial_task_delay_ms="100", log_retention_check_interval_ms="200"
    )
    for value in ("a", "b"):
        replicas.produce(1, value)
        for replica in replicas.alive.values():
            replicas.run(0.05)
            replica.log.roll()
    replicas[2].runtime.wall_offset_ms += 400 * 86_400_000
    replicas.run(2)
    assert [replicas[broker_id].messages for broker_id in replicas.ids] == [["a", "b"]] * 3
    replicas[1].log.increment_log_start_offset(1)
    replicas.run(2)
    assert [replicas[broker_id].log.segments[0].base_offset for broker_id in replicas.ids] == [1, 1, 1]
    replicas.check_identical()


def test_a_start_inside_a_batch() -> None:
    """DeleteRecords up to the middle of a batch: an empty follower gets the whole batch and hides its beginning."""
    from barnabas.wire.records import Record, build_batch

    replicas = Replicas()
    replicas.kill(2)
    leader = replicas[1]
    batch = build_batch([Record(at, leader.runtime.time_ms(), None, b"%d" % at) for at in range(6)])
    leader.partition.append(memoryview(bytearray(batch)))
    replicas.run()
    replicas.elect(1, [1, 3])
    replicas.produce(1, "x")
    replicas.run()
    leader.log.increment_log_start_offset(4)
    replicas.wipe(2)
    replicas.start(2)
    replicas.tell(2)
    replicas.run()
    log = replicas[2].log
    assert (log.log_start_offset, log.log_end_offset) == (4, 7)
    replicas.check_identical()


def test_kip_101_scenario_1_the_high_watermark_is_not_what_is_cut_to() -> None:
    """B has m2, but does not know yet that it is committed; B restarts, and A dies before B asks it anything. With
    the high watermark alone B would cut m2 off, become leader, and A would lose it as well."""
    replicas = Replicas(ids=(1, 2))
    replicas.produce(1, "m1")
    replicas.run()
    a, b = replicas[1], replicas[2]
    before = b.log.high_watermark
    errors = replicas.produce(1, "m2", acks=-1)
    while not errors:
        replicas.run(0.00005)
    assert b.log.log_end_offset == 2
    assert b.log.high_watermark == before == 1  # the answer that tells it is still on its way
    replicas.kill(2)
    replicas.start(2)
    assert a.log.high_watermark == 2
    replicas.kill(1)
    replicas.tell(2)
    replicas.elect(2)
    assert replicas[2].messages == ["m1", "m2"]
    replicas.start(1)
    replicas.tell(1)
    replicas.run()
    assert replicas[1].messages == replicas[2].messages == ["m1", "m2"]


def test_kip_101_scenario_2_logs_that_would_diverge_for_good() -> None:
    """A and B lose power at once. B, which lacks m2, comes back first, leads, and takes m3 at m2's offset; A comes back
    with m2 there. Epochs tell A to cut m2 off."""
    replicas = Replicas(ids=(1, 2))
    replicas.produce(1, "m1")
    replicas.run()
    replicas.network.block("h1", "h2")
    replicas.produce(1, "m2")
    replicas[1].log.flush()
    replicas[2].log.flush()
    replicas.run(0.01)
    assert replicas[2].messages == ["m1"]
    replicas.kill(1, 2, power_fails=True)
    replicas.network.unblock_all()
    replicas.start(2)
    replicas.tell(2)
    replicas.elect(2)
    replicas.produce(2, "m3")
    replicas.start(1)
    assert replicas[1].messages == ["m1", "m2"]
    replicas.tell(1)
    replicas.run(2)
    assert replicas[1].messages == replicas[2].messages == ["m1", "m3"]
    replicas.check_identical()


def test_of_records_that_the_leader_has_deleted_a_follower_keeps_none_of_its_own() -> None:
    """A has a1 and a2 where B, which leads without A, commits b1 and b2 and deletes all of its records. B's epochs no longer tell
    where A's log parted from its own."""
    replicas = Replicas(ids=(1, 2))
    replicas.produce(1, "m1")
    replicas.run()
    replicas.network.block("h1", "h2")
    replicas.network.block("h2", "h1")
    replicas.produce(1, "a1", "a2", "a3")
    replicas.elect(2, [2])
    replicas.produce(2, "b1", "b2")
    replicas[2].log.increment_log_start_offset(3)
    replicas.network.unblock_all()
    log = replicas[1].log
    while log.log_end_offset > 3:
        assert replicas.world.step(replicas.world.now + 5)
    assert (log.log_start_offset, replicas[1].messages) == (3, []), (
        "before A fetches again, and may lead again"
    )
    replicas.produce(2, "b3")
    replicas.run()
    assert replicas[1].messages == replicas[2].messages == ["b3"]
    replicas.check_identical()


def test_a_follower_whose_log_diverged_gets_the_high_watermark_of_a_leader_without_news() -> None:
    """B has led an epoch without a record, and has lost its high watermark. The answer that names the divergence has the leader's,
    and is not used for it."""
    replicas = Replicas(ids=(1, 2))
    replicas.produce(1, "m1")
    replicas.run()
    replicas.elect(2, [1, 2])
    replicas.kill(2)
    replicas.elect(1, [1])
    replicas.start(2)
    assert replicas[2].log.high_watermark == 0
    replicas.tell(2)
    replicas.run(5)
    assert replicas[2].log.high_watermark == 1


def test_kip_279_fast_leader_changes_with_an_epoch_that_the_follower_never_saw() -> None:
    """B was leader of epoch 1 and wrote; A led epoch 2 without having seen epoch 1, and wrote; now B follows A. The
    offsets of B's epoch 1 lie where A has epoch 2: compared by A's largest epoch not above B's, B cuts back to where
    epoch 0 ended in both."""
    replicas = Replicas(ids=(1, 2))
    replicas.produce(1, "m1", "m2")
    replicas.run()
    replicas.network.block("h1", "h2")
    replicas.network.block("h2", "h1")
    replicas.elect(2)
    replicas.produce(2, "b1", "b2", "b3")
    replicas.elect(1)
    replicas.produce(1, "a1", "a2", "a3", "a4", "a5")
    replicas.network.unblock_all()
    replicas.run(5)
    assert replicas[1].messages == ["m1", "m2", "a1", "a2", "a3", "a4", "a5"]
    replicas.check_identical()


def test_kip_279_the_epochs_of_both_interleave(caplog: pytest.LogCaptureFixture) -> None:
    """Both have led in turn, unseen by the other; several rounds of comparing are needed to find what they share."""
    replicas = Replicas(ids=(1, 2))
    replicas.produce(1, "m1")
    replicas.run()
    replicas.network.block("h1", "h2")
    replicas.network.block("h2", "h1")
    for leader, value in ((2, "b"), (1, "a"), (2, "b"), (1, "a"), (2, "b")):
        replicas.elect(leader)
        replicas.produce(leader, value, value)
    assert replicas[1].messages == ["m1", "a", "a", "a", "a"]
    replicas.network.unblock_all()
    replicas.run(5)
    assert replicas[1].messages == replicas[2].messages == ["m1", "b", "b", "b", "b", "b", "b"]
    assert "cutting the log back from 5 to 3" in caplog.text
    replicas.check_identical()


def test_a_leader_that_wrote_nothing_in_its_epoch_follows_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.replication")
    replicas = Replicas()
    replicas.produce(1, "m1")
    replicas.run()
    for leader in (2, 3, 1, 3):
        replicas.elect(leader, [1, 2, 3])
    replicas.produce(3, "m2")
    replicas.run()
    assert [replicas[broker_id].messages for broker_id in replicas.ids] == [["m1", "m2"]] * 3
    assert "cutting" not in caplog.text, "nothing was"


def test_raos_example() -> None:
    """Five messages, three replicas. A leads and commits m1 and m2; m3 is in A alone when A fails. B leads, commits m4
    and m5. A comes back: m3 goes, and all end with m1, m2, m4, m5."""
    replicas = Replicas()
    errors = replicas.produce(1, "m1", "m2", acks=-1)
    replicas.run()
    assert errors == [ErrorCode.NONE] * 2
    for follower in ("h2", "h3"):
        replicas.network.block("h1", follower)
        replicas.network.block(follower, "h1")
    unlucky = replicas.produce(1, "m3", acks=-1)
    replicas.run(0.05)
    assert not unlucky
    replicas.kill(1)
    replicas.network.unblock_all()
    replicas.elect(2, [2, 3])
    errors = replicas.produce(2, "m4", "m5", acks=-1)
    replicas.run()
    assert errors == [ErrorCode.NONE] * 2
    replicas.start(1)
    assert replicas.network.hosts["h1"] is replicas[1].runtime
    replicas.tell(1)
    replicas.run()
    for broker_id in replicas.ids:
        assert replicas[broker_id].messages == ["m1", "m2", "m4", "m5"]
    replicas.check_identical()


def test_a_new_leader_is_fetched_from_at_once() -> None:
    """Though a fetch from it waits already, for other partitions' records, and could for half a second more."""
    replicas = Replicas()
    replicas.produce(1, "a")
    replicas.run()
    replicas.elect(2, [2, 3, 1])
    began = replicas.world.now
    errors = replicas.produce(2, "b", acks=-1)
    while not errors:
        replicas.run(0.001)
    assert replicas.world.now - began < 0.05


def test_the_number_of_fetchers_changes_while_they_fetch() -> None:
    replicas = Replicas()
    errors = [replicas.produce(1, "a", acks=-1)]
    replicas.run()
    follower = replicas[2]
    wheres = set()
    for count in (2, 3, 1, 5):
        follower.fetchers.resize(count, [follower.partition])
        (where,) = follower.fetchers._assigned.values()
        wheres.add(where)
        assert list(follower.fetchers._fetchers) == [where], "none is left without partitions"
        errors.append(replicas.produce(1, f"with {count}", acks=-1))
        replicas.run()
    assert len(wheres) > 1
    assert errors == [[ErrorCode.NONE]] * 5
    replicas.check_identical()


def test_a_partition_without_a_leader_is_not_fetched() -> None:
    replicas = Replicas()
    replicas.produce(1, "a")
    replicas.run()
    replicas.elect(NO_LEADER, [1])
    replicas.run()
    assert all(not replicas[broker_id].fetchers._fetchers for broker_id in replicas.ids)


@pytest.mark.parametrize("flush_messages", [1, 3])
def test_a_follower_acknowledges_only_what_it_has_synced(flush_messages: int) -> None:
    replicas = Replicas(log_flush_interval_messages=str(flush_messages))
    for broker_id in (2, 3):
        replicas[broker_id].runtime.thread_delay_s = lambda: 0.02
    errors = replicas.produce(1, *"abcdef", acks=-1)
    replicas.run(0.015)
    assert len(errors) < 6
    replicas.run(1)
    assert errors == [ErrorCode.NONE] * 6
    replicas.check_identical()


def test_connecting_to_a_stopped_leader_is_retried_with_backoff() -> None:
    replicas = Replicas()
    replicas.produce(1, "a")
    replicas.run()
    replicas.kill(1)
    attempts: list[float] = []
    runtime = replicas[2].runtime
    connect = runtime.connect

    def counted(*args: object, **fields: object) -> object:
        attempts.append(replicas.world.now)
        return connect(*args, **fields)  # type: ignore[arg-type]

    runtime.connect = counted  # type: ignore[method-assign, assignment]
    replicas.run(20)
    assert 15 < len(attempts) < 60
    assert attempts[1] - attempts[0] < 0.1
    replicas.start(1)
    replicas.tell(1)
    replicas.elect(1, [1, 2, 3])
    errors = replicas.produce(1, "b", acks=-1)
    replicas.run(2)
    assert errors == [ErrorCode.NONE]
