"""Escaped topic names, keys, partitioners, starts, templates and regular expressions: what is read, what is refused."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.operations.topic_names import CollidingTopics, invalid_topic_name
from barnabas.nats.binding.keys import (
    KeySpec,
    PartitionerSpec,
    StartSpec,
    parse_key,
    parse_partitioner,
    parse_start,
)
from barnabas.nats.binding.regexes import regex_problem
from barnabas.nats.binding.subjects import is_valid_subject, matches
from barnabas.nats.binding.templates import (
    escape_topic,
    is_internal_subject,
    parse_publish_template,
    parse_topic_template,
)

SUBJECTS = (st.binary(min_size=1, max_size=8) | st.text("a5F_-.", min_size=1, max_size=10).map(str.encode)).filter(
    is_valid_subject
)  # fmt: skip


def unescape_topic(name: str) -> bytes:
    """The subject whose escaped name this is; ValueError when it is no subject's."""
    subject = re.sub(r"__([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), name).encode(
        "latin-1", "replace"
    )
    if escape_topic(subject) != name:
        raise ValueError(f"{name!r} is not the name of a subject")
    return subject


@given(SUBJECTS)
def test_an_escaped_subject_is_a_topic_name_and_comes_back(subject: bytes) -> None:
    name = escape_topic(subject)
    assert invalid_topic_name(name) is None
    assert unescape_topic(name) == subject


@given(SUBJECTS, SUBJECTS)
def test_names_of_two_subjects_differ_even_as_metrics(first: bytes, second: bytes) -> None:
    if first != second:
        assert escape_topic(first) != escape_topic(second)
        assert CollidingTopics([escape_topic(second)]).of(escape_topic(first)) is None


@pytest.mark.parametrize(
    ("subject", "name"), [("orders.eu-1", "orders.eu-1"), ("a_b", "a__5Fb"), ("ü", "__C3__BC")]
)
def test_escaped_names(subject: str, name: str) -> None:
    assert escape_topic(subject.encode()) == name


@pytest.mark.parametrize("name", ["a_b", "a__5fb", "__41", "a__", "__2E", "ü"])
def test_names_that_are_not_escaped_subjects(name: str) -> None:
    with pytest.raises(ValueError, match="no"):
        unescape_topic(name)


# -- keys, partitioners, starts


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("subject", KeySpec("subject")),
        ("reply", KeySpec("reply")),
        ("none", KeySpec("none")),
        ("token:2", KeySpec("token", tokens=(2,))),
        ("tokens:1, 3", KeySpec("tokens", tokens=(1, 3))),
        ("tokens:3,1", KeySpec("tokens", tokens=(3, 1))),
        ("header:X-Key", KeySpec("header", name="X-Key")),
        (r"regex:^(\d+)\.x:y", KeySpec("regex", pattern=r"^(\d+)\.x:y")),
        ("json:$.a", KeySpec("json", path=("a",))),
        ("json:$.a.b[0]['c d'][\"e\"].f-g", KeySpec("json", path=("a", "b", 0, "c d", "e", "f-g"))),
        ("json:$[2]", KeySpec("json", path=(2,))),
    ],
)
def test_keys(text: str, spec: KeySpec) -> None:
    assert parse_key(text) == spec


