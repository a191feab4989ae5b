"""Streams groups: topologies, the delay of the first assignment, timeouts, settings, endpoints."""

from __future__ import annotations

import pytest

from barnabas.broker.groups.member import Client
from barnabas.broker.groups.modern import room
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.streams import changes
from barnabas.broker.groups.streams.tests.members import (
    SESSION_MS,
    StreamsGroups,
    StreamsMember,
    settle,
    topology,
)
from barnabas.broker.groups.streams.topology import Status
from barnabas.broker.groups.tests.conftest import GROUP
from barnabas.controller.metadata.image import GROUP_RESOURCE
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.streams_group_heartbeat import Endpoint, StreamsGroupHeartbeatResponse, Topology


def statuses(response: StreamsGroupHeartbeatResponse) -> list[int]:
    assert response.error_code == E.NONE
    return [status.status_code for status in response.status or []]


def lines(count: int = 4, delay_ms: int = 0) -> StreamsGroups:
    groups = StreamsGroups(delay_ms=delay_ms)
    groups.create_topic("lines", count)
    return groups


def test_the_first_assignment_waits_for_more_members() -> None:
    groups = lines(delay_ms=3000)
    one, other = (StreamsMember(groups, name, name, topology("lines")) for name in ("one", "other"))
    assert statuses(one.heartbeat()) == [Status.ASSIGNMENT_DELAYED]
    groups.clock.pass_ms(2000)
    assert statuses(other.heartbeat()) == [Status.ASSIGNMENT_DELAYED]
    groups.clock.pass_ms(1000)
    for member in (one, other):
        assert statuses(member.heartbeat()) == []
    assert len(one.active) == len(other.active) == 2
    assert groups.streams_group.state_name == "Stable"


def test_missing_topics_are_named_and_then_used() -> None:
    groups = StreamsGroups()
    member = StreamsMember(groups, "m", "p", topology("lines", changelog="changelog"))
    assert statuses(member.heartbeat()) == [Status.MISSING_SOURCE_TOPICS]
    assert groups.streams_group.state_name == "NotReady"
    groups.create_topic("lines", 3)
    result = groups.result_of(member.request())
    member.follow(result.response)
    assert statuses(result.response) == [Status.MISSING_INTERNAL_TOPICS]
    assert [(topic.name, topic.partitions) for topic in result.missing] == [("changelog", 3)]
    groups.create_topic("changelog", 3)
    assert statuses(member.heartbeat()) == []
    assert len(member.active) == 3


def test_topics_that_have_grown_are_found_again_after_a_failed_append() -> None:
    groups = lines(2)
    member = StreamsMember(groups, "m", "p", topology("lines"))
    settle(groups, member)
    groups.create_topic("lines", 4, since=2)
    groups.log.error = E.NOT_ENOUGH_REPLICAS
    assert groups.result_of(member.request()).response.error_code == E.COORDINATOR_NOT_AVAILABLE
    groups.log.error = E.NONE
    for _ in range(3):
        groups.clock.pass_ms(5_000)
        member.heartbeat()
    assert len(member.active) == 4


def test_a_decision_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = lines()
    settle(groups, StreamsMember(groups, "a", "p", topology("lines")))
    before = dict(groups.streams_group.values)
    monkeypatch.setattr(groups.shard.streams_groups.changes, "step", None)
    with pytest.raises(TypeError):
        StreamsMember(groups, "b", "p", topology("lines")).heartbeat()
    assert groups.streams_group.values == before


def test_a_silent_member_is_removed_and_one_that_gives_up_nothing_is_fenced() -> None:
    groups = lines()
    one = StreamsMember(groups, "one", "one", topology("lines"))
    one.heartbeat()
    other = StreamsMember(groups, "other", "other", topology("lines"))
    other.heartbeat()
    owned = dict(one.owned)
    for _ in range(2):  # its rebalance timeout of 60 s begins with the first of these
        groups.clock.pass_ms(30_000)
        one.heartbeat()
        other.heartbeat()
        one.owned = dict(owned)
    groups.clock.pass_ms(30_000)
    assert set(groups.streams_group.members) == {"other"}
    groups.clock.pass_ms(SESSION_MS)
    assert groups.streams_group.is_empty


