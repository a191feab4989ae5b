"""RE2 patterns: what Apache Kafka 4.3.1 (RE2/J 1.8) matches and refuses, and that every pattern ends in time."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.re2_parser import PATTERN_MAX, PROGRAM_MAX, PatternError
from barnabas.broker.coordinator.re2_pattern import Pattern

IDS = ["A-1", "a b", "a-2", "a.b", "a\\b", "ab", "foo_1", "x\ny", "e\u0301", "Ünïcode", "αβγ", "😀"]


def compiled(pattern: str) -> Pattern:
    steps = Pattern.compile(pattern)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Pattern = end.value
            return result


def steps_and_result(pattern: Pattern, text: str) -> tuple[int, bool]:
    steps, count = pattern.matches(text), 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return count, end.value


def found(pattern: str) -> list[str]:
    automaton = compiled(pattern)
    return [each for each in IDS if steps_and_result(automaton, each)[1]]


# Each answered by Apache Kafka 4.3.1 for ListTransactions 2 over these ids.
@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("a.*", ["a b", "a-2", "a.b", "a\\b", "ab"]),
        (r"a\.b", ["a.b"]),
        ("(?i)a.*", ["A-1", "a b", "a-2", "a.b", "a\\b", "ab"]),
        ("a|ab", ["ab"]),
        (r"\w+", ["ab", "foo_1"]),
        (r"\pL+", ["ab", "Ünïcode", "αβγ"]),
        (r"\p{^Lu}.*", ["a b", "a-2", "a.b", "a\\b", "ab", "foo_1", "e\u0301", "αβγ", "😀"]),
        ("[^a]+", ["A-1", "foo_1", "x\ny", "e\u0301", "Ünïcode", "αβγ", "😀"]),
        (r"[^\W]+", ["ab", "foo_1"]),
        ("[[:^alpha:]]+", ["αβγ", "😀"]),
        (r"\ba\Wb\b", ["a b", "a.b", "a\\b"]),
        ("(?s)x.y", ["x\ny"]),
        ("x.y", []),
        (r"(?m)^x$\n^y$", ["x\ny"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"\Qa.b", ["a.b"]),
        (r"\x{61}\x62", ["ab"]),
        (r"\141b", ["ab"]),
        (".", ["😀"]),
        ("(?P<n>a)(?<m>b)", ["ab"]),
        ("(?i-s:A)b", ["ab"]),
        ("(?i)ünïCODE", ["Ünïcode"]),
        (r"(?i)\p{Lu}+", ["ab", "Ünïcode", "αβγ"]),
        ("(a*)*b", ["ab"]),
        ("(?:^)*ab$*", ["ab"]),
        ("a{1}b{1}", ["ab"]),
        ("a{01}b", []),
        ("a{,2}", []),
        ("[]a-]+", []),
        ("a??b", ["ab"]),
        ("", []),
        ("|", []),
        (r"\0", []),
    ],
)
def test_patterns_match_as_in_kafka(pattern: str, matching: list[str]) -> None:
    assert found(pattern) == matching


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "*", "a**", "a++b", "a???b", "a|*", "(*)", "(?i)+", "{*", "{2}", "a{2}{2}"),
        *("a{2,1}", "a{1001}", "a{99999999999}", "[", "[z-a]", r"[a-\d]", r"[\b]", "[[:foo:]]", "[[:]"),
        *(
            "\\",
            "a\\",
            r"\1",
            r"\08a\9",
            r"\e",
            r"\Z",
            r"\C",
            r"\u0061",
            r"\x6",
            r"\x{}",
            r"\x{110000}",
            r"\x{",
        ),
        *(r"\p{Foo}", r"\p{L", r"\p", "(?", "(?i", "(?-)", "(?x)a", "(?#c)a", "(?=a)", "(?<=a)b", "(?P=n)"),
        *("(?P<>a)", "(?P<n>a)(?P<n>b)", "(?P<é>a)", "(?'n'a)"),
    ],
)
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compiled(pattern)


def test_larger_patterns_than_the_limits_are_refused() -> None:
    """Before memory is taken for them."""
    assert compiled("a{1000}")
    for pattern in (
        *("(((a{1000}){1000}){1000}){1000}", "(" * 1001 + ")" * 1001, "a" * (PATTERN_MAX + 1)),
        *("(a|b){1000}", "((a{60}){60}){2}", "(a|" * 900 + ")" * 900 + "{9}"),
    ):
        with pytest.raises(PatternError):
            compiled(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*c", "(a|a)*c", "(a?){500}a{500}c", "(.*)(.*)(.*)(.*)c"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    """Python's re would not end; here the steps are as many as the text is long, at most."""
    automaton = compiled(pattern)
    steps, matches = steps_and_result(automaton, "a" * 1500)
    assert not matches
    assert steps <= 1500
    assert steps_and_result(automaton, "a" * 600 + "c")[1]


