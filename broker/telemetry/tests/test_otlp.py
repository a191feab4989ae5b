"""The decoder of OTLP payloads: what it finds, and that bytes of any kind end in points or in OtlpError."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.broker.telemetry.otlp import ATTRIBUTES_MAX, TEXT_MAX, OtlpError, Point, decode_metrics
from barnabas.broker.telemetry.tests.otlp_payload import (
    attribute,
    counter,
    double,
    fixed,
    gauge,
    integer,
    message,
    payload,
    text,
    varint,
)
from barnabas.runtime.slices import run_through


def decode(data: bytes, points_max: int = 100) -> tuple[list[Point], int]:
    return run_through(decode_metrics(data, points_max))


def points(data: bytes) -> list[Point]:
    return decode(data)[0]


def test_gauges_and_sums() -> None:
    data = payload(
        gauge("a", double(4, 1.5), fixed(6, -3)),
        counter("b", fixed(6, 7)),
        counter("c", double(4, math.inf), is_delta=False, is_monotonic=False),
    )
    assert points(data) == [
        Point("a", {}, 1.5, False, False),
        Point("a", {}, -3, False, False),
        Point("b", {}, 7, True, True),
        Point("c", {}, math.inf, False, False),
    ]


def test_attributes_of_resource_and_point_in_any_order() -> None:
    point = attribute(7, "x", text("own")) + double(4, 1) + attribute(7, "n", integer(3, -2))
    resource = attribute(1, "x", text("of the resource")) + attribute(1, "y", integer(2, 1))
    scope = message(2, message(2, gauge("a", point)))
    data = message(1, scope + message(1, resource))
    assert points(data) == [Point("a", {"x": "own", "y": "true", "n": "-2"}, 1, False, False)]


def test_a_point_without_a_value_and_other_kinds_of_metrics_are_skipped() -> None:
    histogram = message(1, "h") + message(9, message(1, double(4, 1)))
    assert points(payload(gauge("a", integer(8, 1)), histogram)) == []


def test_unknown_fields_are_skipped() -> None:
    point = integer(99, 5) + varint(98 << 3 | 5) + bytes(4) + double(4, 1) + message(97, b"\xff")
    assert points(payload(gauge("a", point))) == [Point("a", {}, 1, False, False)]


def test_what_is_kept_is_bounded() -> None:
    many = b"".join(attribute(7, f"k{number}", text("v" * 1000)) for number in range(100))
    found, left_out = decode(payload(gauge("n" * 1000, *[double(4, 1) + many] * 3)), points_max=2)
    assert (len(found), left_out) == (2, 1)
    assert len(found[0].name) == TEXT_MAX
    assert len(found[0].attributes) == ATTRIBUTES_MAX
    assert found[0].attributes["k0"] == "v" * TEXT_MAX


@pytest.mark.slow
def test_too_many_fields() -> None:
    with pytest.raises(OtlpError, match="more than"):
        decode(integer(9, 1) * 400_000)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05",  # shorter than it says
        b"\x0b",  # a group
        b"\x08" + b"\xff" * 11,  # a varint of more than ten bytes
        b"\x09\x00",  # half a fixed64
        b"\x08\x01"[:1],
        integer(1, 5),  # a message that is a varint
        payload(message(1, b"\xff\xfe") + message(5, b"")),  # a name that is not UTF-8
    ],
)
def test_malformed(data: bytes) -> None:
    with pytest.raises(OtlpError):
        decode(data)


FULL = payload(
    gauge("a", double(4, 1) + attribute(7, "k", text("v"))),
    counter("b", fixed(6, 2)),
    resource=attribute(1, "r", double(4, 2)),
)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    try:
        decode(data)
    except OtlpError:
        pass


@given(st.integers(0, len(FULL) - 1), st.integers(0, 255))
@example(0, 0)
def test_a_changed_byte(at: int, byte: int) -> None:
    for data in (FULL[:at] + bytes([byte]) + FULL[at + 1 :], FULL[:at]):
        try:
            decode(data)
        except OtlpError:
            pass
