"""The APIs of delegation tokens on a listener that authenticates no client."""

from __future__ import annotations

from barnabas.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from barnabas.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from compat_tests.conform.case import case
from compat_tests.conform.session import Session


@case("CreateDelegationToken")
def create_on_plaintext(session: Session) -> None:
    session.ask(CreateDelegationTokenRequest(None, None, [], -1), note="not authenticated")
    group = CreatableRenewers("Group", "g")
    session.ask(CreateDelegationTokenRequest(None, None, [group], -1), note="a renewer that is no user")


@case("RenewDelegationToken")
def renew_on_plaintext(session: Session) -> None:
    session.ask(RenewDelegationTokenRequest(b"none", -1), note="not authenticated")


@case("ExpireDelegationToken")
def expire_on_plaintext(session: Session) -> None:
    session.ask(ExpireDelegationTokenRequest(b"none", -1), note="not authenticated")


@case("DescribeDelegationToken")
def describe_on_plaintext(session: Session) -> None:
    session.ask(DescribeDelegationTokenRequest(None), note="all owners")
    session.ask(DescribeDelegationTokenRequest([]), note="no owner")
