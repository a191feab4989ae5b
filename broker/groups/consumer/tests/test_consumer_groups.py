"""Consumer groups: timeouts, epochs, regular expressions, offsets, and what a restart finds. Errors and answers to single requests are
compared with Apache Kafka's in compat_tests/conform."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgspec
import pytest

from barnabas.broker.groups.consumer import changes, expressions
from barnabas.broker.groups.consumer.records import CODEC, ConsumerGroupRecord
from barnabas.broker.groups.consumer.tests.members import (
    SESSION_MS,
    ConsumerMember,
    Groups,
    all_partitions,
    settle,
    topic_id,
)
from barnabas.broker.groups.consumer.tests.test_conversion import subscription
from barnabas.broker.groups.consumer.values import Key, MemberState
from barnabas.broker.groups.member import Client
from barnabas.broker.groups.modern import room
from barnabas.broker.groups.records import encode_batch
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.tests.conftest import GROUP, Answer, Clock
from barnabas.controller.metadata.image import GROUP_RESOURCE
from barnabas.runtime.slices import run_through
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


def two_members(groups: Groups) -> tuple[ConsumerMember, ConsumerMember]:
    """Level members of a topic with four partitions."""
    groups.create_topic("orders", 4)
    members = ConsumerMember(groups, "a", "orders"), ConsumerMember(groups, "b", "orders")
    settle(groups, *members)
    return members


def test_partitions_move_when_their_owner_has_given_them_up() -> None:
    groups = Groups()
    groups.create_topic("orders", 4)
    a, b = ConsumerMember(groups, "a", "orders"), ConsumerMember(groups, "b", "orders")
    a.heartbeat()
    assert a.owned == all_partitions(groups, "orders")
    b.heartbeat()
    assert b.owned == set()
    a.heartbeat()  # hears what it is to give up
    b.heartbeat()
    assert b.owned == set()
    a.heartbeat()  # says that it has
    b.heartbeat()
    assert len(a.owned) == len(b.owned) == 2
    assert a.owned | b.owned == all_partitions(groups, "orders")


def test_a_silent_member_is_removed_after_its_session() -> None:
    groups = Groups()
    a, b = two_members(groups)
    groups.clock.pass_ms(SESSION_MS - 1)
    a.heartbeat()
    assert sorted(groups.consumer_group.members) == ["a", "b"]
    groups.clock.pass_ms(2)
    assert sorted(groups.consumer_group.members) == ["a"]
    settle(groups, a)
    assert a.owned == all_partitions(groups, "orders")
    assert b.heartbeat().error_code == E.UNKNOWN_MEMBER_ID


def test_a_member_that_gives_nothing_up_is_fenced_after_its_rebalance_timeout() -> None:
    groups = Groups()
    groups.create_topic("orders", 4)
    a = ConsumerMember(groups, "a", "orders", rebalance_timeout_ms=10_000)
    a.heartbeat()
    a.is_slow = True
    b = ConsumerMember(groups, "b", "orders")
    b.heartbeat()
    a.heartbeat()
    for _ in range(9):
        groups.clock.pass_ms(1000)
        request = a.request()
        request.topic_partitions = None  # still there, and still reading
        assert groups.heartbeat_of(request).error_code == E.NONE
    groups.clock.pass_ms(1001)
    assert sorted(groups.consumer_group.members) == ["b"]
    settle(groups, b)
    assert b.owned == all_partitions(groups, "orders")


def test_the_target_is_computed_once_in_an_interval() -> None:
    """KIP-1263: many members that join at once are assigned partitions together."""
    groups = Groups(interval_ms=1000)
    groups.create_topic("orders", 4)
    members = [ConsumerMember(groups, name, "orders") for name in "abcd"]
    for member in members:
        member.heartbeat()
    assert groups.consumer_group.target_epoch.epoch < groups.consumer_group.epoch
    assert groups.consumer_group.state_name == "Assigning"
    groups.clock.pass_ms(1000)
    settle(groups, *members)
    assert [len(member.owned) for member in members] == [1] * 4


def test_a_heartbeat_that_says_nothing_new_needs_no_decision() -> None:
    """That its answer is the same as by a decision, `heartbeat_of` asserts for all heartbeats of these tests."""
    groups = Groups()
    a, _ = two_members(groups)
    consumer, client = groups.shard.consumer, Client("client", "/127.0.0.1", 1)

    def is_renewed(client: Client = client, **fields: Any) -> bool:
        request = ConsumerGroupHeartbeatRequest(GROUP, a.member_id, a.epoch)
        for name, value in fields.items():
            setattr(request, name, value)
        return consumer.renewed(request, client) is not None

    assert is_renewed()
    assert is_renewed(topic_partitions=a.request().topic_partitions)
    assert not is_renewed(member_epoch=a.epoch - 1)
    assert not is_renewed(member_epoch=-1)
    assert not is_renewed(member_id="c")
    assert not is_renewed(group_id="others")
    assert not is_renewed(subscribed_topic_names=["orders"])
    assert not is_renewed(client=Client("another", "/127.0.0.1", 1))
    groups.clock.pass_ms(SESSION_MS - 1)
    assert is_renewed()
    groups.clock.pass_ms(SESSION_MS - 1)
    assert sorted(groups.consumer_group.members) == ["a"], "its session has been renewed"
    assert not is_renewed(), "the other member is gone"
    settle(groups, a)
    assert is_renewed()
    groups.create_topic("orders", 6, since=4)
    assert not is_renewed(), "its topic has changed"
    settle(groups, a)
    groups.log.hold = True
    assert is_renewed(), "nothing that it says is pending"
    groups.consumer_group.apply(Key.TARGET, "", None)
    assert not is_renewed(), "a log from which the target is lost"


def test_the_clock_of_the_coordinator_before_was_ahead() -> None:
    """Its last assignment is still to come: the next one does not wait for it."""
    groups = Groups(interval_ms=1000)
    groups.create_topic("orders", 2)
    a = ConsumerMember(groups, "a", "orders")
    settle(groups, a)
    groups.clock.wall_offset_ms -= 3_600_000
    b = ConsumerMember(groups, "b", "orders")
    settle(groups, a, b)
    assert len(b.owned) == 1


def test_topics_that_change_are_found_with_the_next_heartbeat() -> None:
    groups = Groups()
    a, b = two_members(groups)
    groups.create_topic("orders", 6, since=4)
    settle(groups, a, b)
    assert len(a.owned) == len(b.owned) == 3
    groups.delete_topic("orders")
    settle(groups, a, b)
    assert a.owned == b.owned == set()
    epoch = groups.consumer_group.epoch
    groups.create_topic("others", 1)
    settle(groups, a, b)
    assert groups.consumer_group.epoch == epoch, "no member reads it"


def test_an_expression_matches_topics_that_come_and_go() -> None:
    groups = Groups()
    groups.create_topic("orders", 1)
    a = ConsumerMember(groups, "a", subscribed_topic_regex="o.*|p.*")
    a.heartbeat()
    assert a.owned == set()
    settle(groups, a)
    assert a.owned == all_partitions(groups, "orders")
    groups.create_topic("people", 1)
    groups.create_topic("x", 1)
    groups.clock.pass_ms(10_001)
    a.heartbeat()
    settle(groups, a)
    assert a.owned == all_partitions(groups, "orders", "people")
    epoch = groups.consumer_group.epoch
    groups.clock.pass_ms(10_001)
    settle(groups, a)
    assert groups.consumer_group.epoch == epoch, "nothing has changed"
    a.leave()
    assert not groups.consumer_group.resolved


def test_expressions_are_resolved_one_after_the_other() -> None:
    groups = Groups(is_slow=True)
    assert groups.work is not None
    chosen = random.Random(1)
    for _ in range(20):
        groups.create_topic("".join(chosen.choices("abcdefghij", k=40)), 1)
    for number in range(20):
        member = ConsumerMember(groups, f"m{number}", subscribed_topic_regex=f".*[a-e].{{60}}x{number}")
        member.heartbeat()
    groups.work.go_on()
    groups.clock.pass_ms(10_001)
    member.epoch = groups.consumer_group.current(member.member_id).epoch
    member.heartbeat()
    tracemalloc.start()
    groups.work.go_on()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(groups.consumer_group.resolved) == 20
    assert peak < 5_000_000


def test_a_turn_may_end_after_each_name_that_an_expression_is_compared_with() -> None:
    groups = Groups(is_slow=True)
    assert groups.work is not None
    for number in range(10):
        groups.create_topic(f"t{number}", 1)
    for number in range(10):
        member = ConsumerMember(groups, f"m{number}", subscribed_topic_regex=f"x{number}")
        groups.shard.consumer.heartbeat(member.request(), Client("client", "/127.0.0.1", 1), Answer())
    groups.shard.expressions.refresh(GROUP, lambda _: True)
    groups.work.go_on(10 * 10)
    assert groups.consumer_group.is_resolving
    groups.work.go_on()
    assert len(groups.consumer_group.resolved) == 10


@pytest.mark.parametrize(("bytes_max", "append"), [(3, E.NONE), (100, E.MESSAGE_TOO_LARGE)])
def test_expressions_that_could_not_be_resolved_are_tried_again_later(
    bytes_max: int, append: E, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups()
    groups.create_topic("orders", 1)
    a = ConsumerMember(groups, "a", subscribed_topic_regex="o.*")
    resolver = groups.shard.expressions
    groups.shard.consumer.heartbeat(a.request(), Client("client", "/127.0.0.1", 1), Answer())
    assert resolver.is_due(GROUP)
    monkeypatch.setattr(expressions, "RESULT_BYTES_MAX", bytes_max)
    groups.log.error = append
    resolver.refresh(GROUP, lambda _: True)
    groups.clock.run_until_idle()
    assert not groups.consumer_group.resolved
    assert not resolver.is_due(GROUP)
    groups.log.error = E.NONE
    monkeypatch.setattr(expressions, "RESULT_BYTES_MAX", 100)
    groups.clock.pass_ms(10_001)
    settle(groups, a)
    settle(groups, a)
    assert a.owned == all_partitions(groups, "orders")


def test_an_assignor_that_this_broker_does_not_have() -> None:
    groups = Groups()
    a, b = two_members(groups)
    admitted = msgspec.structs.replace(groups.consumer_group.members["a"], server_assignor="of Kafka's")
    groups.log.batches.append(encode_batch([ConsumerGroupRecord(GROUP, Key.MEMBER, "a", admitted)], 0))
    groups.reload()
    b.leave()
    settle(groups, a)
    assert a.owned == all_partitions(groups, "orders")


def test_a_decision_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    two_members(groups)
    before = dict(groups.consumer_group.values)
    monkeypatch.setattr(groups.shard.consumer_groups.changes, "step", None)
    c = ConsumerMember(groups, "c", "orders")
    with pytest.raises(TypeError):
        c.heartbeat()
    with pytest.raises(TypeError):
        groups.join(protocols=[("range", subscription("orders", set()))], version=3)
    assert groups.consumer_group.values == before
    groups.check_counted()


def test_a_static_member_comes_back_to_its_partitions() -> None:
    groups = Groups()
    groups.create_topic("orders", 4)
    a = ConsumerMember(groups, "a", "orders", instance_id="i")
    b = ConsumerMember(groups, "b", "orders")
    settle(groups, a, b)
    owned, epoch = a.owned, groups.consumer_group.epoch
    a.leave(-2)
    settle_alone = b.heartbeat()
    assert settle_alone.error_code == E.NONE
    assert groups.consumer_group.epoch == epoch, "its partitions are kept for it"
    again = ConsumerMember(groups, "a2", "orders", instance_id="i")
    again.heartbeat()
    assert again.owned == owned
    assert groups.consumer_group.epoch == epoch
    again.leave(-2)
    groups.clock.pass_ms(SESSION_MS - 1)
    b.heartbeat()
    groups.clock.pass_ms(2)
    settle(groups, b)
    assert b.owned == all_partitions(groups, "orders")


def test_a_static_member_that_left_while_it_had_to_revoke_has_its_session() -> None:
    groups = Groups()
    groups.create_topic("orders", 4)
    a = ConsumerMember(groups, "a", "orders", instance_id="i", rebalance_timeout_ms=10_000)
    b = ConsumerMember(groups, "b", "orders")
    for member in (a, b, a):
        member.heartbeat()
    assert groups.consumer_group.current("a").state == MemberState.UNREVOKED_PARTITIONS
    assert not a.leave(-2).error_code
    for _ in range(4):
        groups.clock.pass_ms(10_000)
        b.heartbeat()
    assert "a" in groups.consumer_group.members
    groups.clock.pass_ms(SESSION_MS - 40_000 + 1)
    assert "a" not in groups.consumer_group.members


def test_a_full_group_takes_no_more_members() -> None:
    groups = Groups(GroupSettings(group_consumer_max_size=1))
    groups.create_topic("orders", 1)
    ConsumerMember(groups, "a", "orders").heartbeat()
    request = ConsumerMember(groups, "b", "orders").request()
    assert groups.heartbeat_of(request).error_code == E.GROUP_MAX_SIZE_REACHED


def test_the_descriptions_of_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MEMBER_BYTES_OF_GROUP_MAX", 16_000)
    groups = Groups()
    errors = []
    for number in range(5):
        member = ConsumerMember(groups, f"m{number}", f"{number}" * 2500)
        errors.append(groups.heartbeat_of(member.request()).error)
    assert errors == [E.NONE] * 4 + [E.GROUP_MAX_SIZE_REACHED]
    usage = groups.shard.store.usage
    assert usage.member_bytes == groups.consumer_group.member_bytes > 14_000
    usage.member_bytes += 256 * 1024 * 1024
    request = ConsumerMember(groups, "a", "x").request()
    request.group_id = "other"
    assert groups.heartbeat_of(request).error == E.COORDINATOR_NOT_AVAILABLE
    usage.member_bytes -= 256 * 1024 * 1024
    groups.shard.unload()
    assert usage.member_bytes == 0


def test_what_members_hold_is_counted_and_bounds_assignments() -> None:
    groups = Groups()
    usage = groups.shard.store.usage
    for number in range(100):
        groups.create_topic(f"t{number}", 2)
    a, b = (ConsumerMember(groups, name, subscribed_topic_regex="t.*") for name in "ab")
    settle(groups, a)
    held = usage.member_bytes
    assert 30_000 < held == groups.consumer_group.member_bytes < 90_000
    usage.member_bytes += 512 * 1024 * 1024
    assert groups.heartbeat_of(b.request()).error == E.COORDINATOR_NOT_AVAILABLE
    groups.create_topic("t100", 1)
    groups.clock.pass_ms(10_001)
    for _ in range(3):
        a.heartbeat()
    assert groups.consumer_group.state_name == "Assigning"
    assert len(a.owned) == 200, "it keeps what it has"
    usage.member_bytes -= 512 * 1024 * 1024
    settle(groups, a)
    assert len(a.owned) == 201
    reloaded = usage.member_bytes
    groups.reload()
    usage = groups.shard.store.usage
    assert usage.member_bytes == reloaded > held
    for _ in range(3):
        a.heartbeat()
    a.leave()
    assert 0 <= usage.member_bytes < 100


def test_members_share_the_names_that_they_subscribe_to() -> None:
    groups = Groups()
    names = [f"t{number}" for number in range(1000)]
    members = [ConsumerMember(groups, f"m{number}", *names) for number in range(20)]
    for member in members:
        member.heartbeat()
    group = groups.consumer_group
    assert len({id(each.topic_names) for each in group.members.values()}) == 1
    assert group.member_bytes < 150_000
    groups.reload()
    assert len({id(each.topic_names) for each in groups.consumer_group.members.values()}) == 1
    for member in members:
        assert groups.consumer_group.is_subscribed_to("t7")
        member.leave()
    assert groups.consumer_group.subscribed_topics() == set()
    assert groups.consumer_group.member_bytes == 0


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Every assignment takes long."""
    monkeypatch.setattr(changes, "ASSIGNED_AT_ONCE", 0)
    groups = Groups(is_slow=True)
    groups.create_topic("orders", 4)
    return groups


