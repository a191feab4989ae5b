"""NATS subjects and patterns: validity, matching, and whether patterns overlap or cover each other.

A subject is tokens joined by ".", each of at least one byte. A pattern's token may be "*" (any one token) and its last one
">" (one token or more). "foo*bar" and "a>" are ordinary tokens. The server compares bytes whatever their encoding, so subjects
from the wire are bytes here, and patterns, which users write, are str (UTF-8 on the wire). Source: the NATS documentation on
subject-based messaging; where it says nothing, the behaviour of nats-server (a test compares).

Patterns inside this package may also hold ">" before their end, for one token or more: a template such as `out.{key}.x`
publishes to such subjects. No such pattern is sent to a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

# nats-server takes protocol lines of 4096 bytes; a SUB has more in it than the pattern.
PATTERN_BYTES_MAX: Final = 1024
ONE: Final = "*"
REST: Final = ">"

Filter = Callable[[bytes], bool]

# Blanks and line ends would end the field of the protocol's line; other control bytes can't be displayed.
_UNPRINTABLE: Final = re.compile(rb"[\x00-\x20\x7f]")
_SUBJECT: Final = re.compile(rb"[^.\x00-\x20\x7f]+(?:\.[^.\x00-\x20\x7f]+)*")


def is_valid_subject(subject: bytes) -> bool:
    """Whether messages can be published to it: no empty token, no blank or control byte, no wildcard."""
    return (
        _SUBJECT.fullmatch(subject) is not None
        and b"*" not in (tokens := subject.split(b"."))
        and b">" not in tokens
    )


def pattern_problem(pattern: str) -> str | None:
    """Why a pattern can't be subscribed to, for an error message; None when it can."""
    if not pattern:
        return "it is empty"
    try:
        encoded = pattern.encode()
    except UnicodeEncodeError:
        return "it can't be encoded as UTF-8"
    if len(encoded) > PATTERN_BYTES_MAX:
        return f"it has {len(encoded)} bytes, more than {PATTERN_BYTES_MAX}"
    if _UNPRINTABLE.search(encoded):
        return "a subject holds no blanks and no control characters"
    tokens = pattern.split(".")
    if "" in tokens:
        return "a token between dots is empty"
    if REST in tokens[:-1]:
        return '">" may only be the last token'
    return None


def looks_wild(pattern: str) -> bool:
    """Whether a token contains "*" or ">" without being a wildcard, as in "or*ders"."""
    return any(token not in (ONE, REST) and (ONE in token or REST in token) for token in pattern.split("."))


def has_wildcard(pattern: str) -> bool:
    """Whether it has a wildcard."""
    tokens = pattern.split(".")
    return ONE in tokens or REST in tokens


def matches(pattern: str, subject: bytes) -> bool:
    """Whether a message published to `subject` reaches a subscription to `pattern`."""
    return re.fullmatch(_expression(pattern), subject) is not None


def overlap(first: str, second: str) -> bool:
    """Whether some subject matches both patterns."""
    a, b = first.split("."), second.split(".")
    if REST in a[:-1] or REST in b[:-1]:
        return _meet(a, b)
    for token, other in zip(a, b, strict=False):
        if REST in (token, other):
            return True
        if token != other and ONE not in (token, other):
            return False
    return len(a) == len(b)


def covers(wide: str, narrow: str) -> bool:
    """Whether every subject that matches `narrow` matches `wide`, which has ">" only at its end."""
    return _covers(wide.split("."), narrow.split("."))


def covers_together(wide: Sequence[str], narrow: str) -> bool:
    """Whether every subject that matches `narrow` matches one of `wide`, as all of "a.>" do of "a.*" and "a.*.>"."""
    if any(covers(each, narrow) for each in wide):
        return True
    if narrow.split(".")[-1] != REST or narrow.count(".") > max(
        (each.count(".") for each in wide), default=0
    ):
        return False
    one = narrow[:-1] + ONE
    return any(covers(each, one) for each in wide) and covers_together(wide, f"{one}.{REST}")


