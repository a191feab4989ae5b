"""Users of SCRAM on a node: that they survive a restart, what is kept of a password, and who may see and change them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.security.caller import Principal
from barnabas.broker.tests.one_node import OneNode
from barnabas.controller.operations.scram import SHA_256, SHA_512
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

ROOT, ALICE = Principal("User", "root"), Principal("User", "alice")
SALTED = hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 4096)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    node = OneNode(
        f"log.dirs={tmp_path}",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:root",
    )
    yield node
    node.node.stop()


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name, mechanism, iterations, b"salt", SALTED)


def alter(
    node: OneNode,
    *changes: ScramCredentialUpsertion | ScramCredentialDeletion,
    principal: Principal = ROOT,
) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    return {each.user: each.error_code for each in node.ask(request, 0, principal).results}


def describe(node: OneNode, *names: str, principal: Principal = ROOT) -> Any:
    users = [UserName(name) for name in names] or None
    return node.ask(DescribeUserScramCredentialsRequest(users), 0, principal)


def described(node: OneNode, *names: str) -> dict[str, list[tuple[int, int]]]:
    return {
        each.user: [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in describe(node, *names).results
    }


def test_users_survive_a_restart(node: OneNode) -> None:
    assert alter(node, upsertion("bob"), upsertion("carol", SHA_512, 8192)) == {
        "bob": E.NONE,
        "carol": E.NONE,
    }
    assert alter(node, upsertion("bob", SHA_512)) == {"bob": E.NONE}
    expected = {"bob": [(SHA_256, 4096), (SHA_512, 4096)], "carol": [(SHA_512, 8192)]}
    assert described(node) == expected
    node.restart()
    assert described(node) == expected
    assert alter(
        node, ScramCredentialDeletion("bob", SHA_256), ScramCredentialDeletion("carol", SHA_512)
    ) == {
        "bob": E.NONE,
        "carol": E.NONE,
    }
    assert described(node) == {"bob": [(SHA_512, 4096)]}


def test_no_file_holds_a_password(node: OneNode, tmp_path: Path) -> None:
    alter(node, upsertion("bob"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    contents = [path.read_bytes() for path in files]
    assert any(b"bob" in content for content in contents)
    assert not any(SALTED in content or b"secret" in content for content in contents)


def test_a_user_fails_by_itself(node: OneNode) -> None:
    assert alter(node, upsertion("bob"), upsertion("bob", SHA_512), upsertion("carol"), upsertion("", 3)) == {
        "bob": E.DUPLICATE_RESOURCE,
        "carol": E.NONE,
        "": E.UNACCEPTABLE_CREDENTIAL,
    }
    assert described(node) == {"carol": [(SHA_256, 4096)]}


def test_who_may_see_and_change_users(node: OneNode) -> None:
    assert alter(node, upsertion("bob"), principal=ALICE) == {"bob": E.CLUSTER_AUTHORIZATION_FAILED}
    assert described(node) == {}
    for names in ((), ("bob", "carol")):
        answer = describe(node, *names, principal=ALICE)
        assert answer.error_code == E.CLUSTER_AUTHORIZATION_FAILED
        refused = [(each.user, each.error_code) for each in answer.results]
        assert refused == [("", E.CLUSTER_AUTHORIZATION_FAILED)] * len(names)


def test_more_than_a_request_may_have_is_refused(node: OneNode) -> None:
    many = [upsertion(f"user{number}") for number in range(10_001)]
    assert set(alter(node, *many).values()) == {E.INVALID_REQUEST}
    assert describe(node, *[each.name for each in many]).error_code == E.INVALID_REQUEST
    assert described(node) == {}
