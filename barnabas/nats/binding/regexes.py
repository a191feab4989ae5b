"""Bounds the time of regular expressions that run over subjects of any publisher.

Python's `re` backtracks: `(a+)+$` takes time exponential in the subject's length, so any publisher could stop a broker with
one message. An expression is accepted when its time grows at most with the square of the length. The text of the expression
decides, and one that can't be analysed is refused:

- Nothing inside a repeated group repeats or chooses: each round could be cut in several ways.
- Two neighbouring repeats that can match the same bytes, with nothing between them that one of them can't match, multiply
  their lengths: two such are accepted, and one where the search may begin anywhere.
- Optional parts multiply, too, and are accepted up to a bound. Backreferences, lookarounds and flags are refused.

The expression is matched against the subject as bytes, so a character beyond ASCII is several of them.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

PATTERN_LENGTH_MAX: Final = 500
CHOICES_MAX: Final = 1000
DEGREE_MAX: Final = 2

_ALL: Final = frozenset(range(256))
_QUANTIFIER: Final = re.compile(r"([*+?]|\{\d*,?\d*\})([?+]?)")
_COUNTED: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP: Final = re.compile(r"\((?:\?:|\?P<[A-Za-z_]\w*>)?(?!\?)")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_ESCAPE: Final = re.compile(r"\\(?:x[0-9a-fA-F]{2}|[0-7]{3}|.)")
_ANCHORS: Final = ("^", "$", r"\A", r"\Z", r"\b", r"\B")
# A bounded repeat of more rounds counts as an unbounded one.
_ROUNDS_MAX: Final = 16


class _Refused(Exception):
    """The expression can't be accepted; the text says why."""


class _Piece(msgspec.Struct, frozen=True):
    """One part of an expression: the bytes it can match, whether it must match one (`is_firm`), and whether it may repeat without
    bound."""

    takes: frozenset[int]
    is_firm: bool
    repeats: bool = False


def regex_problem(pattern: str) -> str | None:
    """Why nats.key=regex:PATTERN is refused; None when it is accepted."""
    if not pattern:
        return "The regular expression is empty"
    if len(pattern) > PATTERN_LENGTH_MAX:
        return f"The regular expression is longer than {PATTERN_LENGTH_MAX} characters"
    try:
        re.compile(pattern.encode())
    except (re.error, UnicodeEncodeError, OverflowError, RecursionError) as error:
        return f"The regular expression does not compile: {error}"
    try:
        reader = _Reader(pattern.encode().decode("latin-1"))
        pieces = reader.alternatives(0)
    except (_Refused, RecursionError) as refused:
        return f"{refused}. Use token:N or tokens:N,N where they say the same"
    if reader.choices > CHOICES_MAX:
        return "The regular expression has too many optional parts and alternatives: they multiply"
    is_anchored = pattern.startswith(("^", r"\A")) and "|" not in pattern
    degree = _degree(pieces) + (0 if is_anchored else 1)
    if degree > DEGREE_MAX:
        return (
            "The regular expression could take very long with a long subject: begin it with ^, and repeat what can't "
            r"take the text that follows, as in ^[^.]+\.([^.]+) in place of .*\.(.*)"
        )
    return None


def _degree(pieces: list[_Piece]) -> int:
    """How many repeats can share text: trying all cuts between them takes time of the length to this power."""
    degrees: dict[int, int] = {}
    for index, piece in enumerate(pieces):
        if piece.repeats:
            shared = [
                degree for earlier, degree in degrees.items() if not _are_parted(pieces[earlier : index + 1])
            ]
            degrees[index] = 1 + max(shared, default=0)
    return max(degrees.values(), default=0)


def _are_parted(pieces: list[_Piece]) -> bool:
    """Whether the first and the last piece, both repeats, can't share text."""
    first, last = pieces[0].takes, pieces[-1].takes
    firm = [piece.takes for piece in pieces[1:-1] if piece.is_firm]
    return any(not each & first or not each & last for each in firm) or (not firm and not first & last)


class _Reader:
    """Reads an expression that compiles. `choices` counts the ways that optional parts and alternatives make."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.choices = 1

    def alternatives(self, depth: int) -> list[_Piece]:
        """The pieces of all alternatives up to the group's end: each of them may be tried."""
        pieces = self._sequence(depth)
        ways = 1
        while self._text.startswith("|", self._at):
            self._at += 1
            ways += 1
            # A part of one alternative is missing where another one matches.
            pieces = [
                msgspec.structs.replace(piece, is_firm=False) for piece in (*pieces, *self._sequence(depth))
            ]
        self.choices *= ways
        return pieces

    def _sequence(self, depth: int) -> list[_Piece]:
        pieces: list[_Piece] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            pieces += self._item(depth)
        return pieces

    def _item(self, depth: int) -> list[_Piece]:
        text, start = self._text, self._at
        if text[start] == "(":
            found = _GROUP.match(text, start)
            if found is None:
                raise _Refused("Groups that begin with (? can't be analysed, but for (?: and (?P<name>")
            self._at = found.end()
            before = self.choices
            inner = self.alternatives(depth + 1)
            self._at += 1
            return self._repeated_group(inner, self.choices != before)
        anchor = next((each for each in _ANCHORS if text.startswith(each, start)), None)
        if anchor is not None:
            self._at += len(anchor)
            return []
        single = _CLASS.match(text, start) if text[start] == "[" else _ESCAPE.match(text, start)
        self._at = single.end() if single is not None else start + 1
        return self._repeated_single(text[start : self._at])

    def _repeated_group(self, inner: list[_Piece], has_choices: bool) -> list[_Piece]:
        low, high = self._quantifier()
        if high == 1:
            if low == 0:
                self.choices *= 2
                return [msgspec.structs.replace(piece, is_firm=False) for piece in inner]
            return inner
        if has_choices or any(piece.repeats for piece in inner):
            raise _Refused("A group that repeats can't hold what repeats or chooses itself")
        takes = frozenset[int]().union(*(piece.takes for piece in inner))
        return [self._repeat(takes, low, high)]

    def _repeated_single(self, item: str) -> list[_Piece]:
        if item[0] == "\\" and item[1] in "123456789":
            raise _Refused("A reference to a group can't be analysed")
        takes = _ALL if item == "." else _bytes_of(item)
        low, high = self._quantifier()
        if low == high == 1:
            return [_Piece(takes, True)]
        return [self._repeat(takes, low, high)]

    def _repeat(self, takes: frozenset[int], low: int, high: int) -> _Piece:
        if high > _ROUNDS_MAX:
            return _Piece(takes, low > 0, repeats=True)
        self.choices *= high - low + 1
        return _Piece(takes, low > 0)

    def _quantifier(self) -> tuple[int, int]:
        """The minimum and maximum of rounds of the item before."""
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return 1, 1
        counted = _COUNTED.fullmatch(found[1])
        if counted is None:
            bounds = {"*": (0, 1 << 30), "+": (1, 1 << 30), "?": (0, 1)}[found[1]]
        elif not counted[1] and not counted[3]:
            return 1, 1  # "{}" and "{,}" are text, which is read next
        else:
            low = int(counted[1] or 0)
            bounds = (low, (int(counted[3]) if counted[3] else 1 << 30) if counted[2] else low)
        self._at = found.end()
        return bounds


def _bytes_of(item: str) -> frozenset[int]:
    """The bytes that one item of an expression takes."""
    expression = re.compile(item.encode("latin-1"), re.DOTALL)
    return frozenset(value for value in range(256) if expression.fullmatch(bytes([value])))
