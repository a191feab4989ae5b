r"""RE2 patterns, which Kafka uses where a client sends a regular expression (KIP-1152); here without backtracking as well.

A pattern is compiled into a nondeterministic automaton, and a text is matched character by character against the set of
states that it can be in: the time is bounded by the length of the text times the size of the program, for every pattern. Python's
`re` would take exponential time for some.

The syntax is RE2/J's, with its errors, but: Unicode scripts such as \p{Greek} are errors (general categories such as \p{Lu} are
known), and so are patterns that are larger than the limits of re2_parser.py.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from barnabas.broker.coordinator.re2_characters import WORD, CharClass, case_variants
from barnabas.broker.coordinator.re2_parser import (
    BEGIN_LINE,
    BEGIN_TEXT,
    END_LINE,
    END_TEXT,
    NO_WORD_BOUNDARY,
    WORD_BOUNDARY,
    Code,
    Parser,
)

CACHE_MAX: Final = 50_000  # states in remembered steps
# Instructions, and items of classes, between two yields of `matches`; one character may take it further, by a whole program.
WORK_MAX: Final = 1000


class Pattern:
    """A compiled pattern, of `compile`."""

    def __init__(self, code: Code) -> None:
        self._code = code
        classes = {each.test for each in self._code if each.test is not None}
        self._step_work = len(self._code) + sum(each.size for each in classes)
        # Equal sets are one object, so that a lookup does not compare them.
        self._sets: dict[frozenset[int], frozenset[int]] = {}
        self._cached: dict[tuple[frozenset[int], int, str], frozenset[int]] = {}
        self._cached_states = 0

    @classmethod
    def compile(cls, pattern: str) -> Generator[None, None, Pattern]:
        """Yields after each bounded part of the work. PatternError if the pattern is not valid."""
        return cls((yield from Parser(pattern).parse()))

    def matches(self, text: str) -> Generator[None, None, bool]:
        """Whether the pattern matches all of the text. Yields after each bounded part of the work."""
        states = self._interned(frozenset((0,)))
        before = ""
        work = 0
        for char in text:
            key = states, _conditions(before, char), char
            found = self._cached.get(key)
            if found is None:
                found = self._step(key)
                work += self._step_work
            states = found
            if not states:
                return False
            before = char
            work += 1
            if work > WORK_MAX:
                work = 0
                yield
        return len(self._code) in self._closure(states, _conditions(before, ""))

    def _step(self, key: tuple[frozenset[int], int, str]) -> frozenset[int]:
        states, conditions, char = key
        code, end = self._code, len(self._code)
        variants = case_variants(char)
        taken: dict[CharClass, bool] = {}  # a repetition has many copies of one class
        following = []
        for state in self._closure(states, conditions):
            test = code[state].test if state < end else None
            if test is None:
                continue
            if test not in taken:
                taken[test] = test.takes(char, variants)
            if taken[test]:
                following.append(state + 1)
        self._cached_states += len(states) + len(following) + 1
        if self._cached_states > CACHE_MAX:
            self._cached.clear()
            self._sets.clear()
            self._cached_states = len(states) + len(following) + 1
        found = self._interned(frozenset(following))
        self._cached[self._interned(states), conditions, char] = found
        return found

    def _interned(self, states: frozenset[int]) -> frozenset[int]:
        return self._sets.setdefault(states, states)

    def _closure(self, states: Iterable[int], conditions: int) -> set[int]:
        """All states that can be reached without a character."""
        code, end = self._code, len(self._code)
        reached = set(states)
        waiting = list(reached)
        while waiting:
            state = waiting.pop()
            if state == end:
                continue
            test, targets, wanted = code[state]
            if test is None and wanted & conditions == wanted:
                for target in targets:
                    if state + target not in reached:
                        reached.add(state + target)
                        waiting.append(state + target)
        return reached


def _conditions(before: str, after: str) -> int:
    """Of the position between two characters; "" is the end of the text."""
    found = WORD_BOUNDARY if (before in WORD) != (after in WORD) else NO_WORD_BOUNDARY
    if not before:
        found |= BEGIN_TEXT | BEGIN_LINE
    elif before == "\n":
        found |= BEGIN_LINE
    if not after:
        found |= END_TEXT | END_LINE
    elif after == "\n":
        found |= END_LINE
    return found
