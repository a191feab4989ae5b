"""Delegation tokens on a node: who may make, see, renew and end them, how long they live, and that they survive a restart."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.security.caller import ANONYMOUS, Principal
from barnabas.broker.tests.one_node import OneNode
from barnabas.controller.metadata.acls import Operation, PatternType, Permission, ResourceType
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from barnabas.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

ROOT, ALICE, BOB, CAROL = (Principal("User", name) for name in ("root", "alice", "bob", "carol"))
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
SECRET = "a secret of the cluster"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    node = OneNode(
        f"log.dirs={tmp_path}",
        f"delegation.token.secret.key={SECRET}",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:root",
    )
    yield node
    node.node.stop()


def create(
    node: OneNode,
    principal: Principal = ALICE,
    *renewers: Principal,
    owner: Principal | None = None,
    max_lifetime_ms: int = -1,
) -> Any:
    request = CreateDelegationTokenRequest(
        None if owner is None else owner.type,
        None if owner is None else owner.name,
        [CreatableRenewers(each.type, each.name) for each in renewers],
        max_lifetime_ms,
    )
    return node.ask(request, 3, principal)


def renew(node: OneNode, token: Any, principal: Principal, period_ms: int = -1) -> tuple[int, int]:
    answer = node.ask(RenewDelegationTokenRequest(token.hmac, period_ms), 2, principal)
    return answer.error_code, answer.expiry_timestamp_ms


def expire(node: OneNode, token: Any, principal: Principal, period_ms: int = -1) -> tuple[int, int]:
    answer = node.ask(ExpireDelegationTokenRequest(token.hmac, period_ms), 2, principal)
    return answer.error_code, answer.expiry_timestamp_ms


def visible(node: OneNode, principal: Principal, *owners: Principal) -> list[str]:
    named = [DescribeDelegationTokenOwner(each.type, each.name) for each in owners]
    answer = node.ask(DescribeDelegationTokenRequest(named or None), 3, principal)
    assert answer.error_code == E.NONE
    return [each.token_id for each in answer.tokens]


def allow(node: OneNode, principal: Principal, operation: Operation, kind: ResourceType, name: str) -> None:
    acl = AclCreation(kind, name, PatternType.LITERAL, str(principal), "*", operation, Permission.ALLOW)
    (result,) = node.ask(CreateAclsRequest([acl]), 3, ROOT).results
    assert result.error_code == E.NONE


def test_a_token_lives_a_day_and_is_found_by_its_hmac(node: OneNode) -> None:
    now_ms = node.runtime.time_ms()
    token = create(node, ALICE, BOB)
    assert token.error_code == E.NONE
    assert (token.principal_type, token.principal_name) == ("User", "alice")
    assert token.issue_timestamp_ms == now_ms
    assert token.expiry_timestamp_ms == now_ms + DAY_MS
    assert token.max_timestamp_ms == now_ms + 7 * DAY_MS
    assert token.hmac == hmac.digest(SECRET.encode(), token.token_id.encode(), "sha512")
    node.restart()
    (described,) = node.ask(DescribeDelegationTokenRequest(None), 3, ALICE).tokens
    assert described.hmac == token.hmac
    assert [(each.principal_type, each.principal_name) for each in described.renewers] == [("User", "bob")]


def test_a_shorter_life_may_be_asked_for_and_a_longer_one_may_not(node: OneNode) -> None:
    short, long = create(node, max_lifetime_ms=HOUR_MS), create(node, max_lifetime_ms=30 * DAY_MS)
    assert short.expiry_timestamp_ms == short.max_timestamp_ms == short.issue_timestamp_ms + HOUR_MS
    assert long.max_timestamp_ms == long.issue_timestamp_ms + 7 * DAY_MS


@pytest.mark.parametrize("tokenless", [False, True])
def test_who_is_not_authenticated_gets_nothing(tmp_path: Path, *, tokenless: bool) -> None:
    settings = [] if tokenless else [f"delegation.token.secret.key={SECRET}"]
    node = OneNode(f"log.dirs={tmp_path}", *settings)
    answers = [
        create(node, ANONYMOUS),
        node.ask(RenewDelegationTokenRequest(b"x", -1), 2, ANONYMOUS),
        node.ask(ExpireDelegationTokenRequest(b"x", -1), 2, ANONYMOUS),
        node.ask(DescribeDelegationTokenRequest(None), 3, ANONYMOUS),
    ]
    node.node.stop()
    assert {each.error_code for each in answers} == {E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}
    assert [answers[0].max_timestamp_ms, *[each.expiry_timestamp_ms for each in answers[:3]]] == [-1] * 4


def test_without_a_secret_there_are_no_tokens(tmp_path: Path) -> None:
    node = OneNode(f"log.dirs={tmp_path}")
    answers = [
        create(node),
        node.ask(RenewDelegationTokenRequest(b"x", -1), 2, ALICE),
        node.ask(ExpireDelegationTokenRequest(b"x", -1), 2, ALICE),
        node.ask(DescribeDelegationTokenRequest(None), 3, ALICE),
    ]
    node.node.stop()
    assert {each.error_code for each in answers} == {E.DELEGATION_TOKEN_AUTH_DISABLED}


def test_a_token_for_another_needs_the_right_to_make_it(node: OneNode) -> None:
    refused = create(node, BOB, owner=ALICE)
    assert refused.error_code == E.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    allow(node, BOB, Operation.CREATE_TOKENS, ResourceType.USER, "User:alice")
    token = create(node, BOB, owner=ALICE)
    assert token.error_code == E.NONE
    assert (token.principal_name, token.token_requester_principal_name) == ("alice", "bob")
    assert visible(node, ALICE) == visible(node, BOB) == [token.token_id]


def test_renewers_are_users(node: OneNode) -> None:
    assert create(node, ALICE, Principal("Group", "g")).error_code == E.INVALID_PRINCIPAL_TYPE


def test_the_owner_and_the_renewers_prolong_a_token_and_others_do_not(node: OneNode) -> None:
    token = create(node, ALICE, BOB)
    node.runtime.advance(3600)
    now_ms = node.runtime.time_ms()
    assert renew(node, token, BOB) == (E.NONE, now_ms + DAY_MS)
    assert renew(node, token, ALICE, HOUR_MS) == (E.NONE, now_ms + HOUR_MS)
    assert renew(node, token, ALICE, 30 * DAY_MS) == (E.NONE, now_ms + DAY_MS)
    assert renew(node, token, CAROL)[0] == E.DELEGATION_TOKEN_OWNER_MISMATCH
    token.hmac = b"no token's"
    assert renew(node, token, ALICE)[0] == E.DELEGATION_TOKEN_NOT_FOUND


def test_no_token_lives_longer_than_its_longest_life(node: OneNode) -> None:
    token = create(node, max_lifetime_ms=2 * HOUR_MS)
    assert renew(node, token, ALICE) == (E.NONE, token.max_timestamp_ms)
    node.runtime.advance(2 * 3600 + 1)
    assert renew(node, token, ALICE)[0] in (E.DELEGATION_TOKEN_EXPIRED, E.DELEGATION_TOKEN_NOT_FOUND)


def test_a_token_is_ended_now_or_earlier_than_it_would(node: OneNode) -> None:
    token, other = create(node), create(node)
    now_ms = node.runtime.time_ms()
    assert expire(node, token, CAROL)[0] == E.DELEGATION_TOKEN_OWNER_MISMATCH
    assert expire(node, token, ALICE, HOUR_MS) == (E.NONE, now_ms + HOUR_MS)
    assert expire(node, token, ALICE) == (E.NONE, now_ms)
    assert expire(node, token, ALICE)[0] == E.DELEGATION_TOKEN_NOT_FOUND
    assert visible(node, ALICE) == [other.token_id]


def test_an_expired_token_is_removed_by_the_controller(node: OneNode) -> None:
    token = create(node, max_lifetime_ms=1000)
    node.runtime.advance(2)
    assert visible(node, ALICE) == [token.token_id], "it is looked for once in an hour"
    assert expire(node, token, ALICE, HOUR_MS)[0] == E.DELEGATION_TOKEN_EXPIRED
    node.runtime.advance(3600)
    assert visible(node, ALICE) == []


def test_tokens_are_seen_by_those_who_have_to_do_with_them(node: OneNode) -> None:
    first, second = create(node, ALICE, BOB), create(node, CAROL)
    assert visible(node, BOB) == [first.token_id]
    assert visible(node, ALICE, CAROL) == []
    assert visible(node, ROOT, CAROL) == [second.token_id]
    assert sorted(visible(node, ROOT)) == sorted([first.token_id, second.token_id])
    allow(node, BOB, Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:carol")
    assert sorted(visible(node, BOB)) == sorted([first.token_id, second.token_id])
    allow(node, ALICE, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, second.token_id)
    assert sorted(visible(node, ALICE)) == sorted([first.token_id, second.token_id])
    assert node.ask(DescribeDelegationTokenRequest([]), 3, ROOT).tokens == []


def test_who_asked_for_a_token_in_anothers_name_sees_it_and_neither_prolongs_nor_ends_it(
    node: OneNode,
) -> None:
    allow(node, BOB, Operation.CREATE_TOKENS, ResourceType.USER, "User:alice")
    token = create(node, BOB, owner=ALICE)
    assert visible(node, BOB) == [token.token_id]
    assert renew(node, token, BOB)[0] == E.DELEGATION_TOKEN_OWNER_MISMATCH
    ended = node.ask(ExpireDelegationTokenRequest(token.hmac, -1), 2, BOB)
    assert ended.error_code == E.DELEGATION_TOKEN_OWNER_MISMATCH
    assert renew(node, token, ALICE)[0] == E.NONE
