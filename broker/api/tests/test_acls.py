"""DescribeAcls, CreateAcls and DeleteAcls on a node: what is stored, who may, and that it survives a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.requests.context import CLOSE_CONNECTION
from barnabas.broker.security.caller import Principal
from barnabas.broker.tests.one_node import OneNode
from barnabas.controller.metadata.acls import Operation as Op
from barnabas.controller.metadata.acls import PatternType, Permission, ResourceType
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest

ROOT, BOB = Principal("User", "root"), Principal("User", "bob")
AUTHORIZER = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:root",
)
TOPIC, LITERAL, PREFIXED, ANY, MATCH = (
    ResourceType.TOPIC,
    PatternType.LITERAL,
    PatternType.PREFIXED,
    1,
    PatternType.MATCH,
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    node = OneNode(f"log.dirs={tmp_path}", *AUTHORIZER)
    yield node
    node.node.stop()


def creation(name: str = "t", **fields: Any) -> AclCreation:
    values: dict[str, Any] = {
        "resource_type": TOPIC,
        "resource_pattern_type": LITERAL,
        "principal": "User:bob",
        "host": "*",
        "operation": Op.READ,
        "permission_type": Permission.ALLOW,
    }
    return AclCreation(resource_name=name, **{**values, **fields})


def create(
    node: OneNode, *creations: AclCreation, principal: Principal = ROOT
) -> list[tuple[int, str | None]]:
    answer = node.ask(CreateAclsRequest(list(creations)), 3, principal)
    return [(each.error_code, each.error_message) for each in answer.results]


def wanted(name: str | None = None, pattern: int = ANY, kind: int = ANY, **fields: Any) -> DeleteAclsFilter:
    values: dict[str, Any] = {
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return DeleteAclsFilter(kind, name, pattern, **{**values, **fields})


def described(node: OneNode, each: DeleteAclsFilter, principal: Principal = ROOT) -> Any:
    request = DescribeAclsRequest(
        each.resource_type_filter,
        each.resource_name_filter,
        each.pattern_type_filter,
        each.principal_filter,
        each.host_filter,
        each.operation,
        each.permission_type,
    )
    return node.ask(request, 3, principal)


def names(answer: Any) -> list[tuple[str, int, int]]:
    return sorted((each.resource_name, each.pattern_type, len(each.acls)) for each in answer.resources)


def test_acls_are_created_once_described_and_kept(node: OneNode) -> None:
    one, other = creation(), creation(operation=Op.WRITE)
    assert create(node, one, other, one) == [(0, "")] * 3
    offset = node.node.services.controller.image.offset
    assert create(node, one) == [(0, "")]
    assert node.node.services.controller.image.offset == offset
    assert names(described(node, wanted())) == [("t", LITERAL, 2)]
    node.restart()
    assert names(described(node, wanted())) == [("t", LITERAL, 2)]


def test_filters_match_as_kafkas_do(node: OneNode) -> None:
    create(
        node,
        creation("t1"),
        creation("*"),
        creation("t", resource_pattern_type=PREFIXED),
        creation("t", resource_type=ResourceType.GROUP, principal="User:*", host="10.0.0.1"),
    )
    assert names(described(node, wanted("t1", MATCH, TOPIC))) == [("*", 3, 1), ("t", 4, 1), ("t1", 3, 1)]
    assert names(described(node, wanted("t1", ANY))) == [("t1", 3, 1)]
    assert names(described(node, wanted("t", ANY))) == [("t", 3, 1), ("t", 4, 1)]
    assert names(described(node, wanted("t", PREFIXED, TOPIC))) == [("t", 4, 1)]
    assert names(described(node, wanted(None, LITERAL))) == [("*", 3, 1), ("t", 3, 1), ("t1", 3, 1)]
    assert names(described(node, wanted(principal_filter="User:*"))) == [("t", 3, 1)]
    assert names(described(node, wanted(host_filter="10.0.0.1"))) == [("t", 3, 1)]
    assert names(described(node, wanted(operation=Op.WRITE))) == []
    assert names(described(node, wanted(permission_type=Permission.DENY))) == []


def test_deleting_one_acl_of_several_leaves_the_others(node: OneNode) -> None:
    create(node, creation(), creation(operation=Op.WRITE), creation("u"))
    write = wanted("t", LITERAL, TOPIC, operation=Op.WRITE)
    answer = node.ask(DeleteAclsRequest([write, wanted("t"), wanted("none")]), 3, ROOT)
    assert [
        sorted((acl.resource_name, acl.operation) for acl in result.matching_acls)
        for result in answer.filter_results
    ] == [[("t", Op.WRITE)], [("t", Op.READ), ("t", Op.WRITE)], []]
    assert names(described(node, wanted())) == [("u", LITERAL, 1)]
    assert node.node.services.authorizer is not None
    assert described(node, wanted(), BOB).error_code == E.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resource_type": ANY}, "Invalid resourceType ANY"),
        ({"resource_pattern_type": ANY}, "Invalid patternType ANY"),
        ({"resource_pattern_type": MATCH}, "Invalid patternType MATCH"),
        ({"operation": ANY}, "Invalid operation ANY"),
        ({"permission_type": ANY}, "Invalid permissionType ANY"),
        (
            {"resource_type": ResourceType.CLUSTER},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"name": ""}, "Invalid empty resource name"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
    ],
)
def test_an_invalid_acl_fails_alone(node: OneNode, fields: dict[str, Any], message: str) -> None:
    assert create(node, creation(**fields), creation()) == [(E.INVALID_REQUEST, message), (0, "")]


def test_a_principal_needs_a_colon(node: OneNode) -> None:
    ((error, message),) = create(node, creation(principal="bob"))
    assert error == E.INVALID_REQUEST
    assert message is not None
    assert message.startswith("Could not parse principal from `bob`")


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_a_code_of_zero_closes_the_connection(node: OneNode, field: str) -> None:
    assert node.ask(CreateAclsRequest([creation(), creation("t", **{field: 0})]), 3, ROOT) is CLOSE_CONNECTION


def test_only_who_may_alter_the_cluster_changes_acls(node: OneNode) -> None:
    assert create(node, creation(), principal=BOB)[0][0] == E.CLUSTER_AUTHORIZATION_FAILED
    answer = node.ask(DeleteAclsRequest([wanted()]), 3, BOB)
    assert answer.filter_results[0].error_code == E.CLUSTER_AUTHORIZATION_FAILED
    cluster = creation("kafka-cluster", resource_type=ResourceType.CLUSTER, operation=Op.ALTER)
    create(node, cluster)
    assert create(node, creation(), principal=BOB) == [(0, "")]
    assert names(described(node, wanted(), BOB)) == [
        ("kafka-cluster", 3, 1),
        ("t", 3, 1),
    ]  # ALTER allows DESCRIBE


def test_filters_that_would_take_too_long_are_refused(node: OneNode) -> None:
    many = [creation(f"t{number}") for number in range(1000)]
    assert set(create(node, *many)) == {(0, "")}
    answer = node.ask(DeleteAclsRequest([wanted("x", MATCH)] * 500), 3, ROOT)
    errors = [each.error_code for each in answer.filter_results]
    assert errors[0] == 0
    assert errors[-1] == E.INVALID_REQUEST


def test_a_request_changes_so_many_acls_at_most(node: OneNode) -> None:
    assert set(create(node, *[creation()] * 10_001)) == {
        (E.INVALID_REQUEST, "Cannot create more than 10000 acls in a single create operation.")
    }
    answer = node.ask(DeleteAclsRequest([wanted("t", LITERAL, TOPIC)] * 10_001), 3, ROOT)
    assert {each.error_code for each in answer.filter_results} == {E.INVALID_REQUEST}