def _covers(wide: list[str], narrow: list[str]) -> bool:
    for token, other in zip(wide, narrow, strict=False):
        if token == REST:
            return True
        if token != other and (token != ONE or other == REST):
            return False
    return len(wide) == len(narrow)


@lru_cache(maxsize=64)  # called often with the same bindings' patterns
def without_covered(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns, in their order, without those that another one covers."""
    distinct = {pattern: pattern.split(".") for pattern in patterns}
    wild = [(pattern, tokens) for pattern, tokens in distinct.items() if has_wildcard(pattern)]
    return tuple(
        pattern
        for pattern, tokens in distinct.items()
        if not any(_covers(wide, tokens) for other, wide in wild if other != pattern)
    )


def compile_filter(patterns: Sequence[str], excludes: Sequence[str] = ()) -> Filter:
    """A function that returns whether a pattern matches a subject and no exclude does."""
    wanted = _any_of(patterns)
    if not excludes:
        return wanted
    unwanted = _any_of(excludes)
    return lambda subject: wanted(subject) and not unwanted(subject)


def compile_subscriptions(
    patterns: Sequence[str], excludes: Sequence[str] = ()
) -> list[tuple[str, Filter | None]]:
    """Subscriptions that match every subject of `patterns` exactly once, less `excludes`.

    A server delivers a message once for each subscription that matches. So the filter of each (pattern, filter) accepts the
    subjects that no earlier pattern matches; None accepts all of the pattern.
    """
    kept = without_covered(tuple(patterns))
    found: list[tuple[str, Filter | None]] = []
    for index, pattern in enumerate(kept):
        others = [other for other in (*kept[:index], *excludes) if overlap(pattern, other)]
        if any(covers(other, pattern) for other in excludes):
            continue
        found.append((pattern, _none_of(others) if others else None))
    return found


def _none_of(patterns: Sequence[str]) -> Filter:
    unwanted = _any_of(patterns)
    return lambda subject: not unwanted(subject)


def _any_of(patterns: Sequence[str]) -> Filter:
    literal = frozenset(pattern.encode() for pattern in patterns if not has_wildcard(pattern))
    wild = [_expression(pattern) for pattern in patterns if has_wildcard(pattern)]
    if not wild:
        return literal.__contains__
    match = re.compile(b"|".join(wild)).fullmatch
    if not literal:
        return lambda subject: match(subject) is not None
    return lambda subject: subject in literal or match(subject) is not None


def _expression(pattern: str) -> bytes:
    """A regular expression for the subjects that match. It is unambiguous, so matching takes linear time."""
    parts: list[bytes] = []
    for token in pattern.split("."):
        if token == ONE:
            parts.append(rb"[^.]+")
        elif token == REST:
            parts.append(rb"[^.]+(?:\.[^.]+)*")
        else:
            parts.append(re.escape(token.encode()))
    return rb"\.".join(parts)


def _meet(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two token patterns, ">" anywhere, have a common sequence of tokens."""
    # A state is a place in each pattern, counted 2 a token: an odd place lies within the ">" before it, which has matched a
    # token and may match more.
    ends = (2 * len(first), 2 * len(second))
    todo, seen = [(0, 0)], {(0, 0)}
    while todo:
        state = todo.pop()
        if all(place in (end, end - 1) for place, end in zip(state, ends, strict=True)):
            return True
        for a, next_a in _steps(first, state[0]):
            for b, next_b in _steps(second, state[1]):
                following = (next_a, next_b)
                agree = a == b or ONE in (a, b)
                if agree and following not in seen:
                    seen.add(following)
                    todo.append(following)
    return False


def _steps(tokens: Sequence[str], place: int) -> list[tuple[str, int]]:
    """The tokens that a pattern can match at a place, "*" for any, and the place after each."""
    index, is_within = divmod(place, 2)
    steps: list[tuple[str, int]] = []
    if is_within:
        steps.append((ONE, place))
        index += 1
    if index < len(tokens):
        token = tokens[index]
        steps.append((ONE, 2 * index + 1) if token == REST else (token, 2 * index + 2))
    return steps
