"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

import itertools

from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from compat_tests.conform.case import case
from compat_tests.conform.client import CLIENT_ID
from compat_tests.conform.session import Session
from compat_tests.harness.eventually import eventually

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
RATE = "producer_byte_rate"


def _entry(entity: dict[str, str | None], ops: list[tuple[str, float | None]]) -> EntryData:
    return EntryData(
        [EntityData(kind, name) for kind, name in entity.items()],
        [OpData(key, value or 0.0, value is None) for key, value in ops],
    )


def _alter(session: Session, *entries: EntryData, note: str, validate_only: bool = False) -> None:
    session.ask(AlterClientQuotasRequest(list(entries), validate_only), note=note)


def _set_up(
    session: Session, *entities: dict[str, str | None], key: str = RATE, value: float = 1000.0
) -> None:
    entries = [_entry(entity, [(key, value)]) for entity in entities]
    session.quiet(AlterClientQuotasRequest(entries))
    eventually(lambda: len(_quotas(session, entities)) == len(entities))


def _quotas(session: Session, entities: tuple[dict[str, str | None], ...]) -> list[object]:
    answer = session.quiet(DescribeClientQuotasRequest([]))
    known = [{part.entity_type: part.entity_name for part in each.entity} for each in answer.entries]
    return [each for each in entities if each in known]


def _clean_up(session: Session, *entities: dict[str, str | None], key: str = RATE) -> None:
    session.quiet(AlterClientQuotasRequest([_entry(entity, [(key, None)]) for entity in entities]))
    eventually(lambda: not _quotas(session, entities))


def _describe(
    session: Session, *components: tuple[str, int, str | None], strict: bool = False, note: str
) -> None:
    session.ask(DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict), note=note)


@case("AlterClientQuotas")
def refused_entities(session: Session) -> None:
    name = session.name()
    _alter(session, note="no entries")
    for entity in (
        {},
        {"nothing": name},
        {"": name},
        {"user": ""},
        {"client-id": ""},
        {"ip": ""},
        {"user": name, "ip": "127.0.0.1"},
        {"client-id": name, "ip": None},
        {"ip": f"{name}.invalid"},
        {"user": name, "nothing": "x"},
    ):
        key = "connection_creation_rate" if "ip" in entity else RATE
        _alter(session, _entry(dict(entity), [(key, 10.0)]), note=f"entity {sorted(entity.items(), key=str)}")
        _alter(
            session, _entry(dict(entity), []), note=f"entity without quotas {sorted(entity.items(), key=str)}"
        )


@case("AlterClientQuotas")
def refused_quotas(session: Session) -> None:
    name = session.name()
    for key in (
        RATE, "consumer_byte_rate", "request_percentage", "controller_mutation_rate", "connection_creation_rate",
        "nothing", "", "SCRAM-SHA-256",
    ):  # fmt: skip
        for entity in (
            {"user": name},
            {"client-id": name},
            {"user": name, "client-id": None},
            {"ip": "10.1.1.1"},
        ):
            for value in (0.0, -1.0, 0.5, 1.5, 1.0000000001, 3e9, 1e30, None):
                _alter(
                    session,
                    _entry(dict(entity), [(key, value)]),
                    note=f"{key} of {sorted(entity)} = {value}",
                    validate_only=True,
                )


@case("AlterClientQuotas")
def repeated(session: Session) -> None:
    user: dict[str, str | None] = {"user": session.name()}
    other: dict[str, str | None] = {"user": session.name("other")}
    _alter(session, _entry(user, [(RATE, 10.0), (RATE, 20.0)]), note="a key twice")
    _alter(session, _entry(user, [(RATE, 10.0), (RATE, None)]), note="a key set and removed")
    _alter(session, _entry(user, [(RATE, 10.0)]), _entry(user, [(RATE, 20.0)]), note="an entity twice")
    _alter(
        session,
        _entry(user, [(RATE, 0.0)]),
        _entry(user, [(RATE, 20.0)]),
        _entry(other, [(RATE, 0.0)]),
        note="an entity twice, at fault first",
    )
    eventually(lambda: _quotas(session, (user,)))
    _describe(session, ("user", EXACT, user["user"]), note="what is left")
    doubled = EntryData([EntityData("user", "x"), EntityData("user", user["user"])], [OpData(RATE, 30.0)])
    _alter(session, doubled, note="a type twice in an entity")
    _clean_up(session, user)


@case("AlterClientQuotas")
def changes(session: Session) -> None:
    name = session.name()
    user: dict[str, str | None] = {"user": name}
    _alter(session, _entry(user, [(RATE, None)]), note="remove what is not there")
    _alter(session, _entry(user, [(RATE, 10.0)]), note="only validated", validate_only=True)
    _describe(session, ("user", EXACT, name), note="after the validation")
    _set_up(session, user)
    _alter(session, _entry(user, [(RATE, 1000.0)]), note="the same value")
    _alter(session, _entry(user, [(RATE, 2000.0), ("request_percentage", 12.5)]), note="another value")
    eventually(lambda: _value(session, name) == 2000.0)
    _describe(session, ("user", EXACT, name), note="after the change")
    _alter(session, _entry(user, [(RATE, 1.0), ("nothing", 1.0)]), note="one key at fault")
    _alter(session, _entry(user, [(RATE, None), ("request_percentage", None)]), note="removed")
    eventually(lambda: not _quotas(session, (user,)))
    _describe(session, ("user", EXACT, name), note="after all")


