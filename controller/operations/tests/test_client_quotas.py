"""Client quotas: what is decided is what a plain dictionary would have, and a snapshot has the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, QuotaEntity
from barnabas.controller.metadata.records import decode_record, encode_record
from barnabas.controller.operations.client_quotas import alter_client_quotas, describe_client_quotas
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_client_quotas import EntityData, EntryData, OpData
from barnabas.wire.messages.describe_client_quotas import ComponentData

KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
names = st.sampled_from(["a", "b", None])
entities = st.dictionaries(st.sampled_from(["user", "client-id"]), names, min_size=1)
changes = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([1.0, 2.0, None]))


def altered(
    image: MetadataImage, entity: Mapping[str, str | None], values: Mapping[str, float | None]
) -> list[object]:
    """The records of the change, which is made."""
    entry = EntryData(
        [EntityData(kind, name) for kind, name in entity.items()],
        [OpData(key, value or 0.0, value is None) for key, value in values.items()],
    )
    decision = alter_client_quotas(image, [entry], lambda _: True, validate_only=False)
    assert list(decision.response.values()) == [None]
    replay(image, decision.records)
    return list(decision.records)


def replay(image: MetadataImage, records: Iterable[object]) -> None:
    for record in records:
        image.replay(decode_record(encode_record(record)), MetadataDelta())  # type: ignore[arg-type]


def described(image: MetadataImage, *components: ComponentData, strict: bool) -> list[dict[str, str | None]]:
    steps = describe_client_quotas(image, components, strict=strict)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return [{part.entity_type: part.entity_name for part in each.entity} for each in end.value]


@given(st.lists(st.tuples(entities, changes)))
def test_changes_lead_to_what_a_dictionary_would_have(
    steps: list[tuple[dict[str, str | None], dict[str, float | None]]],
) -> None:
    image = MetadataImage()
    model: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {}
    for entity, values in steps:
        key: QuotaEntity = tuple(sorted(entity.items()))
        before = dict(model.get(key, {}))
        for name, value in values.items():
            if value is None:
                model.get(key, {}).pop(name, None)
            else:
                model.setdefault(key, {})[name] = value
        if not model.get(key):
            model.pop(key, None)
        has_changed = before != model.get(key, {})
        assert bool(altered(image, entity, values)) == has_changed, "a record for each change and no other"
    from_snapshot = MetadataImage()
    replay(from_snapshot, image.records())
    assert image.client_quotas == model
    assert from_snapshot.client_quotas == model
    assert image.copy().client_quotas == model


@given(st.lists(entities), st.dictionaries(st.sampled_from(["user", "client-id"]), names), st.booleans())
def test_a_filter_finds_the_entities_that_have_its_components(
    known: list[dict[str, str | None]], wanted: dict[str, str | None], strict: bool
) -> None:
    image = MetadataImage()
    for entity in known:
        altered(image, entity, {KEYS[0]: 1.0})
    components = [ComponentData(kind, 1 if name is None else 0, name) for kind, name in wanted.items()]
    distinct = [dict(each) for each in dict.fromkeys(tuple(sorted(entity.items())) for entity in known)]
    expected = [
        entity
        for entity in distinct
        if (entity == wanted if strict else all(item in entity.items() for item in wanted.items()))
    ]
    found = described(image, *components, strict=strict)
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_a_copy_does_not_change_with_its_image() -> None:
    image = MetadataImage()
    altered(image, {"user": "a"}, {KEYS[0]: 1.0})
    copy = image.copy()
    altered(image, {"user": "a"}, {KEYS[0]: 2.0})
    assert copy.client_quotas == {(("user", "a"),): {KEYS[0]: 1.0}}


def test_an_entity_that_is_named_twice_keeps_its_first_change() -> None:
    image = MetadataImage()
    entries = [EntryData([EntityData("user", "a")], [OpData(KEYS[0], value, False)]) for value in (1.0, 2.0)]
    decision = alter_client_quotas(image, entries, lambda _: True, validate_only=False)
    (error,) = decision.response.values()
    assert error is not None
    replay(image, decision.records)
    assert image.client_quotas == {(("user", "a"),): {KEYS[0]: 1.0}}


def test_a_name_that_is_no_host_is_refused() -> None:
    entry = EntryData([EntityData("ip", "nowhere")], [OpData("connection_creation_rate", 1.0, False)])
    decision = alter_client_quotas(MetadataImage(), [entry], lambda _: False, validate_only=False)
    (error,) = decision.response.values()
    assert str(error) == "nowhere is not a valid IP or resolvable host."
    assert not decision.records


@pytest.mark.parametrize("key", [*KEYS, "controller_mutation_rate"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_value_with_which_no_rate_can_be_computed_is_refused(key: str, value: float) -> None:
    """Not a number is neither greater than 0 nor less; a fetch under such a quota failed."""
    entry = EntryData([EntityData("client-id", None)], [OpData(key, value, remove=False)])
    decision = alter_client_quotas(MetadataImage(), [entry], lambda _: True, validate_only=False)
    assert not decision.records
    (error,) = decision.response.values()
    assert isinstance(error, ApiError)
    assert error.error == ErrorCode.INVALID_REQUEST