@pytest.mark.parametrize(
    "text",
    ["", "subjects", "subject:", "none:1", "token", "token:", "token:0", "token:-1", "token:1.5", "token:²", "token:1,2"]
    + ["tokens:", "tokens:1,", "tokens:0,1", "token:9999", "header:", "header:a b", "header:a:b", "header:ä"]
    + ["regex:", "regex:(", "regex:(a+)+", "json:", "json:$", "json:a", "json:$.", "json:$a", "json:$.a[", "json:$.a[-1]"]
    + ["json:$..a", "json:$.*", "json:$.a[01]", "json:$['a]", "json:$" + ".a" * 33, "uuid"],
)  # fmt: skip
def test_invalid_keys(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^Invalid value .* for configuration nats\.key: "):
        parse_key(text)


def test_partitioners() -> None:
    assert parse_partitioner("murmur2") == PartitionerSpec("murmur2")
    assert parse_partitioner("fnv1a") == PartitionerSpec("fnv1a")
    assert parse_partitioner("token:3") == PartitionerSpec("token", 3)
    for text in ("", "murmur", "token", "token:0", "token:x", "fnv1a:2"):
        with pytest.raises(ConfigError, match=r"nats\.partitioner"):
            parse_partitioner(text)


def test_starts() -> None:
    assert parse_start("all") == StartSpec("all")
    assert parse_start("new") == StartSpec("new")
    assert parse_start("seq:18446744073709551615") == StartSpec("seq", sequence=(1 << 64) - 1)
    for text in ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456789+05:30"):
        assert parse_start(f"time:{text}") == StartSpec("time", time=text)
    for text in ("", "last", "seq:", "seq:0", "seq:-1", "seq:18446744073709551616", "seq:1e3", "all:1"):
        with pytest.raises(ConfigError, match=r"nats\.start"):
            parse_start(text)
    for text in ("2026-01-31", "2026-02-30T00:00:00Z", "2026-01-31T12:00:00", "2026-01-31T25:00:00Z", "now"):
        with pytest.raises(ConfigError, match=r"nats\.start"):
            parse_start(f"time:{text}")


# -- regular expressions


@pytest.mark.parametrize(
    "pattern",
    [r"orders\.([^.]+)", r"^([^.]+)\.([^.]+)", r".*-(\d+)$", r"^.*foo.*bar", "(ab)+", r"(?P<k>\d{4})", "[^]]x", "ü+", "a{}"]
    + [r"^[a-z]{2,3}\.", "a|b|c", r"(eu|us)\.(\d+)", r"\x41+", "a{,3}", "x{,}", "{"],
)  # fmt: skip
def test_regular_expressions(pattern: str) -> None:
    assert regex_problem(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("", "empty"),
        ("(", "does not compile"),
        ("a" * 501, "longer"),
        ("(a+)+$", "A group that repeats"),
        ("(a|a)*b", "A group that repeats"),
        ("((a)?)*", "A group that repeats"),
        ("(a?){30}a", "A group that repeats"),
        ("a?" * 30 + "a" * 30, "optional parts"),
        ("(a|a)" * 12, "optional parts"),
        ("a{0,9}" * 4, "optional parts"),
        (".*foo.*bar", "very long"),
        (r"^(.*)\.(.*)\.(.*)$", "very long"),
        ("([a-z]+)[0-9]*([a-z]+)x", "very long"),
        ("^a.*b|.*.*c", "very long"),
        (r"(a)\1", "reference"),
        ("(?i)a", r"\(\?"),
        ("(?=a)a", r"\(\?"),
        ("a" + "(" * 200 + ")" * 200, ""),
    ],
)
def test_regular_expressions_that_could_stop_a_broker(pattern: str, reason: str) -> None:
    problem = regex_problem(pattern)
    if reason:
        assert problem is not None
        assert re.search(reason, problem)


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", "(a)", "(ab)", "(a|b)", "(a*)"])
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{2,}", "{0,3}", "*?"])
EXPRESSIONS = st.lists(st.tuples(ATOMS, QUANTIFIERS).map("".join), min_size=1, max_size=8).map("".join)


@given(EXPRESSIONS)
def test_accepted_expressions_are_fast_on_adversarial_subjects(pattern: str) -> None:
    if regex_problem(pattern + "!") is None:
        expression = re.compile(pattern.encode() + b"!")
        for subject in (b"a" * 300, b"ab" * 150, b"b" * 300, b"aab" * 100):
            started = time.process_time()
            expression.search(subject)
            assert time.process_time() - started < 1.0


# -- templates