def test_copies_by_a_setting_that_changes() -> None:
    groups = StreamsGroups()
    for name in ("lines", "changelog"):
        groups.create_topic(name, 4)
    members = [StreamsMember(groups, name, name, topology("lines", changelog="changelog")) for name in "ab"]
    settle(groups, *members)
    groups.image.configs[GROUP_RESOURCE, GROUP]["streams.num.standby.replicas"] = "1"
    members[0].heartbeat()
    settle(groups, *members)
    for member, other in zip(members, reversed(members), strict=True):
        assert member.owned["standby_tasks"] == other.active


def test_members_are_told_of_endpoints_and_of_a_shutdown() -> None:
    groups = lines(2)
    one, other = (StreamsMember(groups, name, name, topology("lines")) for name in ("one", "other"))
    one.heartbeat(user_endpoint=Endpoint("host", 1))
    one.heartbeat()
    other.heartbeat()
    settle(groups, one, other)
    shown = other.heartbeat(endpoint_information_epoch=-1).partitions_by_user_endpoint
    assert [(each.user_endpoint.host, each.active_partitions[0].topic) for each in shown or []] == [
        ("host", "lines")
    ]
    one.heartbeat(shutdown_application=True)
    assert statuses(other.heartbeat()) == [Status.SHUTDOWN_APPLICATION]


def test_a_full_group() -> None:
    groups = StreamsGroups(GroupSettings(group_streams_max_size=1))
    groups.create_topic("lines", 1)
    StreamsMember(groups, "one", "one", topology("lines")).heartbeat()
    request = StreamsMember(groups, "two", "two", topology("lines")).request()
    assert groups.result_of(request).response.error_code == E.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("name", ["one", "unknown"])
def test_leaving(name: str) -> None:
    groups = lines()
    StreamsMember(groups, "one", "one", topology("lines")).heartbeat()
    response = StreamsMember(groups, name, name, topology("lines")).leave()
    assert response.error_code == (E.NONE if name == "one" else E.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize("fault", ["append", "topic"])
def test_an_assignment_for_what_is_no_longer_so_is_dropped(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "ASSIGNED_AT_ONCE", 0)
    groups = StreamsGroups(is_slow=True)
    groups.create_topic("lines", 4)
    one, other = (StreamsMember(groups, name, name, topology("lines")) for name in ("one", "other"))
    settle(groups, one)
    assert groups.work is not None
    if fault == "append":
        groups.log.hold = True
        groups.shard.streams.heartbeat(other.request(), Client("client", "/127.0.0.1", 0), lambda _: None)
        groups.work.go_on(2)
        groups.log.settle(E.NOT_ENOUGH_REPLICAS)
        groups.log.hold = False
    else:
        other.heartbeat()
        groups.work.go_on(2)
        groups.create_topic("lines", 6, since=4)
        one.heartbeat()
    before = groups.streams_group.target_epoch
    groups.work.go_on()
    assert groups.streams_group.target_epoch == before
    settle(groups, one, other)
    assert len(one.active) == len(other.active) == (2 if fault == "append" else 3)


def test_members_and_topology_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MEMBER_BYTES_OF_GROUP_MAX", 20_000)
    groups = lines()
    usage = groups.shard.store.usage
    one = StreamsMember(groups, "one", "one", topology("lines"))
    one.heartbeat()
    small = usage.member_bytes
    assert small > 3000, "its tasks count, too"
    long = StreamsMember(groups, "other", "x" * 20_000, topology("lines"))
    assert long.groups.result_of(long.request()).response.error_code == E.GROUP_MAX_SIZE_REACHED
    assert usage.member_bytes == small
    usage.member_bytes += 256 * 1024 * 1024
    other = StreamsMember(groups, "other", "other", topology("lines"))
    assert groups.result_of(other.request()).response.error_code == E.COORDINATOR_NOT_AVAILABLE
    one.heartbeat()
    usage.member_bytes -= 256 * 1024 * 1024
    one.leave()
    wide = [f"t{number}" for number in range(100)]
    first = StreamsMember(groups, "one", "one", Topology(1, topology(*wide).subtopologies))
    request = first.request(group_id="others")
    assert groups.result_of(request).response.error_code == E.GROUP_MAX_SIZE_REACHED


def test_an_assignment_waits_for_room() -> None:
    groups = lines()
    one, other = (StreamsMember(groups, name, name, topology("lines")) for name in ("one", "other"))
    settle(groups, one, other)
    usage = groups.shard.store.usage
    usage.member_bytes += 512 * 1024 * 1024
    other.leave()
    one.heartbeat()
    assert len(one.active) == 2
    assert groups.streams_group.state_name == "Assigning"
    usage.member_bytes -= 512 * 1024 * 1024
    settle(groups, one)
    assert len(one.active) == 4
