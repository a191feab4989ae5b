"""InitProducerId without a transactional id, and FindCoordinator."""

from __future__ import annotations

from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from compat_tests.conform.case import case
from compat_tests.conform.cases.groups import coordinated
from compat_tests.conform.session import Session
from compat_tests.conform.transactional import coordinate
from compat_tests.harness.eventually import eventually


def _await_ids(session: Session) -> None:
    """Wait until the broker has got its first ids from the controller."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000)
    eventually(lambda: session.quiet(request).error_code == 0)


@case("InitProducerId")
def new_ids(session: Session) -> None:
    _await_ids(session)
    for note in ("first", "second"):
        session.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000), note=note)
    for timeout in (0, -1, 2**31 - 1):
        session.ask(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout),
            note=f"timeout {timeout}",
        )


@case("InitProducerId", first=3)
def known_ids(session: Session) -> None:
    _await_ids(session)
    for producer_id, epoch in ((5, 3), (5, -1), (-1, 5), (123456789, 32767)):
        session.ask(
            InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=60000,
                producer_id=producer_id,
                producer_epoch=epoch,
            ),
            note=f"id {producer_id} epoch {epoch}",
        )


@case("InitProducerId")
def empty_transactional_id(session: Session) -> None:
    session.ask(InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60000))


@case("FindCoordinator")
def coordinators(session: Session) -> None:
    def ask(key: str, key_type: int, note: str) -> None:
        session.ask(FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key]), note=note)

    coordinated(session, session.name("group"))
    ask(session.name("group"), 0, "group")
    ask("", 0, "empty group")
    if session.version >= 1:
        ask("x", 3, "unknown key type")
        ask("x", -1, "key type -1")
        coordinate(session, "")
        ask("", 1, "empty transactional id")
        ask("a:b:c", 2, "share key without a topic id")
        ask("nonsense", 2, "share key that is none")
    if session.version >= 4:
        session.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[]), note="no keys")
        session.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["a", "b", "a"]), note="several")
