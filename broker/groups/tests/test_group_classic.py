"""The classic group protocol, request by request, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.groups import classic, member
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.state import GroupState
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.join_group import JOIN_GROUP_RESPONSE
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

# -- joining


def test_first_join_asks_for_member_id_and_second_is_alone_and_leader(bench: Any) -> None:
    first = bench.join()
    assert first.error is E.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("client-")
    assert len(first.member_id) == len("client-") + 36
    joined = bench.join(first.member_id)
    assert joined.waiting
    bench.clock.pass_ms(0)
    assert (joined.error, joined.generation_id, joined.leader) == (E.NONE, 1, first.member_id)
    assert [(m.member_id, m.metadata) for m in joined.members] == [(first.member_id, b"m")]
    assert (joined.protocol_type, joined.protocol_name, joined.skip_assignment) == (
        "consumer",
        "range",
        False,
    )
    assert bench.group.state == GroupState.COMPLETING_REBALANCE


def test_a_member_id_has_an_encoding_however_long_the_client_id_is(bench: Any) -> None:
    answer = bench.join(client_id="é" * 16_383)
    JOIN_GROUP_RESPONSE.encode(9, answer.response)
    assert answer.member_id.startswith("é" * 1000 + "-")


def test_before_v4_a_member_joins_at_once(bench: Any) -> None:
    joined = bench.join(version=3)
    bench.clock.pass_ms(0)
    assert joined.error is E.NONE
    assert joined.leader == joined.member_id


def test_join_with_an_id_to_a_missing_group(bench: Any) -> None:
    answer = bench.join("someone")
    assert (answer.error, answer.member_id) == (E.UNKNOWN_MEMBER_ID, "someone")
    assert bench.shard.groups == {}


def test_join_with_an_unknown_id(bench: Any) -> None:
    bench.stable()
    assert bench.join("someone").error is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_timeout_out_of_bounds(bench: Any, session_ms: int) -> None:
    answer = bench.join(session_ms=session_ms)
    assert (answer.error, answer.member_id) == (E.INVALID_SESSION_TIMEOUT, "")
    assert bench.shard.groups == {}


@pytest.mark.parametrize(
    "options",
    [{"protocol_type": "connect"}, {"protocols": [("other", b"")]}, {"protocols": []}],
    ids=["other type", "no common protocol", "no protocols"],
)
def test_inconsistent_protocol(bench: Any, options: dict[str, Any]) -> None:
    bench.stable()
    assert bench.join(**options).error is E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("options", [{"protocol_type": ""}, {"protocols": []}])
def test_new_group_needs_type_and_protocols(bench: Any, options: dict[str, Any]) -> None:
    assert bench.join(**options).error is E.INCONSISTENT_GROUP_PROTOCOL


def test_most_votes_choose_the_protocol(bench: Any) -> None:
    both = [("range", b"r"), ("sticky", b"s")]
    ids = [bench.join(protocols=both).member_id for _ in range(3)]
    answers = [
        bench.join(ids[0], protocols=both),
        bench.join(ids[1], protocols=both[::-1]),
        bench.join(ids[2], protocols=both[::-1]),
    ]
    bench.clock.pass_ms(0)
    assert {answer.protocol_name for answer in answers} == {"sticky"}
    leader = next(answer for answer in answers if answer.members)
    assert {member.metadata for member in leader.members} == {b"s"}


def test_only_a_protocol_all_know_is_a_candidate(bench: Any) -> None:
    wide = [("sticky", b"s"), ("range", b"r")]
    ids = [bench.join(protocols=wide).member_id, bench.join(protocols=wide).member_id, bench.join().member_id]
    answers = [bench.join(each, protocols=wide) for each in ids[:2]] + [bench.join(ids[2])]
    bench.clock.pass_ms(0)
    assert {answer.protocol_name for answer in answers} == {"range"}


def test_duplicate_protocol_names_do_no_harm(bench: Any) -> None:
    doubled = [("range", b"1"), ("range", b"2")]
    member_id = bench.join(protocols=doubled).member_id
    joined = bench.join(member_id, protocols=doubled)
    bench.clock.pass_ms(0)
    assert joined.error is E.NONE
    assert bench.leave(member_id) == [E.NONE]


def test_group_max_size(make_bench: Any) -> None:
    bench = make_bench(GroupSettings(group_max_size=1))
    bench.stable()
    refused = bench.join()
    assert (refused.error, refused.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")


def test_the_oldest_pending_ids_make_room_for_new_ones(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "PENDING_JOINS_MAX", 3)
    ids = [bench.join(session_ms=1_800_000).member_id for _ in range(5)]
    assert list(bench.group.pending_joins) == ids[2:]
    assert bench.join(ids[0]).error is E.UNKNOWN_MEMBER_ID, "the client asks for another id then"
    assert bench.join(ids[4]).waiting
    more = [bench.join(session_ms=1_800_000).member_id for _ in range(2)]
    assert set(bench.group.pending_joins) == {ids[3], *more}, "one that has joined needs no place any more"


def test_a_forgotten_pending_id_holds_no_rebalance(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "PENDING_JOINS_MAX", 1)
    (stable,), _ = bench.stable()
    bench.join(session_ms=1_800_000)
    other = bench.join(group="other")
    assert not bench.group.pending_joins
    assert other.error is E.MEMBER_ID_REQUIRED
    assert bench.join(stable, protocols=[("range", b"changed")]).error is E.NONE, (
        "it waits for no other member"
    )


def test_the_metadata_of_a_groups_members_is_bounded(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "MEMBER_BYTES_OF_GROUP_MAX", 10_000)
    bench.stable(protocols=[("range", bytes(5000))])
    size = bench.group.member_bytes
    refused = bench.join(version=3, protocols=[("range", bytes(5000))])
    assert (refused.error, refused.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    many = bench.join(version=3, protocols=[("range", b""), *((f"p{number}", b"") for number in range(50))])
    assert many.error is E.GROUP_MAX_SIZE_REACHED, "an object costs as much as what is in it"
    assert len(bench.group.members) == 1
    assert bench.group.member_bytes == bench.shard.rebalancer.usage.member_bytes == size


def test_the_metadata_of_all_groups_of_a_broker_is_bounded(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "MEMBER_BYTES_MAX", 10_000)
    bench.stable(protocols=[("range", bytes(5000))])
    refused = bench.join(version=3, protocols=[("range", bytes(5000))], group="other")
    assert refused.error is E.COORDINATOR_NOT_AVAILABLE
    bench.shard.store.drop(bench.group, E.NOT_COORDINATOR)
    assert bench.shard.rebalancer.usage.member_bytes == 0
    assert bench.join(version=3, protocols=[("range", bytes(5000))], group="other").waiting


def test_member_bytes_are_counted_from_join_to_leave(bench: Any) -> None:
    counted = bench.shard.rebalancer.usage
    (member,), _ = bench.stable(protocols=[("range", bytes(100))])
    small = counted.member_bytes
    bench.join(member, protocols=[("range", bytes(1100))])
    bench.clock.pass_ms(1)
    assert counted.member_bytes == small + 1000
    assert bench.restarted().shard.rebalancer.usage.member_bytes > 0
    bench.leave(member)
    assert counted.member_bytes == bench.group.member_bytes == 0


def test_initial_delay_gathers_members_and_is_prolonged_by_newcomers(make_bench: Any) -> None:
    bench = make_bench(GroupSettings(group_initial_rebalance_delay_ms=3_000))
    first = bench.join(version=3)
    bench.clock.pass_ms(2_000)
    second = bench.join(version=3)
    bench.clock.pass_ms(1_500)  # 3.5 s: the first delay has passed, the newcomer prolonged it
    assert first.waiting
    assert second.waiting
    bench.clock.pass_ms(2_500)  # 6 s: nobody came since
    assert first.generation_id == second.generation_id == 1
    assert len(bench.group.members) == 2


def test_initial_delay_ends_with_the_rebalance_timeout(make_bench: Any) -> None:
    bench = make_bench(GroupSettings(group_initial_rebalance_delay_ms=3_000))
    answers = []
    for _ in range(8):  # somebody new every second
        answers.append(bench.join(version=3, rebalance_ms=7_000))
        bench.clock.pass_ms(1_000)
    assert answers[0].generation_id == 1
    assert bench.clock.monotonic() <= 8


# -- rebalances


def test_newcomer_rebalances_and_others_learn_by_heartbeat(bench: Any) -> None:
    (member,), generation = bench.stable()
    newcomer = bench.join(bench.join().member_id)
    assert bench.group.state == GroupState.PREPARING_REBALANCE
    assert bench.heartbeat(member, generation) is E.REBALANCE_IN_PROGRESS
    rejoined = bench.join(member)
    assert (newcomer.generation_id, rejoined.generation_id) == (generation + 1, generation + 1)
    assert newcomer.members == []
    assert len(rejoined.members) == 2


def test_a_member_that_does_not_rejoin_in_time_is_removed(bench: Any) -> None:
    (member,), generation = bench.stable(rebalance_ms=7_000)
    newcomer = bench.join(bench.join().member_id, rebalance_ms=5_000)
    for _ in range(7):
        assert newcomer.waiting
        bench.heartbeat(member, generation)
        bench.clock.pass_ms(1_000)
    assert (newcomer.error, newcomer.leader) == (E.NONE, newcomer.member_id)
    assert bench.heartbeat(member, generation) is E.UNKNOWN_MEMBER_ID


def test_a_pending_member_holds_the_rebalance_until_its_session_ends(bench: Any) -> None:
    (member,), generation = bench.stable()
    second = bench.join(bench.join().member_id)
    bench.join(session_ms=6_000)  # a third is given an id and never comes back
    rejoined = bench.join(member)
    assert rejoined.waiting
    bench.clock.pass_ms(5_900)
    assert rejoined.waiting
    bench.clock.pass_ms(100)
    assert rejoined.generation_id == second.generation_id == generation + 1


def test_leader_rejoin_rebalances_a_stable_group(bench: Any) -> None:
    (leader, follower), generation = bench.stable(2)
    assert bench.join(follower).generation_id == generation  # nothing new: told what is
    assert bench.group.state == GroupState.STABLE
    again = bench.join(leader)
    assert again.waiting
    assert bench.group.state == GroupState.PREPARING_REBALANCE
    bench.join(follower)
    assert again.generation_id == generation + 1


def test_changed_subscription_rebalances(bench: Any) -> None:
    (_, follower), _generation = bench.stable(2)
    assert bench.join(follower, protocols=[("range", b"other")]).waiting
    assert bench.group.state == GroupState.PREPARING_REBALANCE


def test_lost_join_answer_is_repeated(bench: Any) -> None:
    member_id = bench.join().member_id
    bench.join(member_id)
    bench.clock.pass_ms(0)
    repeated = bench.join(member_id)
    assert (repeated.generation_id, len(repeated.members)) == (1, 1)


def test_a_second_join_supersedes_the_first(bench: Any) -> None:
    (member,), generation = bench.stable()
    bench.join()  # a pending member keeps the rebalance open
    first = bench.join(member)
    second = bench.join(member)
    assert first.error is E.REBALANCE_IN_PROGRESS
    assert second.waiting
    bench.clock.pass_ms(10_000)
    assert second.generation_id == generation + 1


def test_rejoin_while_others_sync_sends_them_back(bench: Any) -> None:
    ids = [bench.join().member_id for _ in range(2)]
    answers = [bench.join(member_id) for member_id in ids]
    bench.clock.pass_ms(0)
    follower = next(each for each in ids if each != answers[0].leader)
    synced = bench.sync(follower, 1)
    assert synced.waiting
    bench.join(bench.join().member_id)
    assert synced.error is E.REBALANCE_IN_PROGRESS


# -- syncing


def test_sync_delivers_to_all_once_stored(bench: Any) -> None:
    ids = [bench.join().member_id for _ in range(3)]
    answers = [bench.join(member_id) for member_id in ids]
    bench.clock.pass_ms(0)
    leader = answers[0].leader
    followers = [each for each in ids if each != leader]
    early = bench.sync(followers[0], 1)
    assert early.waiting
    bench.log.hold = True
    led = bench.sync(leader, 1, {each: each.encode() for each in ids[:2]})
    assert early.waiting
    assert led.waiting
    bench.log.settle()
    assert bench.group.state == GroupState.STABLE
    late = bench.sync(followers[1], 1)
    by_id = {leader: led, followers[0]: early, followers[1]: late}
    for member_id, answer in by_id.items():
        assert answer.assignment == (member_id.encode() if member_id in ids[:2] else b"")
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


def test_sync_errors(bench: Any) -> None:
    assert bench.sync("who", 1).error is E.UNKNOWN_MEMBER_ID
    (member,), generation = bench.stable()
    assert bench.sync("who", generation).error is E.UNKNOWN_MEMBER_ID
    assert bench.sync(member, generation + 1).error is E.ILLEGAL_GENERATION
    assert bench.sync(member, generation, protocol_name="x").error is E.INCONSISTENT_GROUP_PROTOCOL
    assert bench.sync(member, generation, protocol_type="x").error is E.INCONSISTENT_GROUP_PROTOCOL
    assert bench.sync(member, generation, protocol_type=None, protocol_name=None).error is E.NONE
    bench.join(bench.join().member_id)
    assert bench.sync(member, generation).error is E.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_sync_is_removed(bench: Any) -> None:
    ids = [bench.join().member_id for _ in range(2)]
    answers = [bench.join(member_id, rebalance_ms=8_000) for member_id in ids]
    bench.clock.pass_ms(0)
    leader = answers[0].leader
    follower = next(each for each in ids if each != leader)
    bench.sync(leader, 1, {})
    for _ in range(8):
        bench.heartbeat(leader, 1)
        bench.heartbeat(follower, 1)
        bench.clock.pass_ms(1_000)
    assert list(bench.group.members) == [leader]
    assert bench.group.state == GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_assignment_that_cannot_be_stored(bench: Any, failure: E, told: E) -> None:
    member_id = bench.join().member_id
    bench.join(member_id)
    bench.clock.pass_ms(0)
    bench.log.error = failure
    synced = bench.sync(member_id, 1, {member_id: b"x"})
    assert synced.error is told
    assert bench.group.state == GroupState.PREPARING_REBALANCE
    bench.log.error = E.NONE
    again = bench.join(member_id)
    assert again.generation_id == 2
    assert bench.sync(member_id, 2, {member_id: b"x"}).assignment == b"x"


def test_join_while_the_assignment_is_appended(bench: Any) -> None:
    member_id = bench.join().member_id
    bench.join(member_id)
    bench.clock.pass_ms(0)
    bench.log.hold = True
    synced = bench.sync(member_id, 1, {member_id: b"x"})
    bench.join(bench.join().member_id)
    assert synced.error is E.REBALANCE_IN_PROGRESS
    bench.log.settle()
    assert bench.group.state == GroupState.PREPARING_REBALANCE


# -- heartbeats and sessions


def test_heartbeat_errors(bench: Any) -> None:
    assert bench.heartbeat("who", 1) is E.UNKNOWN_MEMBER_ID
    (member,), generation = bench.stable()
    assert bench.heartbeat("who", generation) is E.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(member, generation - 1) is E.ILLEGAL_GENERATION
    assert bench.heartbeat(member, generation) is E.NONE
    assert bench.heartbeat(member, generation, "no-such-instance") is E.UNKNOWN_MEMBER_ID


def test_silence_ends_a_session_and_heartbeats_keep_it(bench: Any) -> None:
    (leader, follower), generation = bench.stable(2)
    for _ in range(30):
        bench.clock.pass_ms(1_000)
        assert bench.heartbeat(leader, generation) is E.NONE
        assert bench.heartbeat(follower, generation) is E.NONE
    for _ in range(9):
        bench.clock.pass_ms(1_000)
        assert bench.heartbeat(leader, generation) is E.NONE
    bench.clock.pass_ms(1_000)
    assert list(bench.group.members) == [leader]
    assert bench.heartbeat(leader, generation) is E.REBALANCE_IN_PROGRESS


def test_heartbeats_create_no_timers(bench: Any) -> None:
    (member,), generation = bench.stable()
    before = bench.clock.scheduled
    for _ in range(1000):
        bench.clock.pass_ms(1)
        bench.heartbeat(member, generation)
    assert bench.clock.scheduled == before


def test_last_session_ends_and_the_group_is_empty_in_the_log(bench: Any) -> None:
    _ids, generation = bench.stable()
    bench.clock.pass_ms(10_000)
    bench.clock.pass_ms(30_000)
    assert bench.group.state == GroupState.EMPTY
    assert bench.group.generation_id == generation + 1
    restarted = bench.restarted()
    assert restarted.group.state is GroupState.EMPTY
    assert restarted.group.generation_id == generation + 1


def test_waiting_for_a_rebalance_keeps_a_session(bench: Any) -> None:
    (member,), generation = bench.stable(session_ms=6_000, rebalance_ms=60_000)
    bench.join(session_ms=50_000)  # pending, holds the rebalance open
    waiting = bench.join(member, session_ms=6_000, rebalance_ms=60_000)
    bench.clock.pass_ms(40_000)
    assert waiting.waiting
    bench.clock.pass_ms(10_000)
    assert waiting.generation_id == generation + 1


def test_a_new_member_that_vanished_does_not_wait_forever(bench: Any) -> None:
    (member,), generation = bench.stable(rebalance_ms=600_000)
    newcomer = bench.join(bench.join().member_id, rebalance_ms=600_000)
    for _ in range(300):
        bench.heartbeat(member, generation)
        bench.clock.pass_ms(1_000)
    assert newcomer.error is E.UNKNOWN_MEMBER_ID


# -- leaving


def test_leave(bench: Any) -> None:
    assert bench.leave("who") == [E.UNKNOWN_MEMBER_ID]
    (leader, follower), _generation = bench.stable(2)
    assert bench.leave("who", follower) == [E.UNKNOWN_MEMBER_ID, E.NONE]
    assert bench.group.state == GroupState.PREPARING_REBALANCE
    assert bench.leave(leader) == [E.NONE]
    assert bench.group.state == GroupState.EMPTY
    assert bench.leave(leader) == [E.UNKNOWN_MEMBER_ID]


def test_leave_of_the_last_member_fails_with_the_record_of_the_empty_group(bench: Any) -> None:
    (member,), _ = bench.stable()
    bench.log.error = E.NOT_ENOUGH_REPLICAS
    request = LeaveGroupRequest("group", members=[MemberIdentity(member)])
    assert bench.shard.classic.leave(request).error_code == E.COORDINATOR_NOT_AVAILABLE
    assert bench.group.is_empty
    bench.log.error = E.NONE
    (member,), _ = bench.stable()
    request = LeaveGroupRequest("group", members=[MemberIdentity(member)])
    assert bench.shard.classic.leave(request).error_code == E.NONE


def test_leave_of_a_waiting_member_answers_it(bench: Any) -> None:
    (member,), _generation = bench.stable()
    newcomer_id = bench.join().member_id
    newcomer = bench.join(newcomer_id)
    assert bench.leave(newcomer_id) == [E.NONE]
    assert newcomer.error is E.UNKNOWN_MEMBER_ID
    assert bench.join(member).generation_id == 2


def test_leave_of_a_pending_member_releases_the_rebalance(bench: Any) -> None:
    (member,), generation = bench.stable()
    pending_id = bench.join().member_id
    rejoined = bench.join(member)
    assert rejoined.waiting
    assert bench.leave(pending_id) == [E.NONE]
    assert rejoined.generation_id == generation + 1


def test_leader_leaves_and_another_leads(bench: Any) -> None:
    (leader, follower), generation = bench.stable(2)
    bench.leave(leader)
    rejoined = bench.join(follower)
    assert (rejoined.leader, rejoined.generation_id) == (follower, generation + 1)
    assert len(rejoined.members) == 1


# -- static members


def stable_static(bench: Any, *instances: str, version: int = 9) -> dict[str, str]:
    answers = {instance: bench.join(instance=instance, version=version) for instance in instances}
    bench.clock.pass_ms(0)
    ids = {instance: answer.member_id for instance, answer in answers.items()}
    leader = bench.group.leader_id
    assignments = {member_id: member_id.encode() for member_id in ids.values()}
    for member_id in sorted(ids.values(), key=lambda each: each != leader):
        assert bench.sync(member_id, bench.group.generation_id, assignments).error is E.NONE
    return ids


def test_static_member_returns_without_a_rebalance(bench: Any) -> None:
    ids = stable_static(bench, "a", "b")
    generation = bench.group.generation_id
    follower = next(each for each, member_id in ids.items() if member_id != bench.group.leader_id)
    back = bench.join(instance=follower)
    assert (back.error, back.generation_id, back.members) == (E.NONE, generation, [])
    assert not back.skip_assignment
    assert back.member_id != ids[follower]
    assert back.member_id.startswith(follower + "-")
    assert bench.group.state == GroupState.STABLE
    assert bench.sync(back.member_id, generation, instance=follower).assignment == ids[follower].encode()
    assert bench.heartbeat(ids[follower], generation, follower) is E.FENCED_INSTANCE_ID
    assert bench.restarted().group.static_members == bench.group.static_members


def test_static_leader_returns_v9_with_skip_assignment(bench: Any) -> None:
    stable_static(bench, "a")
    back = bench.join(instance="a")
    assert (back.skip_assignment, back.leader, len(back.members)) == (True, back.member_id, 1)


def test_static_leader_returns_before_v9_with_the_old_leaders_id(bench: Any) -> None:
    ids = stable_static(bench, "a", version=8)
    back = bench.join(instance="a", version=8)
    assert (back.skip_assignment, back.leader, back.members) == (False, ids["a"], [])


def test_static_member_returns_with_another_protocol_choice(bench: Any) -> None:
    stable_static(bench, "a")
    back = bench.join(instance="a", protocols=[("sticky", b""), ("range", b"m")])
    assert back.generation_id == 2
    assert back.protocol_name == "sticky"


def test_static_replacement_that_cannot_be_stored_is_reverted(bench: Any) -> None:
    ids = stable_static(bench, "a", "b")
    generation = bench.group.generation_id
    bench.log.error = E.NOT_ENOUGH_REPLICAS
    back = bench.join(instance="a")
    assert (back.error, back.member_id) == (E.COORDINATOR_NOT_AVAILABLE, "")
    assert bench.group.static_members == ids
    assert bench.heartbeat(ids["a"], generation, "a") is E.NONE
    assert bench.group.awaiting_join_count == 0


def test_replacing_a_static_member_that_waits_fences_it(bench: Any) -> None:
    ids = stable_static(bench, "a", "b")
    first = bench.join(ids["a"], instance="a", protocols=[("range", b"new")])
    assert first.waiting
    second = bench.join(instance="a")
    assert first.error is E.FENCED_INSTANCE_ID
    assert second.waiting
    bench.join(ids["b"], instance="b")
    assert second.generation_id == 2


def test_replacement_during_sync_starts_over(bench: Any) -> None:
    first = bench.join(instance="a")
    bench.clock.pass_ms(0)
    synced = bench.join(instance="b")
    assert first.generation_id == 1
    bench.join(first.member_id, instance="a")
    assert synced.generation_id == 2
    waiting = bench.sync(synced.member_id, 2, instance="b")
    assert waiting.waiting
    bench.join(instance="a")
    assert waiting.error is E.REBALANCE_IN_PROGRESS
    assert bench.group.state == GroupState.PREPARING_REBALANCE


def test_wrong_member_id_for_an_instance(bench: Any) -> None:
    ids = stable_static(bench, "a")
    answer = bench.join("other", instance="a")
    assert (answer.error, answer.protocol_name) == (E.FENCED_INSTANCE_ID, None)
    assert bench.join(ids["a"], instance="z").error is E.UNKNOWN_MEMBER_ID
    assert bench.sync("other", 1, instance="a").error is E.FENCED_INSTANCE_ID
    assert (
        bench.commit({("t", 0): 1}, member_id="other", generation=1, instance="a")[0][0]
        is E.FENCED_INSTANCE_ID
    )


def test_static_members_survive_a_rebalance_they_miss_until_their_session_ends(bench: Any) -> None:
    ids = stable_static(bench, "a", "b")
    bench.group.members[ids["b"]].rebalance_timeout_ms = 8_000
    rejoined = bench.join(ids["a"], instance="a", protocols=[("range", b"new")], rebalance_ms=8_000)
    bench.clock.pass_ms(8_000)
    assert rejoined.generation_id == 2
    assert rejoined.leader == ids["a"]
    assert {member.group_instance_id for member in rejoined.members} == {"a", "b"}
    bench.clock.pass_ms(10_000)
    assert ids["b"] not in bench.group.members


def forbid_many_timers(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of timers that are due at once would not end."""
    schedule, end = bench.clock.call_later, bench.clock.scheduled + 20

    def call_later(delay_s: float, callback: Callable[[], object]) -> Any:
        assert bench.clock.scheduled < end
        return schedule(delay_s, callback)

    monkeypatch.setattr(bench.clock, "call_later", call_later)


