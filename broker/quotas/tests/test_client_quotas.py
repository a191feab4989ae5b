"""Which client quota counts, and who shares it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quotas.client_quotas import (
    CLIENTS_MAX,
    ClientQuotas,
    PartitionPermits,
)
from barnabas.broker.security.caller import Caller, Principal
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, QuotaEntity, quota_record
from barnabas.controller.metadata.quota_names import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from compat_tests.virtual.runtime import VirtualRuntime

NAMES = st.sampled_from(["a", "b", None])
KINDS = st.sampled_from([PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE])
part = st.sampled_from(["absent", "default", "a", "b"])
quotas = st.dictionaries(
    st.tuples(part, part).filter(lambda each: each != ("absent", "absent")), st.integers(1, 1000), max_size=9
)
clients = st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["a", "b", "c", None, ""]))
# Kafka's order, as KIP-55 lists it: (user part, client part) of the entity.
ORDER = (
    ("name", "name"), ("name", "default"), ("name", "absent"),
    ("default", "name"), ("default", "default"), ("default", "absent"),
    ("absent", "name"), ("absent", "default"),
)  # fmt: skip


def caller(user: str) -> Caller:
    return Caller(Principal("User", user), "PLAINTEXT", "127.0.0.1")


def entity_of(user: str, client: str) -> QuotaEntity:
    parts = {"client-id": client, "user": user}
    return tuple(
        (kind, None if name == "default" else name) for kind, name in parts.items() if name != "absent"
    )


def image_with(given_quotas: dict[tuple[str, str], int], kind: str = PRODUCER_BYTE_RATE) -> MetadataImage:
    image = MetadataImage()
    for (user, client), value in given_quotas.items():
        image.replay(quota_record(entity_of(user, client), kind, value), MetadataDelta())
    return image


def made(image: MetadataImage) -> ClientQuotas:
    found = ClientQuotas(VirtualRuntime(), BrokerConfig.from_properties())
    found.load(image)
    return found


def model(given_quotas: dict[tuple[str, str], int], user: str, client: str) -> tuple[int, str, str] | None:
    """The value that counts, and who shares it: the user and the client id, "" for all."""
    for of_user, of_client in ORDER:
        key = (
            user if of_user == "name" else of_user,
            (client or "no client id") if of_client == "name" else of_client,
        )
        if key in given_quotas:
            return (
                given_quotas[key],
                "" if of_user == "absent" else user,
                "" if of_client == "absent" else client,
            )
    return None


@given(quotas, st.lists(clients, min_size=1))
def test_the_first_entity_that_fits_decides_and_says_who_shares(
    given_quotas: dict[tuple[str, str], int], asked: list[tuple[str, str | None]]
) -> None:
    found = made(image_with(given_quotas))
    shared: dict[tuple[str, str], int] = {}
    for user, client_id in asked:
        limits = found.of(caller(user), client_id)
        expected = model(given_quotas, user, client_id or "")
        assert (limits.fetch, limits.request, limits.mutation) == (None, None, None)
        if expected is None:
            assert limits.produce is None
        else:
            assert limits.produce is not None
            assert limits.produce.limit == expected[0]
            assert shared.setdefault(expected[1:], id(limits.produce)) == id(limits.produce)
    assert len(set(shared.values())) == len(shared)


def test_kinds_are_found_each_for_itself() -> None:
    image = MetadataImage()
    for entity, kind, value in (
        ((("user", "a"),), PRODUCER_BYTE_RATE, 1.0),
        ((("client-id", "c"), ("user", "a")), CONSUMER_BYTE_RATE, 2.0),
        ((("client-id", None),), REQUEST_PERCENTAGE, 3.0),
        ((("user", None),), CONTROLLER_MUTATION_RATE, 4.0),
    ):
        image.replay(quota_record(entity, kind, value), MetadataDelta())
    limits = made(image).of(caller("a"), "c")
    assert limits.produce is not None
    assert limits.fetch is not None
    assert limits.request is not None
    assert limits.mutation is not None
    found = (limits.produce.limit, limits.fetch.limit, limits.request.limit, limits.mutation.rate)
    assert found == (1.0, 2.0, 3.0, 4.0)


def test_a_changed_quota_counts_what_was_recorded_before() -> None:
    found = made(image_with({("a", "absent"): 1000}))
    before = found.of(caller("a"), "c").produce
    assert before is not None
    assert before.record(9_000, 0.0) == 0
    found.load(image_with({("a", "absent"): 100}))
    after = found.of(caller("a"), "c").produce
    assert after is before
    assert after.throttle_ms(0.0) == 80_000


def test_only_quotas_of_clients_make_it_set() -> None:
    found = made(MetadataImage())
    image = MetadataImage()
    image.replay(quota_record((("ip", None),), "connection_creation_rate", 1.0), MetadataDelta())
    assert not found.load(image)
    image.replay(quota_record((("client-id", None),), PRODUCER_BYTE_RATE, 1.0), MetadataDelta())
    assert found.load(image)


@pytest.mark.parametrize("value", [math.inf, math.nan, 5e-324, 1.7e308])
@pytest.mark.parametrize(
    "kind", [PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE]
)
def test_any_number_that_kafka_takes_is_a_quota(kind: str, value: float) -> None:
    image = MetadataImage()
    image.replay(quota_record((("user", None),), kind, 1.0), MetadataDelta())
    image.replay(quota_record((("user", "a"),), kind, value), MetadataDelta())
    limits = made(image).of(caller("a"), "c")
    expected_max = 2**31 - 1 if value < 1 else 0
    for quota in (limits.produce, limits.fetch, limits.request):
        if quota is not None:
            assert quota.record(1e9, 0.0) in (0, 1000, expected_max)
            assert quota.throttle_ms_with(1e9, 0.0) in (0, 1000, expected_max)
    for is_strict in (False, True):
        permits = PartitionPermits(limits.mutation, 0.0, is_strict=is_strict)
        try:
            permits.charge(10_000)
        except ApiError:
            assert value < 1
        assert permits.throttle_ms in (0, expected_max)


@pytest.mark.slow
def test_made_up_client_ids_take_a_bounded_place() -> None:
    found = made(image_with({("absent", "default"): 1000}))
    busy = found.of(caller("a"), "busy").produce
    assert busy is not None
    for number in range(3 * CLIENTS_MAX):
        limits = found.of(caller("a"), f"made up {number}")
        assert limits.produce is not None
        if number % 1000 == 0:
            limits.produce.record(1, 0.0)
            busy.record(1, 0.0)
    assert len(found._shared) <= CLIENTS_MAX
    assert len(found._found) <= CLIENTS_MAX
    assert found._shared[PRODUCER_BYTE_RATE, (("client-id", "busy"),)] is busy, (
        "one that is used is not forgotten for idle ones"
    )


def test_client_ids_are_told_apart_by_their_first_characters() -> None:
    found = made(image_with({("absent", "default"): 1000}))
    long = "x" * 30_000
    assert found.of(caller("a"), long + "1").produce is found.of(caller("a"), long + "2").produce
    assert found.of(caller("a"), "x1").produce is not found.of(caller("a"), "x2").produce
    assert all(len(name or "") < 1000 for _, entity in found._shared for _, name in entity)