def work(groups: Groups, count: int = 1_000_000) -> None:
    assert groups.work is not None
    groups.work.go_on(count)


def test_members_go_on_while_their_assignment_is_computed(slow: Groups) -> None:
    a, b = ConsumerMember(slow, "a", "orders"), ConsumerMember(slow, "b", "orders")
    assert a.heartbeat().member_epoch > 0
    assert a.owned == set()
    work(slow, 2)
    b.heartbeat()
    assert slow.consumer_group.state_name == "Assigning"
    epoch = slow.consumer_group.epoch
    work(slow)
    assert slow.consumer_group.target_epoch.epoch == epoch - 1, "the epoch that it was computed for"
    a.heartbeat()
    assert a.owned == all_partitions(slow, "orders")
    settle(slow, a, b)
    assert len(a.owned) == len(b.owned) == 2


def test_who_takes_the_place_of_a_static_member_gets_its_target(slow: Groups) -> None:
    a = ConsumerMember(slow, "a", "orders", instance_id="i")
    a.heartbeat()
    a.leave(-2)
    again = ConsumerMember(slow, "a2", "orders", instance_id="i")
    work(slow, 2)
    again.heartbeat()
    work(slow)
    again.heartbeat()
    assert again.owned == all_partitions(slow, "orders")


def test_an_assignment_for_what_could_not_be_written_is_dropped(slow: Groups) -> None:
    a, b = ConsumerMember(slow, "a", "orders"), ConsumerMember(slow, "b", "orders")
    settle(slow, a)
    slow.log.hold = True
    answer = slow.heartbeat_of(b.request())
    work(slow, 2)
    slow.log.settle(E.NOT_ENOUGH_REPLICAS)
    assert answer.error == E.COORDINATOR_NOT_AVAILABLE
    slow.log.hold = False
    work(slow)
    assert slow.consumer_group.target_epoch.epoch == slow.consumer_group.epoch == a.epoch
    settle(slow, a, b)
    assert len(a.owned) == len(b.owned) == 2


