"""Frames are read as they were written, however the bytes are split; other bytes are refused."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.link import messages
from barnabas.controller.link.auth import SEAL_BYTES, Seal, seals
from barnabas.controller.link.framing import PREFACE, ForgedFrame, FrameReader, encode_frame
from barnabas.controller.link.messages import (
    Hello,
    Identity,
    Leader,
    MalformedMessage,
    Refused,
    decode,
    decode_formation,
    decode_metadata,
)
from barnabas.controller.link.wrong_protocol import describe_caller

Frame = tuple[int, bytes]

frames_strategy = st.lists(
    st.tuples(st.sampled_from(sorted(messages.KINDS)), st.binary(max_size=300)), max_size=12
)


def pair() -> tuple[Seal, Seal]:
    """A sender's seal and its receiver's."""
    sending, _ = seals(b"secret", b"hello", b"hello to you", dialed=True)
    _, receiving = seals(b"secret", b"hello", b"hello to you", dialed=False)
    return sending, receiving


def read_cut(reader: FrameReader, content: bytes, cuts: list[int]) -> Iterator[Frame]:
    positions = sorted({cut % (len(content) + 1) for cut in cuts} | {0, len(content)})
    for start, end in itertools.pairwise(positions):
        yield from reader.read(content[start:end])


@given(frames=frames_strategy, cuts=st.lists(st.integers(0, 5000), max_size=20), sealed=st.booleans())
def test_frames_are_read_as_they_were_written(frames: list[Frame], cuts: list[int], sealed: bool) -> None:
    sending, receiving = pair()
    seal = sending if sealed else None
    content = PREFACE + b"".join(encode_frame(kind, payload, seal) for kind, payload in frames)
    reader = FrameReader()
    reader.seal = receiving if sealed else None
    assert list(read_cut(reader, content, cuts)) == frames


@given(
    frames=frames_strategy.filter(bool),
    cuts=st.lists(st.integers(0, 5000), max_size=5),
    position=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_a_changed_bit_is_detected_before_its_frame_is_returned(
    frames: list[Frame], cuts: list[int], position: int, bit: int
) -> None:
    sending, receiving = pair()
    content = bytearray(b"".join(encode_frame(kind, payload, sending) for kind, payload in frames))
    content[position % len(content)] ^= 1 << bit
    found: list[Frame] = []
    reader = FrameReader()
    reader.seal = receiving
    refused = False
    try:
        found.extend(read_cut(reader, PREFACE + bytes(content), cuts))
    except MalformedMessage:
        refused = True
    assert found == frames[: len(found)]
    assert len(found) < len(frames)
    # A length made larger, within the bound, only waits for bytes that never come.
    assert refused or reader._needed > len(reader._buffer)


@pytest.mark.parametrize(
    "change", ["twice", "out of order", "dropped", "other direction", "other secret", "other link"]
)
def test_frames_of_another_position_or_link_do_not_verify(change: str) -> None:
    sending, receiving = pair()
    other, _ = {
        "other direction": seals(b"secret", b"hello", b"hello to you", dialed=False),
        "other secret": seals(b"secreT", b"hello", b"hello to you", dialed=True),
        "other link": seals(b"secret", b"hello", b"hello to yoU", dialed=True),
    }.get(change, (sending, sending))
    first, second, third = (encode_frame(messages.RAFT, payload, other) for payload in (b"1", b"2", b"3"))
    content = {
        "twice": first + first,
        "out of order": second + first,
        "dropped": first + third,
    }.get(change, first)
    found: list[bytes] = []
    reader = FrameReader()
    reader.seal = receiving
    with pytest.raises(ForgedFrame):
        found.extend(payload for _, payload in reader.read(PREFACE + content))
    assert found in ([], [b"1"])


def test_a_length_allocates_nothing_before_its_bytes_come() -> None:
    reader = FrameReader()
    with pytest.raises(MalformedMessage, match="a frame of 65537 bytes"):
        list(reader.read(PREFACE + (65537).to_bytes(4, "big")))
    with pytest.raises(MalformedMessage, match="a frame of 0 bytes"):
        list(FrameReader().read(PREFACE + bytes(4)))
    sealed = FrameReader()
    sealed.seal = pair()[1]
    with pytest.raises(MalformedMessage):
        list(sealed.read(PREFACE + SEAL_BYTES.to_bytes(4, "big") + bytes(SEAL_BYTES)))
    tracemalloc.start()
    waiting = FrameReader()
    waiting.bytes_max = 1 << 30
    assert not list(waiting.read(PREFACE + (1 << 30).to_bytes(4, "big") + b"x"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@given(content=st.binary(max_size=400), after_preface=st.booleans())
def test_garbage_is_refused_or_incomplete(content: bytes, after_preface: bool) -> None:
    reader = FrameReader()
    try:
        list(reader.read(PREFACE * after_preface + content))
    except MalformedMessage:
        pass


@given(
    content=st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers(0, 2**40) | st.binary(max_size=20) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=6),
    ).map(msgspec.msgpack.encode)
)
def test_garbage_in_messages_is_refused(content: bytes) -> None:
    for kind in (Hello, Identity, Refused, Leader):
        try:
            assert isinstance(decode(content, kind), kind)
        except MalformedMessage:
            pass
    for decoder in (decode_formation, decode_metadata):
        try:
            decoder(content)
        except MalformedMessage:
            pass


def test_claims_inside_a_message_allocate_nothing() -> None:
    tracemalloc.start()
    for claim in (
        b"\xdd\x7f\xff\xff\xff",
        b"\x98\xc6\x7f\xff\xff\xff",
        b"\x98\xdb\x7f\xff\xff\xff",
        b"\x91" * 60_000,
    ):
        with pytest.raises(MalformedMessage):
            decode(claim, Identity)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (
            b"\x00\x00\x00\x19\x00\x12\x00\x04\x00\x00\x00\x01\x00\x05admin",
            "a Kafka client (its first request is ApiVersions version 4)",
        ),
        (b"\x16\x03\x01\x02\x00\x01", "TLS handshake"),
        (b"GET / HTTP/1.1\r\n", "HTTP client"),
        (b"\x00\x01\x02", "does not speak the protocol"),
        (b"\xff" * 40, "does not speak the protocol"),
    ],
)
def test_callers_of_other_protocols_are_recognised(first: bytes, words: str) -> None:
    assert words in describe_caller(first)