def test_the_work_is_done_in_steps() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))
    steps, matches = steps_and_result(compiled("(.?){1000}.*"), text)
    assert matches
    assert steps >= 1500


RANGES = "".join(f"{chr(each)}-{chr(each)}" for each in range(0x4E00, 0x4E00 + 2 * 1300, 2))


def calls_in_longest_part(steps: Iterable[None]) -> int:
    """Function calls between two yields: the work, which does not depend on the machine."""
    longest = calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in steps:
            longest, calls = max(longest, calls), 0
    finally:
        sys.setprofile(before)
    return max(longest, calls)


@pytest.mark.parametrize(
    "pattern",
    [
        *(f"{flags}[{negation}{RANGES}a]{{0,1000}}" for flags in ("", "(?i)") for negation in ("", "^")),
        r"(?i)[" + r"\PL\D[:^alpha:]" * 200 + "]{0,1000}",
    ],
)
def test_the_work_between_two_yields_does_not_grow_with_the_copies_of_a_class(pattern: str) -> None:
    """Copies times items would be more than a million calls."""
    automaton = compiled(pattern)
    assert calls_in_longest_part(automaton.matches("aZ\u4e02\u4e03é" * 20)) < 4 * PROGRAM_MAX


@pytest.mark.parametrize(
    "pattern",
    ["".join(map(chr, range(0x4E00, 0x4E00 + PATTERN_MAX))), "{" * 4000 + "}", "(a|" * 500 + ")" * 500],
)
def test_a_pattern_is_compiled_in_steps(pattern: str) -> None:
    assert calls_in_longest_part(Pattern.compile(pattern)) < 2 * PROGRAM_MAX


def test_the_items_of_a_class_count_as_work() -> None:
    assert steps_and_result(compiled(f"[{RANGES}]*"), "\u4e02\u4e04\u4e06") == (3, True)
    assert steps_and_result(compiled("[\u4e00-\u5e00]*"), "\u4e02\u4e04\u4e06") == (0, True)


CLASS_CHARS = "AKSZaksz059_"
CLASS_ITEMS = st.one_of(
    st.sampled_from([*CLASS_CHARS, r"\d", r"\D", r"\w", r"\W", r"\s", r"\S"]),
    st.lists(st.sampled_from(CLASS_CHARS), min_size=2, max_size=2).map(lambda ends: "-".join(sorted(ends))),
)


@given(
    st.sampled_from(["", "(?i)"]), st.sampled_from(["", "^"]), st.lists(CLASS_ITEMS, min_size=1, max_size=6)
)
def test_a_class_takes_the_characters_that_it_takes_in_python(
    flags: str, negation: str, items: list[str]
) -> None:
    pattern = f"{flags}[{negation}{''.join(items)}]"
    automaton, python = compiled(pattern), re.compile(pattern, re.ASCII)
    for char in map(chr, [*range(0x0B), *range(0x0C, 0x1C), *range(0x20, 0x80)]):
        assert steps_and_result(automaton, char)[1] == bool(python.fullmatch(char)), char


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "(?:a|bb)", r"\b", "^", "$", r"\w", "(?:)"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}"])).map(
            lambda each: f"(?:{each[0]}){each[1]}"
        ),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.lists(st.text("ab-\n", max_size=5), min_size=1, max_size=8))
def test_common_syntax_means_what_it_means_in_python(pattern: str, texts: list[str]) -> None:
    automaton = compiled(pattern)
    python = re.compile(pattern.replace("$", r"\Z"))
    for text in texts:
        assert steps_and_result(automaton, text)[1] == bool(python.fullmatch(text)), text
