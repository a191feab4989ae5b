"""The matcher against two plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.ingress.tail_matcher import COMPACT_FROM, TailMatcher

TAILS = st.sampled_from([b"a", b"b", b"c", b"dd"])
STEPS = st.lists(st.tuples(st.sampled_from(["received", "stored", "cut", "expire"]), TAILS))


class Model:
    """Oldest first, equal ones are found from the front."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, bytes, int]] = []
        self.ahead: list[tuple[int, bytes]] = []

    def step(self, what: str, tail: bytes, now: int) -> None:
        if what == "expire":
            self.pending = [entry for entry in self.pending if entry[0] >= now - 5]
            self.ahead = [entry for entry in self.ahead if entry[0] >= now - 5]
        elif what == "stored":
            found = next((entry for entry in self.pending if entry[1] == tail), None)
            if found is not None:
                self.pending.remove(found)
            else:
                self.ahead.append((now, tail))
        else:
            early = next((entry for entry in self.ahead if entry[1] == tail), None)
            if early is not None:
                self.ahead.remove(early)
            elif what == "cut":
                self.pending.insert(0, (self.pending[0][0] if self.pending else now, tail, now))
            else:
                self.pending.append((now, tail, now))


@given(STEPS)
def test_the_matcher_is_that_of_the_model(steps: list[tuple[str, bytes]]) -> None:
    matcher: TailMatcher[int] = TailMatcher()
    model = Model()
    for now, (what, tail) in enumerate(steps):
        model.step(what, tail, now)
        if what == "expire":
            matcher.pending.expire(now - 5)
            matcher.ahead.expire(now - 5)
        elif what == "stored":
            matcher.stored(tail, now)
        elif what == "cut":
            matcher.cut([tail], now, now)
        else:
            matcher.received(tail, now, now)
        assert len(matcher.pending) == len(model.pending)
        assert len(matcher.ahead) == len(model.ahead)
        assert matcher.pending.size == sum(len(tail) for _, tail, _ in model.pending)
    assert matcher.pending.drain() == [(tail, extra) for _, tail, extra in model.pending]
    assert matcher.pending.drain() == []


def test_truncated_messages_come_before_those_received_since() -> None:
    matcher: TailMatcher[None] = TailMatcher()
    matcher.received(b"third", 1, None)
    matcher.cut([b"first", b"second"], 2, None)
    assert [tail for tail, _ in matcher.pending.drain()] == [b"first", b"second", b"third"]


def test_truncated_messages_come_first_when_an_equal_one_was_stored() -> None:
    matcher: TailMatcher[str] = TailMatcher()
    matcher.received(b"second", 1, "")
    matcher.received(b"first", 2, "answered")
    matcher.stored(b"first", 3)
    matcher.cut([b"first"], 4, "cut")
    assert matcher.pending.drain() == [(b"first", "cut"), (b"second", "")]


def test_a_message_that_is_never_stored_keeps_no_others() -> None:
    matcher: TailMatcher[None] = TailMatcher()
    matcher.received(b"never", 0, None)
    for number in range(5 * COMPACT_FROM):
        matcher.received(b"%d" % number, 0, None)
        matcher.stored(b"%d" % number, 0)
        assert len(matcher.pending._entries) <= COMPACT_FROM + 3
    assert matcher.pending.drain() == [(b"never", None)]


def test_a_later_matcher_is_corrected_by_an_earlier_one() -> None:
    first: TailMatcher[str] = TailMatcher()
    second: TailMatcher[str] = TailMatcher()
    first.received(b"refused", 1, "")
    first.received(b"before the mark", 9, "asked")
    for matcher in (first, second):
        matcher.received(b"both", 10, "")
    second.received(b"in the log", 10, "")
    second.stored(b"received", 10)
    first.stored(b"to come", 10)
    tails = first.differing(second, 8)
    assert tails == {b"before the mark": -1, b"in the log": 1, b"received": -1, b"to come": 1}
    second.correct(tails.keys(), first, 8)
    assert not first.differing(second, 8)
    assert second.ahead.drain() == [(b"to come", None)]
    assert second.pending.size == len(b"before the markboth")
    assert second.pending.drain() == [(b"before the mark", "asked"), (b"both", "")]