def test_static_members_that_allow_no_time_are_not_awaited_over_and_over(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    static = bench.join(instance="a", rebalance_ms=0, session_ms=1_800_000)
    other = bench.join(version=3, rebalance_ms=60_000)
    bench.clock.pass_ms(0)
    leader, generation = static.leader, static.generation_id
    for each in (static, other):
        bench.sync(each.member_id, generation, {leader: b"x"} if each.member_id == leader else {})
    forbid_many_timers(bench, monkeypatch)
    bench.leave(other.member_id)
    bench.clock.pass_ms(1_500)
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert bench.join(static.member_id, instance="a", rebalance_ms=0).generation_id == generation + 1


def test_a_negative_rebalance_timeout_has_passed_at_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_many_timers(bench, monkeypatch)
    bench.join(version=3, rebalance_ms=-5000)
    bench.clock.pass_ms(2_000)
    assert bench.group.is_empty


def test_administrator_removes_by_instance_id(bench: Any) -> None:
    ids = stable_static(bench, "a", "b")
    assert bench.leave(("", "a"), ("", "z"), ("", None)) == [E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID]
    assert bench.leave((ids["b"], "a"), ("x", "b")) == [E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID]
    assert list(bench.group.static_members) == ["b"]


def test_pending_id_with_an_instance_id_is_refused(bench: Any) -> None:
    member_id = bench.join().member_id
    assert bench.join(member_id, instance="a").error is E.UNKNOWN_SERVER_ERROR


# -- restart


def test_restart_keeps_a_stable_group_and_its_members(bench: Any) -> None:
    ids, generation = bench.stable(2)
    after = bench.restarted()
    assert after.group.state == GroupState.STABLE
    assert (after.group.leader_id, after.group.generation_id) == (bench.group.leader_id, generation)
    for member_id in ids:
        assert after.heartbeat(member_id, generation) is E.NONE
        assert after.sync(member_id, generation).assignment == member_id.encode()
    after.clock.pass_ms(10_000)
    assert after.group.members == {}


def test_restart_forgets_pending_members(bench: Any) -> None:
    bench.join()
    after = bench.restarted()
    assert after.group.state == GroupState.EMPTY
    assert (after.group.generation_id, after.group.pending_joins) == (0, {})


def test_restart_with_a_lower_group_max_size_rebalances(bench: Any, make_bench: Any) -> None:
    bench.stable(3)
    after = make_bench(GroupSettings(group_max_size=2))
    after.log.batches = bench.log.batches
    after.load()
    assert after.group.state == GroupState.PREPARING_REBALANCE
    answers = [after.join(member_id) for member_id in list(after.group.members)]
    assert [answer.error for answer in answers if not answer.waiting] == [E.GROUP_MAX_SIZE_REACHED]


def test_new_group_that_cannot_be_stored_leaves_no_trace(bench: Any) -> None:
    bench.log.error = E.NOT_ENOUGH_REPLICAS
    joined = bench.join(version=3)
    assert joined.error is E.COORDINATOR_NOT_AVAILABLE
    assert bench.shard.groups == {}


def test_unload_answers_all_waiting_requests(bench: Any) -> None:
    (member,), _generation = bench.stable()
    bench.join()
    waiting = bench.join(member)
    bench.shard.unload()
    assert waiting.error is E.NOT_COORDINATOR
    bench.clock.pass_ms(1_000_000)


def test_members_do_not_time_out_when_the_coordinator_stood_still(bench: Any) -> None:
    ids, generation = bench.stable(2)
    bench.clock.pass_ms(9_000)  # of 10,000
    bench.clock.hold_until(bench.clock.monotonic() + 14)
    bench.clock.pass_ms(14_000)
    assert [bench.heartbeat(member_id, generation) for member_id in ids] == [E.NONE] * 2
    bench.clock.pass_ms(9_999)
    assert bench.heartbeat(ids[0], generation) == E.NONE
    bench.clock.pass_ms(1)
    assert bench.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID
