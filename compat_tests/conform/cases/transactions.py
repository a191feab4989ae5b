"""InitProducerId with ids, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn in every state of a transactional id."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from compat_tests.conform.case import case
from compat_tests.conform.cases.groups import coordinated
from compat_tests.conform.cases.shared import fetch_all
from compat_tests.conform.session import Session, Topic
from compat_tests.conform.transactional import (
    ADD_BY_BROKER,
    ANOTHER_ID,
    END,
    END_RAISES_EPOCH,
    STATES,
    TRANSACTION,
    Producer,
    coordinate,
)
from compat_tests.harness.eventually import eventually

CONCURRENT_TRANSACTIONS = 51


def _describe(session: Session, producer: Producer, note: str) -> None:
    """Record the state, once no marker is missing that can be written."""
    request = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id])
    if not note.startswith("Prepare"):
        producer.await_end()
    session.ask(request, version=0, note=f"{note}: state")


def _identities(producer: Producer) -> dict[str, tuple[int, int]]:
    """Producer ids and epochs that are not the present ones."""
    return {
        "another id": (producer.id + ANOTHER_ID, producer.epoch),
        "lower epoch": (producer.id, producer.epoch - 1),
        "higher epoch": (producer.id, producer.epoch + 1),
    }


# -- FindCoordinator


@case("FindCoordinator", first=1)
def coordinators_of_transactions(session: Session) -> None:
    first, second = session.name("x"), session.name("y")
    coordinate(session, first)
    session.ask(FindCoordinatorRequest(key=first, key_type=TRANSACTION, coordinator_keys=[first, second]))
    session.ask(FindCoordinatorRequest(key="", key_type=TRANSACTION, coordinator_keys=[""]), note="empty id")


# -- InitProducerId


def _init(session: Session, producer: Producer, note: str, producer_id: int = -1, epoch: int = -1) -> None:
    """Ask once, and where another transaction is in the way also for the answer after it."""
    request = producer.init_request(producer_id, epoch)
    answer = session.ask(request, note=note)
    if answer is not None and answer.error_code == CONCURRENT_TRANSACTIONS and not note.startswith("Prepare"):
        producer.await_end()
        session.ask(request, note=f"{note}, repeated")


@case("InitProducerId")
def new_transactional_ids(session: Session) -> None:
    name = session.name("id")
    coordinate(session, name)

    def ask(note: str, **fields: Any) -> None:
        request = InitProducerIdRequest(transactional_id=name, **{"transaction_timeout_ms": 60_000, **fields})
        session.ask(request, note=note)

    for timeout in (0, -1, 900_001, 2**31 - 1):
        ask(f"timeout {timeout}", transaction_timeout_ms=timeout)
    for note in ("first", "second"):
        ask(note, transaction_timeout_ms=900_000)
    if session.version >= 3:
        name = session.name("other")
        coordinate(session, name)
        ask("an id without an epoch", producer_id=5)
        ask("an epoch without an id", producer_epoch=5)
        ask("ids of an unknown transactional id", producer_id=5, producer_epoch=5)
        ask("again", producer_id=5, producer_epoch=5)


@case("InitProducerId")
def initialized_in_every_state(session: Session) -> None:
    topic = session.create_topic("a", 2)
    for state in STATES:
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)
        _init(session, producer, f"{state}: without ids")
        _describe(session, producer, state)


@case("InitProducerId", first=3)
def repeated_with_ids_in_every_state(session: Session) -> None:
    topic = session.create_topic("a", 2)
    for state in STATES:
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)
        present = producer.id, producer.epoch
        if state != "Ongoing":  # where any epoch of the id fences
            for note, identity in _identities(producer).items():
                _init(session, producer, f"{state}: {note}", *identity)
        else:
            _init(session, producer, f"{state}: another id", present[0] + ANOTHER_ID, present[1])
        for note in ("present ids", "present ids again"):
            _init(session, producer, f"{state}: {note}", *present)
        _init(session, producer, f"{state}: present ids a third time", *present)
        _describe(session, producer, state)


@case("InitProducerId", first=3)
def a_fence_compares_the_producer_id_only(session: Session) -> None:
    topic = session.create_topic("a", 2)
    for difference in (-1, 1, 100):
        producer = Producer(session, f"by{difference}")
        producer.reach("Ongoing", topic)
        _init(session, producer, f"epoch {difference:+}", producer.id, producer.epoch + difference)
        _describe(session, producer, f"epoch {difference:+}")


# -- AddPartitionsToTxn


@case("AddPartitionsToTxn", last=3)
def added_in_every_state(session: Session) -> None:
    topic = session.create_topic("a", 2)
    for state in STATES:
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)
        for note, (producer_id, epoch) in _identities(producer).items():
            request = producer.add_request((topic, 0), producer_id=producer_id, epoch=epoch)
            session.ask(request, note=f"{state}: {note}")
        session.ask(producer.add_request((topic, 0), (session.name("no"), 0)), note=f"{state}: no topic")
        session.ask(producer.add_request((topic, 0), (topic, 7)), note=f"{state}: no such partition")
        session.ask(producer.add_request((topic, 0)), note=f"{state}: first partition")
        session.ask(producer.add_request((topic, 0), (topic, 1)), note=f"{state}: second partition")
        session.ask(producer.add_request((topic, 1)), note=f"{state}: second partition again")
        _describe(session, producer, state)


@case("AddPartitionsToTxn", first=4)
def added_by_brokers_in_every_state(session: Session) -> None:
    topic = session.create_topic("a", 2)
    for state in STATES:
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)
        for verify_only in (True, False):
            kind = f"{state}: {'verify' if verify_only else 'add'}"
            for note, (producer_id, epoch) in _identities(producer).items():
                request = producer.add_request(
                    (topic, 0), producer_id=producer_id, epoch=epoch, verify_only=verify_only
                )
                session.ask(request, note=f"{kind}, {note}")
            wanted: dict[str, list[tuple[Topic | str, int]]] = {
                "no topic": [(topic, 0), (session.name("no"), 0)],
                "no such partition": [(topic, 0), (topic, 7)],
                "first partition": [(topic, 0)],
                "both partitions": [(topic, 0), (topic, 1)],
            }
            for note, partitions in wanted.items():
                request = producer.add_request(*partitions, verify_only=verify_only)
                session.ask(request, note=f"{kind}, {note}")
        _describe(session, producer, state)


@case("AddPartitionsToTxn", last=3)
def added_to_unknown_transactional_ids(session: Session) -> None:
    topic = session.create_topic()
    producer = Producer(session, "id")
    for note, name in {"unknown": session.name("unknown"), "empty": ""}.items():
        producer.transactional_id = name
        session.ask(producer.add_request((topic, 0)), note=note)


@case("AddPartitionsToTxn", first=4)
def many_transactions(session: Session) -> None:
    """Each gets its own result."""
    topic = session.create_topic("a", 2)
    first, second = Producer(session, "first"), Producer(session, "second")
    first.add((topic, 0))
    transactions = [
        *first.add_request((topic, 0), verify_only=True).transactions,
        *second.add_request((topic, 1)).transactions,
        AddPartitionsToTxnTransaction(
            transactional_id=session.name("unknown"),
            producer_id=first.id,
            topics=first.add_request((topic, 0)).transactions[0].topics,
        ),
    ]
    session.ask(AddPartitionsToTxnRequest(transactions=transactions))
    for producer in (first, second):
        _describe(session, producer, producer.transactional_id)


# -- AddOffsetsToTxn


@case("AddOffsetsToTxn")
def offsets_added_in_every_state(session: Session) -> None:
    group = session.name("group")
    coordinated(session, group)
    topic = session.create_topic("a", 2)
    for state in STATES:
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)
        for note, identity in _identities(producer).items():
            session.ask(producer.offsets_request(group, *identity), note=f"{state}: {note}")
        session.ask(producer.offsets_request(""), note=f"{state}: empty group")
        for note in ("good", "again"):
            session.ask(producer.offsets_request(group), note=f"{state}: {note}")
        state_now = producer.state()
        session.record(f"{state}: state", state_now.transaction_state)
        session.record(f"{state}: topics", sorted(each.topic for each in state_now.topics))


@case("AddOffsetsToTxn")
def offsets_of_unknown_transactional_ids(session: Session) -> None:
    producer = Producer(session, "id")
    for note, name in {"unknown": session.name("unknown"), "empty": ""}.items():
        producer.transactional_id = name
        session.ask(producer.offsets_request("group"), note=note)


# -- EndTxn


@case("EndTxn")
def ended_in_every_state(session: Session) -> None:
    topic = session.create_topic("a", 2)
    for state in STATES:
        for committed in (True, False):
            kind = f"{state}: {'commit' if committed else 'abort'}"
            producer = Producer(session, kind.replace(": ", "-").replace(" ", "-"))
            producer.reach(state, topic)
            for note, identity in _identities(producer).items():
                session.ask(producer.end_request(committed, *identity), note=f"{kind}, {note}")
            session.ask(producer.end_request(committed), note=kind)
            _describe(session, producer, kind)
            session.ask(producer.end_request(committed), note=f"{kind}, repeated")
            session.ask(producer.end_request(not committed), note=f"{kind}, then the other end")
            _describe(session, producer, f"{kind}, repeated")


@case("EndTxn")
def ends_of_unknown_transactional_ids(session: Session) -> None:
    coordinate(session, session.name("unknown"))
    for note, name in {"unknown": session.name("unknown"), "empty": ""}.items():
        request = EndTxnRequest(transactional_id=name, producer_id=5, producer_epoch=0, committed=True)
        session.ask(request, note=note)


@case("EndTxn")
def markers_of_ends(session: Session) -> None:
    """What the log holds after two ends, without any data."""
    topic = session.create_topic("a", 1)
    producer = Producer(session, "id")
    version = ADD_BY_BROKER if session.version >= END_RAISES_EPOCH else 3
    for committed in (True, False):
        producer.add((topic, 0), version=version)
        producer.end(committed, version=session.version)
    fetch_all(session, topic)


# -- DescribeTransactions, ListTransactions


@case("DescribeTransactions")
def described_in_every_state(session: Session) -> None:
    topic = session.create_topic("a", 2)
    for state in STATES:
        producer = Producer(session, state.replace(" ", "-"), timeout_ms=45_000)
        producer.reach(state, topic)
        _describe(session, producer, state)


@case("DescribeTransactions")
def described_together(session: Session) -> None:
    producer = Producer(session, "id")
    names = [producer.transactional_id, session.name("unknown"), ""]
    session.ask(DescribeTransactionsRequest(transactional_ids=names), note="three")
    session.ask(DescribeTransactionsRequest(transactional_ids=[names[0]] * 2), note="one twice")
    session.ask(DescribeTransactionsRequest(transactional_ids=[]), note="none")


@case("ListTransactions")
def listed_in_every_state(session: Session) -> None:
    topic = session.create_topic("a", 2)
    ids = []
    for state in STATES:
        producer = Producer(session, state.replace(" ", "-"))
        producer.reach(state, topic)
        ids.append(producer.id)

    def ask(note: str, **fields: object) -> None:
        request = ListTransactionsRequest(**{"producer_id_filters": ids, **fields})  # type: ignore[arg-type]
        session.ask(request, note=note)

    ask("all")
    for state in ("Empty", "Ongoing", "PrepareCommit", "CompleteAbort", "Dead", "PrepareEpochFence"):
        ask(state, state_filters=[state])
    ask("two states", state_filters=["Ongoing", "Empty"])
    ask("unknown states", state_filters=["Nonsense", "Ongoing", "empty", ""])
    ask("only unknown states", state_filters=["Nonsense"])
    ask("one id", producer_id_filters=ids[:1])
    ask("an id of none", producer_id_filters=[ids[0] + ANOTHER_ID])
    if session.version >= 1:
        for duration in (0, -2, 3_600_000):
            ask(f"duration {duration}", duration_filter=duration)
    if session.version >= 2:
        for pattern in (
            ".*",
            "",
            ".*-Ongoing",
            "Ongoing",
            ".*(Empty|Ongoing)",
            "(?i).*ONGOING",
            ".*-[A-E]\\w+",
            "(",
            "*",
            "a{2,1}",
            "(?=.*)x",
            "(.)\\1",
            "\\pN",
            "[",
        ):
            ask(f"pattern {pattern}", transactional_id_pattern=pattern)


# -- timeouts


@case("EndTxn", first=END)
def ended_after_the_timeout(session: Session) -> None:
    """The coordinator has aborted the transaction; the log shows the epoch of its marker."""
    topic = session.create_topic("a", 2)
    producer = Producer(session, "id", timeout_ms=1)
    producer.add((topic, 0), version=ADD_BY_BROKER if session.version >= END_RAISES_EPOCH else 3)
    eventually(lambda: producer.state().transaction_state == "CompleteAbort")
    session.ask(DescribeTransactionsRequest([producer.transactional_id]), version=0, note="state")
    for committed in (True, False):
        session.ask(producer.end_request(committed), note=f"committed {committed}")
    session.ask(producer.add_request((topic, 1)), version=3, note="added")
    session.ask(producer.init_request(producer.id, producer.epoch), version=4, note="initialized")
    fetch_all(session, topic)
