"""Subjects and patterns against models that try everything, and against nats-server itself."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.binding.subjects import (
    PATTERN_BYTES_MAX,
    compile_filter,
    compile_subscriptions,
    covers,
    has_wildcard,
    is_valid_subject,
    matches,
    overlap,
    pattern_problem,
    without_covered,
)
from compat_tests.harness.nats_server import NatsServer, installed_executables

# Two ordinary tokens, and in subjects a third one that no pattern names: enough for every case there is.
PATTERN_TOKENS = st.sampled_from(["a", "b", "*"])
PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, ">"] if rest or not tokens else tokens),
    st.lists(PATTERN_TOKENS, max_size=3),
    st.booleans(),
)
SUBJECTS = [".".join(tokens) for length in range(1, 6) for tokens in itertools.product("abz", repeat=length)]


def model_matches(pattern: Sequence[str], subject: Sequence[str]) -> bool:
    """ ">" may stand anywhere: it takes each possible number of tokens in turn."""
    if not pattern:
        return not subject
    if pattern[0] == ">":
        return any(model_matches(pattern[1:], subject[taken:]) for taken in range(1, len(subject) + 1))
    return bool(subject) and pattern[0] in ("*", subject[0]) and model_matches(pattern[1:], subject[1:])


def taken(pattern: str) -> set[str]:
    return {each for each in SUBJECTS if model_matches(pattern.split("."), each.split("."))}


@given(PATTERNS)
def test_matches_what_the_model_matches(pattern: str) -> None:
    assert {each for each in SUBJECTS if matches(pattern, each.encode())} == taken(pattern)


@given(st.lists(PATTERNS, max_size=4), st.lists(PATTERNS, max_size=2))
def test_a_filter_takes_what_is_wanted_and_not_excluded(patterns: list[str], excludes: list[str]) -> None:
    wanted = set().union(*map(taken, patterns)) - set().union(*map(taken, excludes))
    accepts = compile_filter(patterns, excludes)
    assert {each for each in SUBJECTS if accepts(each.encode())} == wanted


@given(st.lists(PATTERNS, max_size=4), st.lists(PATTERNS, max_size=2))
def test_subscriptions_take_every_wanted_subject_once(patterns: list[str], excludes: list[str]) -> None:
    wanted = set().union(*map(taken, patterns)) - set().union(*map(taken, excludes))
    deliveries = [
        each
        for pattern, accepts in compile_subscriptions(patterns, excludes)
        for each in taken(pattern)  # what the server sends us for it
        if accepts is None or accepts(each.encode())
    ]
    assert sorted(deliveries) == sorted(wanted)


@given(PATTERNS, PATTERNS)
def test_patterns_overlap_when_a_subject_matches_both(first: str, second: str) -> None:
    assert overlap(first, second) == bool(taken(first) & taken(second))


TEMPLATES = st.lists(st.sampled_from(["a", "b", "*", ">"]), min_size=1, max_size=3).map(".".join)


@given(TEMPLATES, TEMPLATES)
def test_overlap_knows_the_rest_sign_anywhere(first: str, second: str) -> None:
    # Three tokens each meet in at most five, because one of them ends a ">" where the other begins one.
    assert overlap(first, second) == bool(taken(first) & taken(second))


@given(PATTERNS, PATTERNS)
def test_a_pattern_covers_another_when_it_takes_all_of_it(wide: str, narrow: str) -> None:
    assert covers(wide, narrow) == (taken(narrow) <= taken(wide))


@given(st.lists(PATTERNS, max_size=5))
def test_patterns_that_another_covers_are_left_out(patterns: list[str]) -> None:
    kept = without_covered(tuple(patterns))
    assert set().union(*map(taken, kept)) == set().union(*map(taken, patterns))
    assert not any(covers(a, b) for a, b in itertools.permutations(kept, 2))


@pytest.mark.parametrize(
    "pattern", ["a", "a.*.b", "a.>", ">", "*", "foo*bar", "a>", ">a.b", "*a", "**", "ü.ö", "a,b", "a/b{c}\\"]
)
def test_patterns(pattern: str) -> None:
    assert pattern_problem(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", "a b", "a\tb", "a\r\nb", "\x00", "a\x7f", "x" * (PATTERN_BYTES_MAX + 1)]
    + ["ü" * (PATTERN_BYTES_MAX // 2 + 1), "a\ud800"],
)  # fmt: skip
def test_invalid_patterns(pattern: str) -> None:
    assert pattern_problem(pattern) is not None


@given(st.binary(max_size=6) | st.text("a.*>", max_size=6).map(str.encode))
def test_a_subject_is_a_pattern_without_wildcards(subject: bytes) -> None:
    try:
        text = subject.decode()
    except UnicodeDecodeError:
        return
    assert is_valid_subject(subject) == (pattern_problem(text) is None and not has_wildcard(text))


# -- against nats-server


class Wire:
    """A connection on which each thing is asked with a PING behind it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rwb")
        assert self._file.readline().startswith(b"INFO ")
        self._file.write(b'CONNECT {"verbose":false,"pedantic":false}\r\n')

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, data: bytes) -> list[bytes]:
        """The lines that come back, payloads left out."""
        self._file.write(data + b"PING\r\n")
        self._file.flush()
        lines: list[bytes] = []
        while (line := self._file.readline()) not in (b"PONG\r\n", b""):
            lines.append(line)
            if line.startswith(b"MSG "):
                self._file.read(int(line.split()[-1]) + 2)
        return lines


