"""The window of message ids, against a slow and obvious one, and against JetStream's."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.ingress.dedup import DedupWindow, kept_id, message_id

WINDOW_MS = 50


class Model:
    """Every id that was ever stored, with its offset and time, looked through from the newest on."""

    def __init__(self) -> None:
        self.stored: list[tuple[bytes, int, int]] = []
        self.waiting: list[bytes] = []

    def find(self, identity: bytes, now_ms: int) -> int | None:
        for known, offset, time_ms in reversed(self.stored):
            if known == identity and time_ms + WINDOW_MS > now_ms:
                return offset
        if identity in self.waiting:
            return ~self.waiting.index(identity)
        return None

    def appended(self, base_offset: int, now_ms: int) -> None:
        for place, identity in enumerate(self.waiting):
            self.stored.append((identity, base_offset + place, now_ms))
        self.waiting.clear()


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("message"), st.integers(0, 12)),
        st.tuples(st.just("append"), st.just(0)),
        st.tuples(st.just("drop"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 60)),
    ),
    min_size=20,
    max_size=80,
)


@given(_STEPS)
def test_the_window_is_that_of_the_model(steps: list[tuple[str, int]]) -> None:
    window, model = DedupWindow(WINDOW_MS), Model()
    now_ms, end_offset = 1_000, 7
    for step, number in steps:
        if step == "message":
            identity = b"id-%d" % number
            found = window.find(identity, now_ms)
            assert found == model.find(identity, now_ms)
            if found is None:
                window.open(identity, len(model.waiting))
                model.waiting.append(identity)
        elif step == "append":
            count = len(model.waiting)
            window.appended(end_offset, end_offset + count, now_ms)
            model.appended(end_offset, now_ms)
            end_offset += count + 1  # another producer appends, too
        elif step == "drop":
            window.dropped()
            model.waiting.clear()
        else:
            now_ms += number
    for number in range(13):
        identity = b"id-%d" % number
        assert window.find(identity, now_ms) == model.find(identity, now_ms)
    alive = {known for known, _, time_ms in model.stored if time_ms + WINDOW_MS > now_ms}
    assert len(window) == len(alive)  # nothing that has expired takes memory


def test_an_open_id_is_known_by_its_place_and_then_by_its_offset() -> None:
    window = DedupWindow(WINDOW_MS)
    window.open(b"a", 0)
    window.open(b"b", 3)
    assert window.find(b"b", 10) == ~3
    window.appended(100, 104, 10)
    assert window.find(b"b", 10) == 103
    assert window.find(b"b", 10 + WINDOW_MS - 1) == 103
    assert window.find(b"b", 10 + WINDOW_MS) is None


def test_a_window_of_zero_remembers_nothing() -> None:
    window = DedupWindow(0)
    window.open(b"a", 0)
    assert window.find(b"a", 1) is None
    window.appended(5, 6, 1)
    window.known([(b"b", 6)], 1)
    assert (window.find(b"a", 1), window.find(b"b", 1), len(window)) == (None, None, 0)


def test_a_clock_that_goes_back_forgets_nothing_early() -> None:
    window = DedupWindow(WINDOW_MS)
    window.open(b"a", 0)
    window.appended(0, 1, 1_000)
    window.open(b"b", 0)
    window.appended(1, 2, 400)
    assert [window.find(each, 999 + WINDOW_MS) for each in (b"a", b"b")] == [0, 1]
    assert [window.find(each, 1_000 + WINDOW_MS) for each in (b"a", b"b")] == [None, None]


@given(
    st.integers(1, 10), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), min_size=1, max_size=40)
)
def test_beyond_the_cap_the_oldest_go_first(cap: int, batches: list[tuple[int, int]]) -> None:
    window = DedupWindow(1_000_000, entries_max=cap)
    order: list[bytes] = []
    now_ms = 0
    for count, pause_ms in batches:
        now_ms += pause_ms
        for place in range(count):
            window.open(b"%d" % (len(order) + place), place)
        window.appended(len(order), len(order) + count, now_ms)
        order += [b"%d" % (len(order) + place) for place in range(count)]
    kept = order[-cap:]
    assert len(window) == len(kept)
    assert window.dropped_early == len(order) - len(kept)
    for offset, identity in enumerate(order):
        assert window.find(identity, now_ms) == (offset if identity in kept else None)


def test_ids_dropped_early_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    window = DedupWindow(120_000, name="orders-0", entries_max=1)
    with caplog.at_level(logging.WARNING, "barnabas.nats"):
        for number in range(4):
            window.open(b"%d" % number, 0)
            window.appended(number, number + 1, number)
        assert len(caplog.records) == 1
        window.open(b"late", 0)
        window.appended(9, 10, 70_000)
    assert len(caplog.records) == 2
    assert "orders-0" in caplog.text
    assert "4 were dropped early" in caplog.text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"", b""),
        (b"Nats-Msg-Id: a\r\n", b"a"),
        (b"Nats-Msg-Id:a\r\n", b"a"),
        (b"Nats-Msg-Id:   a  \r\n", b"a  "),
        (b"Nats-Msg-Id: \ta\r\n", b"\ta"),
        (b"Nats-Msg-Id:\r\n", b""),
        (b"NATS-MSG-ID: a\r\n", b""),
        (b"X-Nats-Msg-Id: a\r\n", b""),
        (b"Foo: Nats-Msg-Id: a\r\n", b""),
        (b"Nats-Msg-Id-Of: x\r\nNats-Msg-Id: a\r\nNats-Msg-Id: b\r\n", b"a"),
        (b"Nats-Msg-Id: \xff\x00\r\n", b"\xff\x00"),
    ],
)
def test_the_id_of_a_message(lines: bytes, expected: bytes) -> None:
    assert message_id(b"NATS/1.0\r\n" + lines + b"\r\n") == expected


def test_the_id_in_a_truncated_header_block() -> None:
    assert message_id(b"NATS/1.0\r\nNats-Msg-Id: abc") == b"abc"
    assert message_id(b"NATS/1.0\r\nNats-Msg-Id:") == b""


def test_the_last_id_is_that_of_the_last_message() -> None:
    window = DedupWindow(0)
    assert window.last_id(0) == b""
    window.open(b"a", 0)
    window.appended(0, 1, 10)
    assert window.last_id(1) == b"a"
    assert window.last_id(2) == b""  # another producer has appended
    window.open(b"b", 0)
    window.dropped()
    assert window.last_id(1) == b"a"
    window.open(b"c", 0)
    window.appended(1, 3, 11)
    assert window.last_id(3) == b""
    window.appended(3, 4, 12)
    assert window.last_id(4) == b""


def test_a_long_id_is_kept_as_a_digest_of_all_of_it() -> None:
    long = b"x" * 100_000
    assert len(kept_id(long)) < 64
    assert kept_id(long) == kept_id(b" " + long)
    assert kept_id(long) != kept_id(long[:-1] + b"y")
    assert kept_id(b"x" * 64) == b"x" * 64
