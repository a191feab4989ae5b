"""Share groups of one shard, by their members' heartbeats and the requests about offsets."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.share.offsets import SharePosition
from barnabas.broker.groups.share.records import CODEC, ShareGroupRecord
from barnabas.broker.groups.share.tests.members import (
    SESSION_MS,
    ShareGroups,
    ShareMember,
    partitions,
    settle,
    topic_id,
)
from barnabas.broker.groups.share.values import Key
from barnabas.broker.groups.tests.conftest import GROUP
from barnabas.controller.metadata.image import MetadataDelta
from barnabas.runtime.slices import run_through
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.metadata_records import RemoveTopicRecord

RETRY_MS = 30_000


@pytest.fixture
def groups() -> ShareGroups:
    found = ShareGroups()
    found.create_topic("orders", 4)
    return found


def held_back(groups: ShareGroups) -> list[Any]:
    """The requests to the share coordinator that wait for an answer; those to come are answered at once."""
    held, groups.share_states.held = groups.share_states.held, []
    groups.share_states.hold = False
    return held


def answer_all(groups: ShareGroups, held: list[Any]) -> None:
    groups.share_states.held = held
    while groups.share_states.held:
        groups.share_states.answer_one()
    groups.clock.run_until_idle()


def deletion_under_way(groups: ShareGroups) -> tuple[list[Any], list[Any]]:
    """Of the states of a group without members: (the requests to the share coordinator, where the answer will be)."""
    groups.share_states.hold = True
    answers: list[Any] = []
    groups.shard.share_offsets.delete(GROUP, ["orders"], lambda *answer: answers.append(answer))
    return held_back(groups), answers


def test_partitions_are_assigned_once_they_are_initialized(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    response = a.heartbeat()
    assert (response.member_epoch, a.assigned) == (2, set())
    assert set(groups.share_states.states.values()) == {(2, -1)}, "the state epoch is the group's"
    assert a.heartbeat().member_epoch == 3
    assert a.assigned == partitions("orders", range(4))
    assert groups.share_group.state_name == "Stable"
    quiet = a.heartbeat()
    assert (quiet.member_epoch, quiet.assignment) == (3, None)


def test_members_share_what_there_is(groups: ShareGroups) -> None:
    a, b = ShareMember(groups, "a", "orders"), ShareMember(groups, "b", "orders")
    settle(a, b)
    assert a.assigned | b.assigned == partitions("orders", range(4))
    assert (len(a.assigned), len(b.assigned)) == (2, 2)
    a.leave()
    settle(b)
    assert b.assigned == partitions("orders", range(4))
    assert a.heartbeat().member_epoch > b.epoch, "it joins again"


def test_more_members_than_partitions_have_one_each() -> None:
    groups = ShareGroups()
    groups.create_topic("orders", 2)
    members = [ShareMember(groups, name, "orders") for name in "abcde"]
    settle(*members)
    assert {len(member.assigned) for member in members} == {1, 2}
    assert groups.share_group.assigned_partitions() == {topic_id("orders"): {0, 1}}


def test_epochs_of_members(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    assert a.epoch == 3

    def error(epoch: int) -> tuple[E, str | None]:
        response = groups.heartbeat_of(a.request(member_epoch=epoch)).response
        return E(response.error_code), response.error_message

    assert error(2) == (E.NONE, None), "the answer with the next epoch was lost"
    assert error(4)[0] == E.FENCED_MEMBER_EPOCH
    fenced = error(1)
    assert fenced[0] == E.FENCED_MEMBER_EPOCH
    assert "does not match the previous member epoch (2)" in (fenced[1] or "")
    assert error(0) == (E.NONE, None), "a member may join again at any time"
    other = ShareMember(groups, "b", "orders")
    unknown = groups.heartbeat_of(other.request(member_epoch=3)).response
    assert unknown.error_code == E.UNKNOWN_MEMBER_ID
    assert unknown.error_message == "Member b is not a member of group group."
    assert other.leave().error_code == E.UNKNOWN_MEMBER_ID


def test_groups_that_are_not_there_or_of_another_kind(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    response = groups.heartbeat_of(a.request(member_epoch=1)).response
    assert (response.error_code, response.error_message) == (
        E.GROUP_ID_NOT_FOUND,
        "Share group group not found.",
    )
    response = a.leave()
    assert (response.error_code, response.error_message) == (E.GROUP_ID_NOT_FOUND, "Group group not found.")
    groups.commit({("orders", 0): 1})  # a classic group
    response = a.heartbeat()
    assert response.error_message == "Group group is not a share group."


def test_classic_members_and_offsets_do_not_mix_with_a_share_group(groups: ShareGroups) -> None:
    settle(ShareMember(groups, "a", "orders"))
    assert groups.join().error == E.INCONSISTENT_GROUP_PROTOCOL
    assert groups.commit({("orders", 0): 1}) == [(E.GROUP_ID_NOT_FOUND, [])]
    deleted: list[Any] = []
    groups.shard.offset_requests.delete(GROUP, {"orders": [0]}, lambda *found: deleted.append(found))
    assert deleted == [(E.GROUP_ID_NOT_FOUND, {})]


def test_a_full_group() -> None:
    groups = ShareGroups(GroupSettings(group_share_max_size=1))
    groups.create_topic("orders", 1)
    a = ShareMember(groups, "a", "orders")
    settle(a)
    response = ShareMember(groups, "b", "orders").heartbeat
    with pytest.raises(AssertionError, match="maximum capacity of 1 members"):
        response()
    assert a.heartbeat().error_code == E.NONE


def test_a_session_ends(groups: ShareGroups) -> None:
    a, b = ShareMember(groups, "a", "orders"), ShareMember(groups, "b", "orders")
    settle(a, b)
    for _ in range(3):
        groups.clock.pass_ms(SESSION_MS / 2)
        b.heartbeat()
    assert list(groups.share_group.members) == ["b"]
    settle(b)
    assert b.assigned == partitions("orders", range(4))
    a.heartbeat()
    assert a.epoch == 0, "it is fenced"


def test_sessions_begin_anew_after_a_load(groups: ShareGroups) -> None:
    settle(ShareMember(groups, "a", "orders"))
    groups.reload()
    assert list(groups.share_group.members) == ["a"]
    groups.clock.pass_ms(SESSION_MS)
    assert groups.share_group.is_empty
    assert groups.share_group.state_name == "Empty"


def test_subscriptions_change(groups: ShareGroups) -> None:
    groups.create_topic("bills", 1)
    a = ShareMember(groups, "a", "orders")
    settle(a)
    a.topics, a.says_all = ["bills"], True
    a.heartbeat()
    assert a.assigned == set(), "topics that it no longer reads are gone at once"
    settle(a)
    assert a.assigned == partitions("bills", [0])
    a.topics, a.says_all = ["bills", "orders"], True
    a.heartbeat()
    assert a.assigned == partitions("bills", [0]) | partitions("orders", range(4))


def test_topics_are_created_deleted_and_grow(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders", "later")
    settle(a)
    groups.create_topic("later", 1)
    settle(a)
    assert a.assigned == partitions("orders", range(4)) | partitions("later", [0])
    groups.create_topic("later", 3, since=1)
    settle(a)
    assert a.assigned >= partitions("later", range(3))
    starts = {
        key.partition: start
        for key, (_, start) in groups.share_states.states.items()
        if key.topic_id == topic_id("later")
    }
    assert starts == {0: -1, 1: 0, 2: 0}, "added partitions begin with their first record"
    groups.delete_topic("later")
    settle(a)
    assert a.assigned == partitions("orders", range(4))
    assert topic_id("later") not in groups.share_group.state_topics.initialized
    groups.create_topic("later", 1, identity="new")
    settle(a)
    assert (topic_id("new"), 0) in a.assigned


def test_topics_that_have_grown_are_found_again_after_a_failed_append(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    groups.create_topic("orders", 6, since=4)
    groups.log.error = E.NOT_ENOUGH_REPLICAS
    assert groups.heartbeat_of(a.request()).error == E.COORDINATOR_NOT_AVAILABLE
    groups.log.error = E.NONE
    for _ in range(3):
        groups.clock.pass_ms(10_000)
        a.heartbeat()
    assert a.assigned == partitions("orders", range(6))


def test_an_initialization_that_fails_is_tried_again(groups: ShareGroups) -> None:
    groups.share_states.errors[groups.key("orders", 3)] = E.UNKNOWN_SERVER_ERROR
    a = ShareMember(groups, "a", "orders")
    settle(a)
    assert a.assigned == partitions("orders", range(3))
    assert not groups.share_group.state_topics.initializing
    groups.share_states.errors.clear()
    settle(a)
    assert a.assigned == partitions("orders", range(4))


def test_a_lost_initialization_is_sent_again_and_its_late_answer_resets_nothing(groups: ShareGroups) -> None:
    groups.share_states.hold = True
    a = ShareMember(groups, "a", "orders")
    a.heartbeat()
    first = held_back(groups)
    settle(a)
    assert a.assigned == set(), "it is waited for"
    groups.clock.pass_ms(RETRY_MS)
    settle(a)
    assert a.assigned == partitions("orders", range(4))
    epochs = {epoch for epoch, _ in groups.share_states.states.values()}
    assert min(epochs) > 2
    key = groups.key("orders", 0)
    groups.share_states.states[key] = (groups.share_states.states[key][0], 17)  # read by now
    answer_all(groups, first)
    assert groups.share_states.states[key][1] == 17


def test_of_two_initializations_the_later_one_counts(groups: ShareGroups) -> None:
    """It resets what was read since the first one took effect, so nothing is assigned before it is answered."""
    groups.share_states.hold = True
    a = ShareMember(groups, "a", "orders")
    a.heartbeat()
    groups.clock.pass_ms(RETRY_MS)
    a.heartbeat()
    assert len(groups.share_states.held) == 8
    for _ in range(4):
        groups.share_states.answer_one()
    settle(a)
    assert a.assigned == set()
    while groups.share_states.held:
        groups.share_states.answer_one()
    groups.share_states.hold = False
    settle(a)
    assert a.assigned == partitions("orders", range(4))


def test_another_coordinator_initializes_at_once_what_was_not_answered(groups: ShareGroups) -> None:
    groups.share_states.hold = True
    a = ShareMember(groups, "a", "orders")
    a.heartbeat()
    groups.share_states.hold = False
    groups.reload()
    assert groups.share_group.state_topics.initializing
    settle(a)
    assert a.assigned == partitions("orders", range(4))
    assert {epoch for epoch, _ in groups.share_states.states.values()} == {3}, "a higher epoch"


def test_many_partitions_are_initialized() -> None:
    groups = ShareGroups()
    groups.create_topic("many", 1000)
    a = ShareMember(groups, "a", "many")
    settle(a)
    assert a.assigned == partitions("many", range(1000))


def test_the_assignment_waits_for_its_interval() -> None:
    groups = ShareGroups(interval_ms=1000)
    groups.create_topic("orders", 1)
    a = ShareMember(groups, "a", "orders")
    settle(a)
    assert (a.epoch, a.assigned) == (2, set())
    groups.clock.pass_ms(1000)
    a.heartbeat()
    assert (a.epoch, a.assigned) == (3, partitions("orders", [0]))


def test_the_clock_of_an_earlier_coordinator_was_ahead() -> None:
    """Its times are still to come: neither the assignment nor a lost initialization waits for them."""
    groups = ShareGroups(interval_ms=1000)
    groups.create_topic("orders", 2)
    a = ShareMember(groups, "a", "orders")
    settle(a)
    groups.clock.wall_offset_ms -= 3_600_000
    groups.reload()
    a.heartbeat()
    assert a.assigned == partitions("orders", [0, 1])
    groups.share_states.hold = True
    groups.create_topic("orders", 3, since=2)
    a.heartbeat()
    groups.clock.wall_offset_ms -= 3_600_000
    groups.share_states.hold = False
    settle(a)
    groups.clock.pass_ms(1000)
    settle(a)
    assert a.assigned == partitions("orders", [0, 1, 2])


def test_a_decision_that_fails_changes_nothing(groups: ShareGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(ShareMember(groups, "a", "orders"))
    before = dict(groups.share_group.values)
    monkeypatch.setattr(groups.shard.share_groups.changes, "step", None)
    with pytest.raises(TypeError):
        ShareMember(groups, "b", "orders").heartbeat()
    assert groups.share_group.values == before


def test_a_failed_append_leaves_the_group_as_it_was(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    groups.log.error = E.NOT_ENOUGH_REPLICAS
    with pytest.raises(AssertionError):
        a.heartbeat()
    assert GROUP not in groups.shard.groups
    assert not groups.share_states.states, "nothing is initialized that is not recorded"
    groups.log.error = E.NONE
    settle(a)
    assert a.assigned == partitions("orders", range(4))


def test_a_member_that_could_not_be_removed_expires(groups: ShareGroups) -> None:
    """Its client has left, and does not ask again."""
    a = ShareMember(groups, "a", "orders")
    settle(a)
    groups.log.hold = True
    answer = groups.heartbeat_of(a.request(member_epoch=-1))
    groups.log.settle(E.NOT_ENOUGH_REPLICAS)
    groups.log.hold = False
    assert answer.response.error_code
    assert set(groups.share_group.members) == {"a"}
    groups.clock.pass_ms(SESSION_MS)
    assert not groups.share_group.members


@pytest.mark.parametrize("key", list(Key))
def test_records_are_read_as_they_were_written(groups: ShareGroups, key: Key) -> None:
    settle(ShareMember(groups, "a", "orders"), ShareMember(groups, "b", "orders"))
    before = dict(groups.share_group.values)
    records = [
        ShareGroupRecord(GROUP, each, name, value) for (each, name), value in before.items() if each == key
    ]
    assert records
    for record in (*records, ShareGroupRecord(GROUP, key, records[0].name, None)):
        key_bytes, value = CODEC.encode(record)
        assert int.from_bytes(key_bytes[:2], "big") == key
        assert CODEC.decode(key, key_bytes, value) == record
    groups.reload()
    assert groups.share_group.values == before


# -- offsets


def described(groups: ShareGroups, **topics: list[int]) -> dict[tuple[str, int], SharePosition]:
    found: list[Any] = []
    groups.shard.share_offsets.describe(GROUP, topics, found.append)
    (positions,) = found
    return dict(positions)


def altered(groups: ShareGroups, starts: dict[tuple[str, int], int]) -> Any:
    found: list[Any] = []
    groups.shard.share_offsets.alter(
        GROUP, {name for name, _ in starts}, starts, lambda *answer: found.append(answer)
    )
    (answer,) = found
    return answer


def deleted(groups: ShareGroups, *names: str) -> Any:
    found: list[Any] = []
    groups.shard.share_offsets.delete(GROUP, names, lambda *answer: found.append(answer))
    (answer,) = found
    return answer


def test_offsets_are_described_with_their_lag(groups: ShareGroups) -> None:
    settle(ShareMember(groups, "a", "orders"))
    states = groups.share_states
    states.states[groups.key("orders", 1)] = (2, 10)
    states.states[groups.key("orders", 2)] = (2, 5)
    states.ends["orders", 1] = 25
    states.errors[groups.key("orders", 3)] = E.UNKNOWN_SERVER_ERROR
    assert groups.shard.share_offsets.initialized(GROUP) == {"orders": [0, 1, 2, 3]}
    assert described(groups, orders=[0, 1, 2, 3], absent=[0]) == {
        ("orders", 0): SharePosition(-1, 3),
        ("orders", 1): SharePosition(10, 3, 15),
        ("orders", 2): SharePosition(0, 0, -1, E.NOT_LEADER_OR_FOLLOWER),
        ("orders", 3): SharePosition(),
    }


def test_offsets_are_altered_while_the_group_is_empty(groups: ShareGroups) -> None:
    error, _, errors = altered(groups, {("orders", 0): 7, ("orders", 9): 7, ("absent", 0): 7})
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert (error, errors) == (E.NONE, {("orders", 9): unknown, ("absent", 0): unknown})
    assert groups.share_states.states == {groups.key("orders", 0): (2, 7)}
    assert groups.share_group.state_name == "Empty"
    assert altered(groups, {("orders", 0): 3})[0] == E.NONE
    assert groups.share_states.states == {groups.key("orders", 0): (3, 3)}, (
        "leaders with the state before are fenced"
    )
    a = ShareMember(groups, "a", "orders")
    settle(a)
    assert a.assigned == partitions("orders", range(4))
    assert groups.share_states.states[groups.key("orders", 0)] == (3, 3), "it is initialized already"
    assert altered(groups, {("orders", 0): 1})[0] == E.NON_EMPTY_GROUP


def test_no_line_for_each_alteration(groups: ShareGroups, caplog: pytest.LogCaptureFixture) -> None:
    """A client may send ten thousand in one write."""
    caplog.set_level("INFO")
    for offset in range(3):
        assert altered(groups, {("orders", 0): offset})[0] == E.NONE
    assert not caplog.records
    settle(ShareMember(groups, "a", "orders"))
    assert "has epoch" in caplog.text


def test_offsets_are_deleted_by_topic(groups: ShareGroups) -> None:
    assert deleted(groups, "orders")[0] == E.GROUP_ID_NOT_FOUND
    a = ShareMember(groups, "a", "orders")
    settle(a)
    assert deleted(groups, "orders")[0] == E.NON_EMPTY_GROUP
    a.leave()
    groups.share_states.errors[groups.key("orders", 1)] = E.UNKNOWN_SERVER_ERROR
    error, _, errors = deleted(groups, "orders", "absent")
    assert error == E.NONE
    assert {name: each[0] for name, each in errors.items()} == {
        "orders": E.UNKNOWN_SERVER_ERROR,
        "absent": E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert groups.share_group.state_topics.deleting == {topic_id("orders"): "orders"}
    groups.share_states.errors.clear()
    assert deleted(groups, "orders") == (E.NONE, None, {"orders": (E.NONE, None)})
    assert not groups.share_states.states
    assert deleted(groups, "orders")[2]["orders"][1] == "There is no offset information to delete."
    settle(a)
    assert a.assigned == partitions("orders", range(4)), "it is initialized again"


def test_a_deleted_group_has_no_states(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    answers: list[Any] = []
    groups.shard.delete_groups([GROUP], answers.append)
    assert answers.pop() == {GROUP: E.NON_EMPTY_GROUP}
    assert groups.share_states.states
    a.leave()
    groups.share_states.errors[groups.key("orders", 1)] = E.UNKNOWN_SERVER_ERROR
    groups.shard.delete_groups([GROUP], answers.append)
    assert answers.pop() == {GROUP: E.UNKNOWN_SERVER_ERROR}
    assert GROUP in groups.shard.groups
    groups.share_states.errors.clear()
    groups.shard.delete_groups([GROUP], answers.append)
    assert answers.pop() == {GROUP: E.NONE}
    assert not groups.share_states.states
    groups.reload()
    assert GROUP not in groups.shard.groups


def test_empty_share_groups_do_not_expire(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    a.leave()
    run_through(groups.shard.offset_requests.expire(2**62))
    assert groups.share_group.is_empty


def test_what_members_have_is_counted_and_bounds_assignments(groups: ShareGroups) -> None:
    usage = groups.shard.store.usage
    a, b = ShareMember(groups, "a", "orders"), ShareMember(groups, "b", "orders")
    settle(a)
    groups.check_counted()
    held = usage.member_bytes
    assert held > groups.share_group.described_bytes
    usage.member_bytes += 512 * 1024 * 1024
    assert groups.heartbeat_of(b.request()).error == E.COORDINATOR_NOT_AVAILABLE
    groups.create_topic("orders", 8, since=4)
    for _ in range(3):
        a.heartbeat()
    assert a.assigned == partitions("orders", range(4)), "it keeps what it has"
    usage.member_bytes -= 512 * 1024 * 1024
    settle(a)
    assert a.assigned == partitions("orders", range(8))
    assert usage.member_bytes > held
    groups.check_counted()
    groups.reload()
    groups.check_counted()


def test_a_coordinator_that_is_none_any_more_promises_nothing(groups: ShareGroups) -> None:
    """Altered offsets whose initialization ends after the groups were unloaded, and groups to delete."""
    groups.share_states.hold = True
    found: list[Any] = []
    groups.shard.share_offsets.alter(
        GROUP, {"orders"}, {("orders", 0): 7}, lambda *answer: found.append(answer)
    )
    groups.shard.unload()
    groups.share_states.answer_one()
    assert found[0][0] == E.NOT_COORDINATOR


def test_groups_are_not_missing_because_their_coordinator_has_moved(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    a.leave()
    groups.share_states.hold = True
    answers: list[Any] = []
    groups.shard.delete_groups([GROUP, "another"], answers.append)
    groups.shard.unload()
    while groups.share_states.held:
        groups.share_states.answer_one()
    assert answers == [{GROUP: E.NOT_COORDINATOR, "another": E.NOT_COORDINATOR}]


def test_a_state_is_not_initialized_while_it_is_deleted(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    a.leave()
    deletions, answers = deletion_under_way(groups)
    settle(a)
    assert a.assigned == set()
    answer_all(groups, deletions)
    assert answers == [(E.NONE, None, {"orders": (E.NONE, None)})]
    settle(a)
    assert a.assigned == partitions("orders", range(4))
    assert len(groups.share_states.states) == 4


def test_only_added_partitions_begin_with_their_first_record(groups: ShareGroups) -> None:
    """Not those that an altered offset of another one, or a failure, left without a state."""
    altered(groups, {("orders", 0): 7})
    groups.share_states.errors[groups.key("orders", 2)] = E.UNKNOWN_SERVER_ERROR
    a = ShareMember(groups, "a", "orders")
    settle(a)
    groups.share_states.errors.clear()
    settle(a)
    starts = {key.partition: start for key, (_, start) in groups.share_states.states.items()}
    assert starts == {0: 7, 1: -1, 2: -1, 3: -1}


def test_offsets_are_not_altered_while_they_are_deleted(groups: ShareGroups) -> None:
    """The late deletion would take away the new state, which counts as initialized."""
    a = ShareMember(groups, "a", "orders")
    settle(a)
    a.leave()
    deletions, answers = deletion_under_way(groups)
    assert altered(groups, {("orders", 0): 7})[0] == E.COORDINATOR_LOAD_IN_PROGRESS
    answer_all(groups, deletions)
    assert answers == [(E.NONE, None, {"orders": (E.NONE, None)})]
    assert altered(groups, {("orders", 0): 7})[0] == E.NONE
    assert groups.share_states.states[groups.key("orders", 0)][1] == 7


def test_a_deletion_that_is_asked_for_twice_leaves_the_next_group_its_states(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    a.leave()
    groups.share_states.hold = True
    answers: list[Any] = []
    groups.shard.delete_groups([GROUP], answers.append)
    groups.shard.delete_groups([GROUP], answers.append)
    deletions = held_back(groups)
    assert answers == [{GROUP: E.COORDINATOR_LOAD_IN_PROGRESS}]
    answer_all(groups, deletions)
    assert answers[1:] == [{GROUP: E.NONE}]
    settle(a)
    assert a.assigned == partitions("orders", range(4))
    assert len(groups.share_states.states) == 4


def test_states_are_not_deleted_while_they_are_initialized(groups: ShareGroups) -> None:
    """A late initialization would leave a state with the epoch of this group, which fences the first ones of the next."""
    a = ShareMember(groups, "a", "orders")
    groups.share_states.hold = True
    a.heartbeat()
    a.leave()
    initializations = held_back(groups)
    assert initializations
    answers: list[Any] = []
    groups.shard.delete_groups([GROUP], answers.append)
    assert answers.pop() == {GROUP: E.COORDINATOR_LOAD_IN_PROGRESS}
    assert deleted(groups, "orders")[0] == E.COORDINATOR_LOAD_IN_PROGRESS
    answer_all(groups, initializations)
    groups.shard.delete_groups([GROUP], answers.append)
    assert answers.pop() == {GROUP: E.NONE}
    assert not groups.share_states.states


def test_after_a_deletion_of_offsets_added_partitions_begin_as_the_others(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    a.leave()
    assert deleted(groups, "orders")[0] == E.NONE
    groups.create_topic("orders", 6, since=4)
    settle(a)
    starts = {key.partition: start for key, (_, start) in groups.share_states.states.items()}
    assert starts == dict.fromkeys(range(6), -1)


def test_a_group_is_deleted_though_a_topic_went_while_its_coordinator_moved(groups: ShareGroups) -> None:
    a = ShareMember(groups, "a", "orders")
    settle(a)
    a.leave()
    groups.image.replay(RemoveTopicRecord(topic_id("orders")), MetadataDelta())
    groups.reload()
    for index in range(4):
        groups.share_states.errors[groups.key("orders", index)] = E.UNKNOWN_TOPIC_OR_PARTITION
    answers: list[Any] = []
    groups.shard.delete_groups([GROUP], answers.append)
    assert answers == [{GROUP: E.NONE}]
