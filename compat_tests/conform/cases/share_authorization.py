"""Share groups of users that may see some topics and not others, and of brokers whose share.version is 0."""

from __future__ import annotations

from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest
from barnabas.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from compat_tests.conform.apis import APIS
from compat_tests.conform.case import case
from compat_tests.conform.cases.authorization import grant, next_user
from compat_tests.conform.cases.consumer_groups import new_group
from compat_tests.conform.cases.share_fetch import ACCEPT, Member
from compat_tests.conform.cases.share_group_offsets import (
    alter_request,
    delete_request,
    describe_request,
    show,
)
from compat_tests.conform.cases.share_groups import describe, first, joined, next_one, share_group
from compat_tests.conform.session import USER, Session, Topic
from compat_tests.harness.eventually import eventually

ONE_TOPIC, NO_TOPIC, LISTER = next_user(), next_user(), next_user()
SHARE_VERSION = "share.version"
SAFE_DOWNGRADE = 2


def _prepared(session: Session, operation: Operation, *rights: Operation) -> tuple[str, Topic, Topic]:
    """A group with states of two topics; ONE_TOPIC has the operation on the first one, both users have `rights` on the group."""
    shown, hidden = session.create_topic("shown"), session.create_topic("hidden")
    group = share_group(session, shown, hidden, partitions=1)
    joined(session, group, "a", shown.name, hidden.name)
    of_group = [(ResourceType.GROUP, group, right) for right in rights]
    grant(session, ONE_TOPIC, [(ResourceType.TOPIC, shown.name, operation), *of_group])
    grant(session, NO_TOPIC, of_group)
    return group, shown, hidden


@case("ShareGroupHeartbeat", authorizer=True)
def topics_that_may_be_described(session: Session) -> None:
    group, shown, hidden = _prepared(session, Operation.DESCRIBE, Operation.READ)
    on = f"{USER}{ONE_TOPIC}"
    absent = session.name("absent")
    session.ask(first(group, "b", shown.name), on=on, note="the one that it may describe")
    session.ask(first(group, "c", shown.name, hidden.name), on=on, note="both")
    session.ask(first(group, "c", shown.name, absent), on=on, note="one that is not there")
    session.ask(first("", "c", hidden.name, rack_id=""), on=on, note="no group, and the hidden one")
    session.ask(next_one(group, "b", 1, subscribed_topic_names=[]), on=on, note="no topics")
    session.ask(next_one(group, "b", -1, subscribed_topic_names=[hidden.name]), on=on, note="leaves")


@case("ShareGroupDescribe", authorizer=True)
def hides_topics(session: Session) -> None:
    group, shown, _hidden = _prepared(session, Operation.DESCRIBE, Operation.DESCRIBE)
    other = share_group(session, shown, suffix="other", partitions=1)
    joined(session, other, "a", shown.name)
    grant(session, ONE_TOPIC, [(ResourceType.GROUP, other, Operation.READ)])
    for user in (ONE_TOPIC, NO_TOPIC):
        request = ShareGroupDescribeRequest([group, other], True)
        answer = session.connection(f"{USER}{user}").ask(request, session.version)
        for each in answer.groups:
            for member in each.members:
                member.subscribed_topic_names.sort()
        session.record("one topic" if user == ONE_TOPIC else "no topic", session.names.tree(answer))


@case("ListGroups", authorizer=True)
def lists_share_groups_that_may_be_described(session: Session) -> None:
    group, other = new_group(session), new_group(session, "other")
    for each in (group, other):
        session.quiet(first(each, "a", session.name("missing")))
    grant(session, LISTER, [(ResourceType.GROUP, group, Operation.DESCRIBE)])
    answer = session.connection(f"{USER}{LISTER}").ask(ListGroupsRequest(), session.version)
    own = [each for each in answer.groups if each.group_id in (group, other)]
    session.record("list", session.names.tree(own))


@case("DescribeShareGroupOffsets", authorizer=True)
def topics_that_may_be_described_by_offsets(session: Session) -> None:
    group, shown, hidden = _prepared(session, Operation.DESCRIBE, Operation.DESCRIBE)
    absent = session.name("absent")
    for user, note in ((ONE_TOPIC, "one topic"), (NO_TOPIC, "no topic")):
        on = f"{USER}{user}"
        session.ask(describe_request(group), on=on, note=f"{note}: all")
        named = describe_request(group, (shown, [0]), (hidden, [0, 7, 7]), (absent, [1, 1]))
        session.ask(named, on=on, note=f"{note}: by name")
        session.ask(describe_request(group, (hidden, [])), on=on, note=f"{note}: no partitions")


