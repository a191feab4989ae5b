"""Reply subjects of JetStream, in both forms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.jetstream.ack_subject import Delivery, is_position, numbers_start, parse_ack_subject

NAMES = st.text("abcXYZ019_-é", min_size=1, max_size=8)
NUMBERS = st.integers(0, (1 << 64) - 1)


@given(
    NAMES, NAMES, st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), st.sampled_from(["", "_", "hub"])
)
def test_reply_subjects_survive_a_round_trip(
    stream: str, consumer: str, numbers: tuple[int, int, int, int, int], domain: str
) -> None:
    before = ["$JS", "ACK", *([domain, "ACCOUNT"] if domain else []), stream, consumer]
    after = ["kfZ8Qs"] if domain == "hub" else []
    reply = ".".join([*before, *map(str, numbers), *after]).encode()
    assert parse_ack_subject(reply) == Delivery(stream, consumer, *numbers)
    assert reply[numbers_start(reply) :].split(b".")[:5] == [b"%d" % number for number in numbers]


def test_the_subject_of_a_real_server() -> None:
    reply = b"$JS.ACK.S.c1.1.2.1.1795280182087645378.4"
    assert parse_ack_subject(reply) == Delivery("S", "c1", 1, 2, 1, 1795280182087645378, 4)


@given(st.binary(max_size=60))
def test_other_subjects_are_no_deliveries(tail: bytes) -> None:
    assert parse_ack_subject(tail) is None
    found = parse_ack_subject(b"$JS.ACK." + tail)
    if found is not None:
        assert tail.count(b".") in (6, *range(8, 60))


def test_malformed_numbers_are_no_deliveries() -> None:
    for wrong in (b"-1", b"", b"x", b"9" * 5000, b"1e3"):
        assert parse_ack_subject(b"$JS.ACK.S.c1.1.%b.1.17.4" % wrong) is None


def test_positions_have_at_most_19_digits() -> None:
    assert is_position(b"9" * 19)
    for wrong in (b"-1", b"", b"x", b"9" * 20, b"9" * 5000, b"1_0", b" 1", "٣".encode()):
        assert not is_position(wrong)