def test_topic_templates() -> None:
    template = parse_topic_template("nats.{2}-{1}")
    assert template.expand(b"orders.eu_1.x") == "nats.eu__5F1-orders"
    assert template.expand(b"orders") is None
    assert template.token_max == 2
    assert parse_topic_template("{subject}").expand("ü.b".encode()) == "__C3__BC.b"
    assert parse_topic_template("{1}").expand(b"x" * 250) is None
    assert parse_topic_template("{1}.").expand(b"_consumer_offsets.a") == "__5Fconsumer__5Foffsets."


def test_a_topic_template_knows_the_topics_it_may_give() -> None:
    template = parse_topic_template("n.{1}.{3}")
    for subject in (b"a.b.c", "ü.x._.y".encode()):
        name = template.expand(subject)
        assert name is not None
        assert template.may_give(name)
    assert not template.may_give("n.a")
    assert not template.may_give("m.a.b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("orders", "no field"),
        ("{0}", "Unknown field {0}"),
        ("{01}", "Unknown field"),
        ("{key}", "Unknown field {key}"),
        ("{}", "Unknown field {}"),
        ("{9999}", "Unknown field"),
        ("{1", "brace"),
        ("1}", "brace"),
        ("{1}{", "brace"),
        ("a/{1}", "letters"),
        ("ü{1}", "letters"),
        ("__{1}", "internal"),
        ("{1}" * 200, "longer"),
    ],
)
def test_invalid_topic_templates(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        parse_topic_template(text)


def test_publish_templates() -> None:
    def header_value(name: bytes) -> bytes | None:
        return {b"Region": b"eu.west", b"Empty": b""}.get(name)

    template = parse_publish_template("out.{topic}.p{partition}.{header:Region}.{key}")
    assert template.expand(b"orders", 3, b"k", header_value) == b"out.orders.p3.eu.west.k"
    assert template.pattern("orders") == "out.orders.*.>.>"
    for key in (None, b"", b"a b", b"a..b", b"*", b"a.>", b"\xff\r\n"):
        assert template.expand(b"orders", 3, key, header_value) is None
    assert parse_publish_template("{header:Empty}").expand(b"t", 0, b"k", header_value) is None
    assert parse_publish_template("{header:None}").expand(b"t", 0, b"k", header_value) is None
    raw = parse_publish_template("{key}")
    assert raw.expand(b"t", 0, b"\xff.\x80", header_value) == b"\xff.\x80"
    for key in (b"$JS.API.STREAM.DELETE.x", b"_INBOX.a", b"_INBOX", b"$SYS", b"_R_.x"):
        assert raw.expand(b"t", 0, key, header_value) is None


@given(st.text("ab.", max_size=5).map(str.encode), st.integers(0, 20))
def test_a_publish_template_stays_within_its_pattern(key: bytes, partition: int) -> None:
    for text in ("x.{key}", "x{key}.y", "{partition}.{key}{partition}", "t.{topic}.{partition}"):
        template = parse_publish_template(text)
        subject = template.expand(b"a.b", partition, key, lambda _: None)
        if subject is not None:
            assert any(
                matches(template.pattern("a.b").replace(">", ".".join("*" * stars)), subject)
                for stars in range(1, 7)
            )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("out.{value}", "Unknown field {value}"),
        ("out.{1}", "Unknown field {1}"),
        ("out.{header:}", "header's name"),
        ("out..x", "token between dots is empty"),
        ("out {key}", "no blanks"),
        ("out.*", "wildcards"),
        ("out.>", "wildcards"),
        ("{key", "brace"),
        ("$JS.API.{key}", "nats.mode=kv"),
        ("_INBOX.{key}", "requests' answers"),
    ],
)
def test_invalid_publish_templates(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        parse_publish_template(text)


def test_internal_subjects() -> None:
    assert all(map(is_internal_subject, (b"$SYS.x", b"$JS.API.INFO", b"$KV.b.k", b"_INBOX.x.y", b"_R_.1")))
    assert not any(map(is_internal_subject, (b"a.$JS", b"_INBOXES.x", b"orders._INBOX", b"a$")))