def test_one_assignment_is_computed_at_a_time(slow: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an older one could be written over a newer one."""
    a, b = ConsumerMember(slow, "a", "orders"), ConsumerMember(slow, "b", "orders")
    a.heartbeat()
    work(slow, 2)
    monkeypatch.setattr(changes, "ASSIGNED_AT_ONCE", 2000)
    epochs = []
    b.heartbeat()
    epochs.append(slow.consumer_group.target_epoch.epoch)
    work(slow)
    epochs.append(slow.consumer_group.target_epoch.epoch)
    settle(slow, a, b)
    epochs.append(slow.consumer_group.target_epoch.epoch)
    assert epochs == [1, 2, 3]


def test_an_assignment_that_could_not_be_written_is_tried_again_later(slow: Groups) -> None:
    a = ConsumerMember(slow, "a", "orders")
    a.heartbeat()
    slow.log.error = E.MESSAGE_TOO_LARGE
    work(slow)
    slow.log.error = E.NONE
    a.heartbeat()
    work(slow)
    a.heartbeat()
    assert a.owned == set()
    slow.clock.pass_ms(5000)
    settle(slow, a)
    assert a.owned == all_partitions(slow, "orders")


def test_a_large_assignment_takes_several_turns() -> None:
    """Small ones are computed within the heartbeat, as all other tests show."""

    class TickingClock(Clock):
        ticks = 0

        def monotonic(self) -> float:
            self.ticks += 1
            return super().monotonic() + self.ticks * 0.0001

    groups = Groups()
    groups.clock = TickingClock()
    groups.shard = groups.make_shard()
    for number in range(2500):
        groups.create_topic(f"t{number}", 1)
    a = ConsumerMember(groups, "a", *groups.image.topics)
    answer = Answer()
    groups.shard.consumer.heartbeat(a.request(), Client("client", "/127.0.0.1", 1), answer)
    a.follow(answer.response)
    turns = 0
    while groups.consumer_group.is_assigning:
        groups.clock.step()
        turns += 1
    assert turns > 100
    a.heartbeat()
    assert len(a.owned) == 2500


def test_configs_of_the_group_are_followed_within_the_brokers_limits() -> None:
    groups = Groups()
    a, _ = two_members(groups)
    groups.image.configs[GROUP_RESOURCE, GROUP]["consumer.heartbeat.interval.ms"] = "7000"
    assert a.heartbeat().heartbeat_interval_ms == 7000
    groups.image.configs[GROUP_RESOURCE, GROUP]["consumer.heartbeat.interval.ms"] = "99999"
    assert a.heartbeat().heartbeat_interval_ms == 15_000
    groups.image.configs[GROUP_RESOURCE, GROUP]["consumer.session.timeout.ms"] = "50000"
    a.heartbeat()
    groups.clock.pass_ms(49_999)
    assert sorted(groups.consumer_group.members) == ["a"]
    groups.clock.pass_ms(2)
    assert groups.consumer_group.is_empty


def test_offsets_follow_the_partitions() -> None:
    """KIP-1251: with the epoch before, a member commits what it has kept."""
    groups = Groups()
    groups.create_topic("orders", 4)
    a, b = ConsumerMember(groups, "a", "orders"), ConsumerMember(groups, "b", "orders")
    a.heartbeat()
    first = a.epoch
    settle(groups, a, b)

    def commit(member: ConsumerMember, epoch: int, index: int) -> E:
        [(error, _)] = groups.commit(
            {("orders", index): 5},
            member_id=member.member_id,
            generation=epoch,
            version=10,
            topic_id=topic_id("orders"),
        )
        return E(error)

    (kept, *_), (got, *_) = sorted(a.owned), sorted(b.owned)
    assert commit(a, a.epoch, kept[1]) == E.NONE
    assert commit(a, first, kept[1]) == E.NONE
    assert commit(a, first, got[1]) == E.STALE_MEMBER_EPOCH
    assert commit(b, b.epoch - 1, got[1]) == E.STALE_MEMBER_EPOCH
    assert commit(a, a.epoch + 1, kept[1]) == E.STALE_MEMBER_EPOCH
    a.leave()
    assert commit(a, first, kept[1]) == E.UNKNOWN_MEMBER_ID


def test_offsets_of_a_group_that_is_empty_expire_with_it() -> None:
    groups = Groups(GroupSettings(offsets_retention_ms=60_000))
    a, b = two_members(groups)
    groups.commit({("orders", 0): 5})
    groups.commit(
        {("orders", 0): 5, ("gone", 0): 1}, member_id="a", generation=a.epoch, topic_id=topic_id("orders")
    )
    groups.clock.pass_ms(30_000)
    a.heartbeat()
    b.heartbeat()
    groups.clock.pass_ms(30_001)
    run_through(groups.shard.offset_requests.expire(groups.clock.time_ms()))
    assert groups.shard.offsets.topics(GROUP).keys() == {"orders"}, "members read it"
    a.leave()
    b.leave()
    run_through(groups.shard.offset_requests.expire(groups.clock.time_ms()))
    assert GROUP not in groups.shard.groups
    groups.reload()
    assert GROUP not in groups.shard.groups


def test_another_broker_goes_on_with_the_group() -> None:
    groups = Groups()
    a, b = two_members(groups)
    values = dict(groups.consumer_group.values)
    groups.reload()
    assert groups.consumer_group.values == values
    for member in (a, b):
        epoch, owned = member.epoch, member.owned
        assert member.heartbeat().error_code == E.NONE
        assert (member.epoch, member.owned) == (epoch, owned)
    groups.reload()
    groups.clock.pass_ms(SESSION_MS + 1)
    assert groups.consumer_group.is_empty, "a session begins with the load"


def test_an_append_that_fails_later_is_taken_back() -> None:
    groups = Groups()
    a, _ = two_members(groups)
    values = dict(groups.consumer_group.values)
    groups.log.hold = True
    c = ConsumerMember(groups, "c", "orders")
    joining = groups.heartbeat_of(c.request())
    leaving = groups.heartbeat_of(ConsumerMember(groups, "d", "orders").request())
    assert joining.waiting
    assert leaving.waiting
    shown = groups.heartbeat_of(a.request())
    assert shown.waiting, "it would show what is not committed"
    while groups.log.held:
        groups.log.settle(E.NOT_LEADER_OR_FOLLOWER)
    assert joining.error == E.NOT_COORDINATOR
    assert groups.consumer_group.values == values
    groups.log.hold = False
    groups.reload()
    assert groups.consumer_group.values == values


def test_a_pending_append_that_fails_and_has_written_a_value_twice() -> None:
    """A static member that comes back is replaced, described and assigned in one append."""
    groups = Groups()
    groups.create_topic("orders", 4)
    a = ConsumerMember(groups, "a", "orders", instance_id="i")
    settle(groups, a, ConsumerMember(groups, "b", "orders"))
    a.leave(-2)
    values = dict(groups.consumer_group.values)
    groups.log.hold = True
    again = groups.heartbeat_of(ConsumerMember(groups, "a", "orders", instance_id="i").request())
    groups.log.settle(E.NOT_LEADER_OR_FOLLOWER)
    assert again.error == E.NOT_COORDINATOR
    assert groups.consumer_group.values == values


def test_a_member_whose_removal_cannot_be_written_is_removed_later() -> None:
    groups = Groups()
    a, _ = two_members(groups)
    groups.clock.pass_ms(SESSION_MS - 1)
    a.heartbeat()
    groups.log.error = E.NOT_ENOUGH_REPLICAS
    groups.clock.pass_ms(5000)
    assert sorted(groups.consumer_group.members) == ["a", "b"]
    groups.log.error = E.NONE
    groups.clock.pass_ms(1000)
    assert sorted(groups.consumer_group.members) == ["a"]


def test_two_pending_appends_of_which_the_first_fails() -> None:
    groups = Groups()
    groups.create_topic("orders", 1)
    a = ConsumerMember(groups, "a", "orders")
    a.heartbeat()
    groups.log.hold = True
    b = groups.heartbeat_of(ConsumerMember(groups, "b", "orders").request())
    c = groups.heartbeat_of(ConsumerMember(groups, "c", "orders").request())
    groups.log.settle(E.NOT_ENOUGH_REPLICAS)
    groups.log.settle()
    assert b.error == E.COORDINATOR_NOT_AVAILABLE
    assert c.error == E.NONE
    assert sorted(groups.consumer_group.members) == ["a", "c"]
    groups.log.hold = False
    values = dict(groups.consumer_group.values)
    groups.reload()
    assert groups.consumer_group.values == values


@pytest.mark.parametrize("key", list(Key))
def test_records_are_read_as_they_were_written(key: Key) -> None:
    groups = Groups()
    groups.create_topic("orders", 4)
    a = ConsumerMember(groups, "a", "orders", subscribed_topic_regex="o.*", server_assignor="range")
    settle(groups, a, ConsumerMember(groups, "b", "orders", instance_id="i", rack_id="r"))
    records = [
        ConsumerGroupRecord(GROUP, each, name, value)
        for (each, name), value in groups.consumer_group.values.items()
        if each == key
    ]
    assert records
    for record in (*records, ConsumerGroupRecord(GROUP, key, records[0].name, None)):
        key_bytes, value = CODEC.encode(record)
        assert int.from_bytes(key_bytes[:2], "big") == key
        assert CODEC.decode(key, key_bytes, value) == record
