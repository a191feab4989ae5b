"""Every API of a sender that lacks a right, and of one that has it; and what the ACL APIs answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

import msgspec

from barnabas.controller.metadata.acls import CLUSTER_NAME, Operation, ResourceType
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from compat_tests.conform.apis import APIS
from compat_tests.conform.authorized_requests import (
    AUTHORIZATION_ERRORS,
    AuthorizedRequest,
    Names,
    Right,
    authorized_requests,
    error_codes,
)
from compat_tests.conform.brokers import USERS
from compat_tests.conform.case import case
from compat_tests.conform.session import USER, Session
from compat_tests.harness.eventually import eventually

LITERAL, PREFIXED, DENY, ALLOW, ANY = 3, 4, 2, 3, 1
_users = count()


def next_user() -> str:
    return USERS[next(_users)]


def grant(session: Session, user: str, rights: Sequence[Right], permission: int = ALLOW) -> None:
    """Give the user rights, and wait until the broker's authorizer has them."""
    creations = [
        AclCreation(kind, name, LITERAL, f"User:{user}", "*", operation, permission)
        for kind, name, operation in rights
    ]
    answer = session.quiet(CreateAclsRequest(creations))
    assert not any(each.error_code for each in answer.results), answer

    def has_all() -> bool:
        found = session.quiet(DescribeAclsRequest(ANY, None, ANY, f"User:{user}", None, ANY, ANY))
        stored = {
            (each.resource_type, each.resource_name, acl.operation)
            for each in found.resources
            for acl in each.acls
        }
        return stored.issuperset((int(kind), name, int(operation)) for kind, name, operation in rights)

    if rights:
        eventually(has_all)


def _names(session: Session) -> Names:
    topic = session.create_topic()
    names = Names(topic.name, topic.id, session.name("absent"), session.name("group"), session.name("txn"))
    for key_type, key in ((0, names.group), (1, names.transactional_id)):
        request = FindCoordinatorRequest(key, key_type)
        eventually(lambda request=request: not session.quiet(request, version=3).error_code)
    position = OffsetCommitRequestTopic(topic.name, partitions=[OffsetCommitRequestPartition(0, 0)])
    commit = OffsetCommitRequest(names.group, topics=[position])
    eventually(lambda: not session.quiet(commit, version=8).topics[0].partitions[0].error_code)
    return names


def _ask_both(number: int, refused: str, allowed: str, session: Session) -> None:
    names = _names(session)
    each = authorized_requests(names)[number]
    grant(session, refused, each.given)
    grant(session, allowed, [*each.given, *each.needed])
    request = each.request(session.version)
    session.ask(request, on=f"{USER}{refused}", note="without the right")
    answer = session.connection(f"{USER}{allowed}").ask(request, session.version)
    session.record("with the right", sorted(error_codes(answer) & AUTHORIZATION_ERRORS))


def _register(number: int, each: AuthorizedRequest) -> None:
    known = APIS[each.api]
    first, last = max(known.first, each.versions.start), min(known.last, each.versions.stop - 1)
    run = partial(_ask_both, number, next_user(), next_user())
    special = each.title.partition(": ")[2].replace(" ", "_")
    case(each.api, first, last, authorizer=True, name=f"authorized_{special}".rstrip("_"))(run)


for _number, _each in enumerate(authorized_requests(Names("", b"", "", "", ""))):
    _register(_number, _each)

LISTER, OPERATOR, DENIED = next_user(), next_user(), next_user()


@case("Metadata", authorizer=True)
def shows_what_may_be_described(session: Session) -> None:
    """All topics, then one that may be described, one that may not and one that is not there; with authorized operations."""
    shown, hidden = session.create_topic("shown"), session.create_topic("hidden")
    grant(session, LISTER, [(ResourceType.TOPIC, shown.name, Operation.READ)])
    on = f"{USER}{LISTER}"
    topics: list[MetadataRequestTopic] | None = None if session.version else []
    answer = session.connection(on).ask(MetadataRequest(topics), session.version)
    names = {each.name for each in answer.topics}
    session.record("all topics", [shown.name in names, hidden.name in names])
    named = [MetadataRequestTopic(name=each) for each in (shown.name, hidden.name, session.name("absent"))]
    may_ask = session.version >= 8
    session.ask(
        MetadataRequest(named, session.version < 4, may_ask and session.version <= 10, may_ask),
        on=on,
    )


@case("DescribeTopicPartitions", authorizer=True)
def describes_what_may_be_described(session: Session) -> None:
    shown, hidden = session.create_topic("shown"), session.create_topic("hidden")
    grant(session, LISTER, [(ResourceType.TOPIC, shown.name, Operation.READ)])
    named = [TopicRequest(each) for each in (shown.name, hidden.name, session.name("absent"))]
    session.ask(DescribeTopicPartitionsRequest(named, 100), on=f"{USER}{LISTER}")


@case("ListGroups", authorizer=True)
def lists_what_may_be_described(session: Session) -> None:
    session.ask(ListGroupsRequest(), on=f"{USER}{LISTER}")


@case("ListTransactions", authorizer=True)
def lists_ids_that_may_be_described(session: Session) -> None:
    session.ask(ListTransactionsRequest(), on=f"{USER}{LISTER}")


@case("DescribeCluster", authorizer=True)
def describes_operations(session: Session) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    session.ask(request, on=f"{USER}{LISTER}", note="without rights")
    grant(session, OPERATOR, [(ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER)])
    session.ask(request, on=f"{USER}{OPERATOR}", note="ALTER")