@pytest.fixture(scope="module", params=sorted(installed_executables()))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    executable = installed_executables()[request.param]
    with NatsServer(tmp_path_factory.mktemp("nats"), executable=executable) as running:
        yield running


@pytest.mark.sockets
def test_the_server_takes_the_same_patterns(server: NatsServer) -> None:
    draw = random.Random(7)
    parts = ["a", "b", ".", "*", ">", "ü", "-", "{"]
    patterns = sorted({"".join(draw.choices(parts, k=draw.randint(1, 7))) for _ in range(1500)})
    wire = Wire(server.port)
    # Each with a number of its own: a number that is in use makes the server look at no subject.
    found = {
        pattern: not wire.ask(b"SUB %s %d\r\n" % (pattern.encode(), number))
        for number, pattern in enumerate(patterns)
    }
    wire.close()
    assert found == {pattern: pattern_problem(pattern) is None for pattern in patterns}
    assert 100 < sum(found.values()) < len(found) - 100


@pytest.mark.sockets
def test_the_server_delivers_what_matches(server: NatsServer) -> None:
    draw = random.Random(11)

    def words(tokens: list[str], lengths: range) -> str:
        return ".".join(draw.choices(tokens, k=draw.choice(lengths)))

    ordinary = ["a", "b", "ab", "a*", "*b", "a>", "ü", "0", "_", "$x"]
    patterns = sorted(
        {words([*ordinary, "*", "*", "*"], range(1, 5)) for _ in range(300)}
        | {words([*ordinary, "*", "*"], range(1, 4)) + ".>" for _ in range(150)}
        | {">", "*"}
    )
    subjects = sorted({words(ordinary, range(1, 6)) for _ in range(600)} | {"a..b", ".a", "a.", "."})
    wire = Wire(server.port)
    wire.ask(b"".join(b"SUB %s %d\r\n" % (each.encode(), number) for number, each in enumerate(patterns)))
    delivered = {
        (patterns[int(line.split()[2])], subject)
        for subject in subjects
        for line in wire.ask(b"PUB %s 0\r\n\r\n" % subject.encode())
        if line.startswith(b"MSG ")
    }
    wire.close()
    expected = {
        (pattern, subject)
        for pattern in patterns
        for subject in subjects
        if matches(pattern, subject.encode())
    }
    assert delivered == expected
    assert len(expected) > 2000