@case("AlterShareGroupOffsets", authorizer=True)
def topics_that_may_be_read(session: Session) -> None:
    group, shown, hidden = _prepared(session, Operation.READ, Operation.READ)
    absent = session.name("absent")
    session.ask(alter_request(group, (hidden, 0, 1)), on=f"{USER}{ONE_TOPIC}", note="with a member")
    session.quiet(next_one(group, "a", -1))
    for user, note in ((ONE_TOPIC, "one topic"), (NO_TOPIC, "no topic")):
        on = f"{USER}{user}"
        altered = alter_request(group, (shown, 0, 1), (hidden, 0, 2), (hidden, 9, 2), (absent, 0, 3))
        session.ask(altered, on=on, note=note)
        session.ask(alter_request("", (hidden, 0, 2)), on=on, note=f"{note}: no group")
    show(session, group, "in the end")


@case("DeleteShareGroupOffsets", authorizer=True)
def topics_that_may_be_read_to_be_deleted(session: Session) -> None:
    group, shown, hidden = _prepared(session, Operation.READ, Operation.DELETE)
    absent = session.name("absent")
    session.ask(delete_request(group, hidden), on=f"{USER}{ONE_TOPIC}", note="with a member")
    session.quiet(next_one(group, "a", -1))
    for user, note in ((NO_TOPIC, "no topic"), (ONE_TOPIC, "one topic")):
        session.ask(delete_request(group, shown, hidden, absent), on=f"{USER}{user}", note=note)
    show(session, group, "in the end")


@case("DeleteGroups", authorizer=True)
def share_groups_that_may_be_deleted(session: Session) -> None:
    group, _shown, _hidden = _prepared(session, Operation.READ, Operation.READ)
    session.quiet(next_one(group, "a", -1))
    session.ask(DeleteGroupsRequest([group]), on=f"{USER}{ONE_TOPIC}", note="READ")
    show(session, group, "it still has its offsets")
    grant(session, ONE_TOPIC, [(ResourceType.GROUP, group, Operation.DELETE)])
    session.ask(DeleteGroupsRequest([group]), on=f"{USER}{ONE_TOPIC}", note="DELETE")
    show(session, group, "after")


def _set_share_version(session: Session, level: int) -> None:
    update = FeatureUpdateKey(SHARE_VERSION, level, upgrade_type=1 if level else SAFE_DOWNGRADE)
    answer = session.quiet(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=5000))
    assert not answer.error_code, answer

    def is_so() -> bool:
        found = session.quiet(ApiVersionsRequest("conform", "1")).finalized_features
        levels = {each.name: each.max_version_level for each in found}
        return bool(levels.get(SHARE_VERSION, 0) == level)

    eventually(is_so)


@case("ShareGroupHeartbeat")
def switched_off(session: Session) -> None:
    """share.version 0, and 1 again: what each API of share groups answers then, to the first thing that it would refuse as well."""
    topic = session.create_topic("t")
    group = share_group(session, topic, partitions=1)
    epoch = joined(session, group, "a", topic.name)
    member = Member(session, group, topic)
    session.quiet(member.fetch_request(), on=member.label)
    _set_share_version(session, 0)
    try:
        _ask_all(session, group, topic, member, epoch)
    finally:
        _set_share_version(session, 1)
    describe(session, group, "on again")
    session.ask(next_one(group, "a", epoch), note="on again, heartbeat")
    session.ask(member.fetch_request(epoch=1), version=2, on=member.label, note="on again, the old session")
    opened = session.quiet(member.fetch_request(epoch=0), on=member.label)
    session.record("on again, a new session", opened.error_code)


def _ask_all(session: Session, group: str, topic: Topic, member: Member, epoch: int) -> None:
    session.ask(first(group, "b", topic.name), note="join")
    session.ask(next_one("", "", epoch), note="malformed heartbeat")
    session.ask(ShareGroupDescribeRequest([group, ""], True), note="describe")
    for version in (1, 2):
        session.ask(member.fetch_request(epoch=1), version=version, on=member.label, note=f"fetch {version}")
        session.ask(
            member.fetch_request(epoch=1, group_id=None),
            version=version,
            on=member.label,
            note=f"fetch {version} without a group",
        )
        session.ask(
            member.acknowledge_request((0, 0, [ACCEPT]), epoch=1),
            version=version,
            on=member.label,
            note=f"acknowledge {version}",
        )
    for version in (0, 1):
        session.ask(describe_request(group), version=version, note=f"offsets {version}")
        session.ask(
            describe_request(group, (topic, [0])), version=version, note=f"offsets {version}, by name"
        )
    session.ask(alter_request(group, (topic, 0, 1)), version=0, note="alter")
    session.ask(delete_request(group, topic), version=0, note="delete")
    session.ask(DeleteGroupsRequest([group]), version=APIS["DeleteGroups"].last, note="delete the group")
    listed = session.connection().ask(ListGroupsRequest(types_filter=["share"]), APIS["ListGroups"].last)
    own = [each for each in listed.groups if each.group_id == group]
    session.record("list", session.names.tree(own))