@case("ListGroups", authorizer=True)
def denials_win(session: Session) -> None:
    """A denied right of one that is allowed all, seen by its effect on authorized operations."""
    topic = session.create_topic()
    on = f"{USER}{DENIED}"
    grant(session, DENIED, [(ResourceType.TOPIC, topic.name, Operation.ALL)])
    grant(session, DENIED, [(ResourceType.TOPIC, topic.name, Operation.READ)], DENY)
    named = [MetadataRequestTopic(name=topic.name)]
    session.ask(MetadataRequest(named, False, False, True), version=9, on=on)
    grant(session, DENIED, [(ResourceType.TOPIC, topic.name, Operation.DESCRIBE)], DENY)
    session.ask(MetadataRequest(named, False, False, True), version=9, on=on)


# --- the ACLs themselves


def _acl(name: str, **fields: int | str) -> AclCreation:
    acl = AclCreation(ResourceType.TOPIC, name, LITERAL, "User:someone", "*", Operation.READ, ALLOW)
    return msgspec.structs.replace(acl, **fields)


@case("CreateAcls", authorizer=True)
def creates(session: Session) -> None:
    """Good ones, doubled ones, and each way to be wrong."""
    name = session.name()
    session.ask(CreateAclsRequest([]), note="none")
    session.ask(
        CreateAclsRequest([_acl(name), _acl(name), _acl(name, operation=Operation.WRITE)]), note="doubled"
    )
    wrong: list[AclCreation] = [
        _acl(name, resource_type=1),
        _acl(name, resource_pattern_type=1),
        _acl(name, resource_pattern_type=2),
        _acl(name, operation=1),
        _acl(name, permission_type=1),
        _acl(name, resource_type=ResourceType.CLUSTER),
        _acl(""),
        _acl(name, principal="noone"),
        _acl(name, principal=""),
        _acl(name, operation=Operation.IDEMPOTENT_WRITE),
        _acl(name, host="nowhere"),
        _acl("", resource_type=1, operation=1),
    ]
    for each in wrong:
        session.ask(CreateAclsRequest([each]), note=f"{each}".replace(name, "a"))
    for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
        for code in (0, 99):
            session.ask(CreateAclsRequest([_acl(name), _acl(name, **{field: code})]), note=f"{field} {code}")


@case("DeleteAcls", authorizer=True)
def deletes(session: Session) -> None:
    name, principal = session.name(), f"User:{session.name('owner')}"
    made = [
        _acl(name, principal=principal),
        _acl(name, principal=principal, operation=Operation.WRITE),
        _acl(name[:-1], principal=principal, resource_pattern_type=PREFIXED),
        _acl("*", principal=principal),
        _acl(name, principal=principal, resource_type=ResourceType.GROUP, permission_type=DENY),
    ]
    session.quiet(CreateAclsRequest(made))
    eventually(lambda: len(_described(session, principal)) == len(made))

    def wanted(kind: int, named: str | None, pattern: int, operation: int = ANY) -> DeleteAclsFilter:
        return DeleteAclsFilter(kind, named, pattern, principal, None, operation, ANY)

    session.ask(DeleteAclsRequest([]), note="none")
    session.ask(DeleteAclsRequest([wanted(ResourceType.TOPIC, session.name("b"), LITERAL)]), note="nothing")
    write = wanted(ResourceType.TOPIC, name, LITERAL, Operation.WRITE)
    session.ask(DeleteAclsRequest([write, write]), note="twice")
    session.ask(DeleteAclsRequest([wanted(ANY, name, 2), wanted(ANY, name, ANY)]), note="overlapping")
    session.ask(DeleteAclsRequest([wanted(ANY, None, ANY)]), note="the rest")
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        for code in (0, 99):
            broken = wanted(ANY, name, ANY)
            setattr(broken, field, code)
            session.ask(DeleteAclsRequest([broken]), note=f"{field} {code}")


def _described(session: Session, principal: str) -> list[object]:
    found = session.quiet(DescribeAclsRequest(ANY, None, ANY, principal, None, ANY, ANY))
    return [acl for each in found.resources for acl in each.acls]


@case("DescribeAcls", authorizer=True)
def describes(session: Session) -> None:
    name, principal = session.name(), f"User:{session.name('owner')}"
    made = [
        _acl(name, principal=principal),
        _acl(name, principal=principal, operation=Operation.WRITE, host="10.0.0.1"),
        _acl(name[:-1], principal=principal, resource_pattern_type=PREFIXED),
        _acl("*", principal=principal),
        _acl(name, principal=principal, resource_type=ResourceType.GROUP, permission_type=DENY),
    ]
    session.quiet(CreateAclsRequest(made))
    eventually(lambda: len(_described(session, principal)) == len(made))
    for kind in (ANY, ResourceType.TOPIC, ResourceType.GROUP):
        for named in (None, name, name[:-1], "*"):
            for pattern in (ANY, 2, LITERAL, PREFIXED):
                request = DescribeAclsRequest(kind, named, pattern, principal, None, ANY, ANY)
                shown = None if named is None else named.replace(name[:-1], "prefix-")
                session.ask(request, note=f"{int(kind)} {shown} {pattern}")
    for fields in (
        (None, "10.0.0.1", ANY, ANY),
        (principal, None, Operation.WRITE, ANY),
        (principal, None, ANY, DENY),
    ):
        session.ask(DescribeAclsRequest(ANY, name, ANY, *fields), note=f"{fields[1:]}")
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        for code in (0, 99):
            broken = DescribeAclsRequest(ANY, name, ANY, None, None, ANY, ANY)
            setattr(broken, field, code)
            session.ask(broken, note=f"{field} {code}")