def _value(session: Session, user: str) -> float | None:
    answer = session.quiet(DescribeClientQuotasRequest([ComponentData("user", EXACT, user)], True))
    for each in answer.entries:
        for value in each.values:
            if value.key == RATE:
                return float(value.value)
    return None


@case("DescribeClientQuotas")
def filters(session: Session) -> None:
    name, client = session.name(), session.name("client")
    entities: tuple[dict[str, str | None], ...] = (
        {"user": name},
        {"client-id": client},
        {"user": name, "client-id": client},
        {"user": name, "client-id": None},
        {"user": None, "client-id": client},
    )
    _set_up(session, *entities)
    for strict in (False, True):
        for components in (
            (("user", EXACT, name),),
            (("client-id", EXACT, client),),
            (("user", EXACT, name), ("client-id", EXACT, client)),
            (("user", EXACT, name), ("client-id", DEFAULT, None)),
            (("user", DEFAULT, None), ("client-id", EXACT, client)),
            (("user", EXACT, name), ("client-id", SPECIFIED, None)),
            (("user", SPECIFIED, None), ("client-id", EXACT, client)),
            (("user", EXACT, name + "x"),),
            (("user", EXACT, ""),),
            (("ip", SPECIFIED, None),),
        ):
            _describe(
                session, *components, strict=strict, note=f"{components}, strict={strict}".replace(name, "N")
            )
    _describe(session, strict=True, note="no components, strict")
    _clean_up(session, *entities)


@case("DescribeClientQuotas")
def addresses(session: Session) -> None:
    entities: tuple[dict[str, str | None], ...] = ({"ip": "10.1.2.3"}, {"ip": None})
    _set_up(session, *entities, key="connection_creation_rate", value=100.0)
    _describe(session, ("ip", EXACT, "10.1.2.3"), note="an address")
    _describe(session, ("ip", DEFAULT, None), note="the default")
    _describe(session, ("ip", SPECIFIED, None), note="any")
    _describe(session, ("ip", SPECIFIED, None), strict=True, note="any, strict")
    _clean_up(session, *entities, key="connection_creation_rate")


@case("DescribeClientQuotas")
def refused_filters(session: Session) -> None:
    for components in (
        (("", EXACT, "x"),),
        (("nothing", EXACT, "x"),),
        (("nothing", 9, "x"),),
        (("user", EXACT, "x"), ("user", DEFAULT, None)),
        (("user", EXACT, None),),
        (("user", DEFAULT, "x"),),
        (("user", SPECIFIED, "x"),),
        (("user", 3, None),),
        (("user", -1, None),),
        (("user", EXACT, "x"), ("ip", EXACT, "y")),
        (("client-id", SPECIFIED, None), ("ip", DEFAULT, None)),
        (("user", EXACT, "x"), ("nothing", EXACT, "x")),
    ):
        for strict in (False, True):
            _describe(session, *components, strict=strict, note=f"{components}, strict={strict}")


MUTATIONS = "controller_mutation_rate"
_CONFORM: dict[str, str | None] = {"client-id": CLIENT_ID}


def _overdraw(session: Session) -> str:
    """Leave the quota overdrawn for some minutes; the name of a topic of one partition that exists."""
    _set_up(session, _CONFORM, key=MUTATIONS, value=1e9)  # what was overdrawn before is there again
    small = session.create_topic("small").name
    session.quiet(AlterClientQuotasRequest([_entry(_CONFORM, [(MUTATIONS, 0.5)])]))
    numbers = itertools.count()

    def is_overdrawn() -> bool:
        number = next(numbers)
        topic = CreatableTopic(session.name(f"large{number}"), 100, 1)
        answer = session.quiet(CreateTopicsRequest([topic], 5000), on=f"setup {number}")
        return bool(answer.topics[0].error_code == 89)

    eventually(is_overdrawn)
    return small


def _ask_apart(session: Session, request: object, note: str) -> None:
    """On a connection of its own: one that is throttled is not served for long."""
    session.ask(request, on=note, note=note)


@case("CreateTopics")
def beyond_the_quota(session: Session) -> None:
    _overdraw(session)
    for note, topic, validate_only in (
        ("small", CreatableTopic(session.name("new"), 1, 1), False),
        ("validated", CreatableTopic(session.name("other"), 1, 1), True),
        ("invalid", CreatableTopic(session.name("other"), 1, 77), False),
    ):
        _ask_apart(session, CreateTopicsRequest([topic], 5000, validate_only), note)
    _clean_up(session, _CONFORM, key=MUTATIONS)


@case("DeleteTopics")
def deletes_beyond_the_quota(session: Session) -> None:
    small = _overdraw(session)
    for note, name in (("absent", session.name("absent")), ("small", small)):
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name)],
            topic_names=[name] if session.version < 6 else [],
            timeout_ms=5000,
        )
        _ask_apart(session, request, note)
    _clean_up(session, _CONFORM, key=MUTATIONS)


@case("CreatePartitions")
def partitions_beyond_the_quota(session: Session) -> None:
    small = _overdraw(session)
    for note, count, validate_only in (("fewer", 1, False), ("validated", 2, True), ("more", 2, False)):
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(small, count, None)], timeout_ms=5000, validate_only=validate_only
        )
        _ask_apart(session, request, note)
    _clean_up(session, _CONFORM, key=MUTATIONS)
