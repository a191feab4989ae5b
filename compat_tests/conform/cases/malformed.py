"""Requests that no client should send: Kafka closes the connection, and keeps serving others."""

from __future__ import annotations

import struct

from barnabas.wire.messages.api_versions import ApiVersionsRequest
from compat_tests.conform.apis import APIS
from compat_tests.conform.batches import batch
from compat_tests.conform.case import case
from compat_tests.conform.cases.samples import sample_requests
from compat_tests.conform.client import encode_request, request_header
from compat_tests.conform.session import Session


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def register(api: str) -> None:
    """The same few kinds of damage for every API and version."""

    @case(api)
    def malformed(session: Session) -> None:
        request = sample_requests(session.name("absent"))[api]
        good = encode_request(request, session.version)
        head = len(request_header(APIS[api].key, session.version, 1))
        for note, payload in damages(good, head).items():
            outcome(session, note, payload)

    assert malformed is not None


def damages(good: bytes, head: int) -> dict[str, bytes]:
    """Truncations of a request. (One that stays complete would be a valid request and is left out.)"""
    body = len(good) - head
    found = {"header cut": good[:6], "client id cut": good[:12]}
    if body > 0:
        found["body cut by one"] = good[:-1]
    if body > 3:
        found["body halved"] = good[: head + body // 2]
        found["no body"] = good[:head]
    return found


def outcome(session: Session, note: str, payload: bytes) -> None:
    """Closed, silent, or an answer (whose content other cases compare)."""
    session.outcome_of_bytes(frame(payload), note=note, seconds=2.0)
    last = session.steps[-1]
    if not str(last["answer"]).startswith("<"):
        last["answer"] = "<an answer>"


for _api in APIS:
    register(_api)


@case("ApiVersions", first=4, last=4)
def frames(session: Session) -> None:
    for note, data in {
        "negative size": struct.pack(">i", -1),
        "zero size": struct.pack(">i", 0),
        "huge size": struct.pack(">i", 2**31 - 1),
        "above the limit": struct.pack(">i", 104857601),
        "unknown api": frame(struct.pack(">hhih", 9999, 0, 1, -1)),
        "negative api": frame(struct.pack(">hhih", -1, 0, 1, -1)),
        "two bytes": frame(b"\x00\x12"),
        "no client id": frame(struct.pack(">hhih", 18, 0, 1, -1)),
        "client id longer than the frame": frame(struct.pack(">hhih", 18, 0, 1, 500)),
        "client id length -2": frame(struct.pack(">hhih", 18, 0, 1, -2)),
        "controller's api": frame(struct.pack(">hhih", 52, 0, 1, -1) + b"\x00" * 20),
    }.items():
        session.outcome_of_bytes(data, note=note, seconds=2.0)
        if not str(session.steps[-1]["answer"]).startswith("<"):
            session.steps[-1]["answer"] = "<an answer>"
    answer = session.quiet(ApiVersionsRequest(), version=0)
    session.record("still serving", answer.error_code)


@case("Metadata", first=0, last=13)
def unserved_versions(session: Session) -> None:
    """Versions beyond the range of every API (recorded once per version of this case, spread over the APIs)."""
    for api in list(APIS.values())[session.version :: 14]:
        if api.key == 18:
            continue
        for version in (api.last + 1, 99, -1):
            header = struct.pack(">hhih", api.key, version, 1, -1) + b"\x00" * 30
            session.outcome_of_bytes(frame(header), note=f"api {api.key} version {version}", seconds=2.0)


@case("Produce", first=3, last=3)
def refused_versions(session: Session) -> None:
    """Produce 0-2 are advertised because librdkafka needs them, and close the connection."""
    for version in (0, 1, 2):
        head = struct.pack(">hhih", 0, version, 1, -1)
        body = (
            struct.pack(">hii", 1, 1000, 1) + b"\x00\x01a" + struct.pack(">iii", 1, 0, len(batch())) + batch()
        )
        session.outcome_of_bytes(frame(head + body), note=f"version {version}", seconds=2.0)


@case("Metadata", first=1, last=8)
def array_lengths(session: Session) -> None:
    head = request_header(3, session.version, 1)
    for length in (2**31 - 1, 1_000_000, -2, -(2**31)):
        outcome(session, f"topics length {length}", head + struct.pack(">i", length))
    outcome(session, "null name", head + struct.pack(">ih", 1, -1) + b"\x00\x00\x00")
    outcome(session, "name longer than the frame", head + struct.pack(">ih", 1, 3000) + b"abc")
    outcome(session, "bytes after the end", head + struct.pack(">i", 0) + b"\x00\x00\x00" + b"extra")


@case("Metadata", first=9)
def compact_lengths(session: Session) -> None:
    head = request_header(3, session.version, 1)
    for note, length in {
        "2^31": b"\x80\x80\x80\x80\x08",
        "overflow": b"\xff\xff\xff\xff\xff\xff\xff",
        "a million": b"\xc1\x84\x3d",
        "unfinished": b"\x80",
    }.items():
        outcome(session, f"topics length {note}", head + length)
    outcome(session, "many tags", request_header(3, session.version, 1)[:-1] + b"\xff\xff\xff\xff\x07")
    outcome(session, "tags out of order", head + b"\x01\x00\x00\x00" + b"\x02\x05\x01a\x03\x01a")
    outcome(
        session,
        "unknown tag",
        head + b"\x01" + b"\x00" * (3 if session.version < 11 else 2) + b"\x01\x63\x01a",
    )


@case("CreateTopics")
def null_name(session: Session) -> None:
    head = request_header(19, session.version, 1)
    flexible = session.version >= 5
    body = b"\x02\x00" if flexible else struct.pack(">ih", 1, -1)
    outcome(session, "null topic name", head + body + b"\x00" * 20)
