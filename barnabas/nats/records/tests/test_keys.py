"""Keys of messages, compared with slow models."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.controller.config.validators import ConfigError
from barnabas.nats.records.keys import compile_key
from barnabas.nats.tests.header_blocks import format_headers

SUBJECT = b"orders.eu.berlin"

tokens = st.text("abc*>-1é", min_size=1, max_size=4).map(str.encode)
subjects = st.lists(tokens, min_size=1, max_size=6).map(b".".join)


def key(
    spec: str, subject: bytes = SUBJECT, reply: bytes = b"", block: bytes = b"", payload: bytes = b""
) -> object:
    return compile_key(spec)(subject, reply, block, payload)


@given(subjects, st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_tokens(subject: bytes, numbers: list[int]) -> None:
    found = [dict(enumerate(subject.split(b"."), 1)).get(number) for number in numbers]
    expected = None if None in found else b".".join(token for token in found if token)
    assert key("tokens:" + ",".join(map(str, numbers)), subject) == expected
    assert key(f"token:{numbers[0]}", subject) == found[0]


def test_keys_of_the_subject() -> None:
    assert key("subject") == SUBJECT
    assert key("none") is None
    assert key("regex:eu") == b"eu"
    assert key("regex:^orders\\.([^.]+)") == b"eu"
    assert key("regex:us") is None
    assert key("regex:orders(x)?") is None
    assert key("regex:orders(x?)") == b""
    assert key("regex:ö.", "a.öé".encode()) == "öé".encode()[:3]
    assert key("regex:.", b"\xff") == b"\xff"
    for spec in ("subject", "none", "token:1", "tokens:2,1", "regex:a"):
        assert compile_key(spec).of_subject_only, spec
    for spec in ("reply", "header:a", "json:$.a"):
        assert not compile_key(spec).of_subject_only, spec


def test_keys_of_reply_and_headers() -> None:
    assert key("reply", reply=b"_INBOX.1") == b"_INBOX.1"
    assert key("reply") is None
    block = format_headers([(b"id", b"lower"), (b"Id", b"first"), (b"Id", b"second"), (b"Empty", b"")])
    assert key("header:Id", block=block) == b"first"
    assert key("header:id", block=block) == b"lower"
    assert key("header:ID", block=block) is None
    assert key("header:Empty", block=block) == b""
    assert key("header:Id") is None


scalars = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=8)
names = st.sampled_from(["a", "b", "é", "with blank", "$"])
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
paths = st.lists(names | st.integers(0, 3), min_size=1, max_size=4)


@given(documents, paths, st.booleans())
@example({"a": {"b": [0, {"a": "x"}]}}, ["a", "b", 1, "a"], True)
@example({"a": {"b": {"a": "\u2028é"}}}, ["a", "b", "a"], True)
@example([[1, 2], {"a": True}], [1, "a"], False)
@example({"a": [1]}, ["a", 1], False)
def test_json(document: object, path: list[str | int], ascii_only: bool) -> None:
    found: object = document
    for step in path:
        if isinstance(step, str):
            found = found.get(step) if isinstance(found, dict) else None
        else:
            found = found[step] if isinstance(found, list) and step < len(found) else None
    expected: bytes | None = None
    if isinstance(found, str):
        # What is kept of a string without escapes is its bytes; with escapes, what they say.
        expected = found.encode()
    elif found is not None and not isinstance(found, (dict, list)):
        expected = json.dumps(found).encode()
    spec = "json:$" + "".join(f"[{step}]" if isinstance(step, int) else f"['{step}']" for step in path)
    payload = json.dumps(document, ensure_ascii=ascii_only, indent=1 if ascii_only else None).encode()
    assert key(spec, payload=payload) == expected


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"a": 1.50}', b"1.50"),
        (b'{"a": -0}', b"-0"),
        (b'{"a": 1E+2}', b"1E+2"),
        (b'{"a":"\\u00e9\\n"}', "é\n".encode()),
        (b'{"a": ""}', b""),
        (b'{"a": "\xff"}', b"\xff"),
        (b'{"a": 1, "a": 2}', b"2"),
        (b'{"b": 1}', None),
        (b'{"a": null}', None),
        (b'{"a": {}}', None),
        (b'{"a": []}', None),
        (b'{"a": "\\ud800"}', None),
        (b'{"a": 1', None),
        (b'{"a": 1} trailing', None),
        (b"", None),
        (b"\xff", None),
        (b"3", None),
        (b'{"b":' * 100_000, None),
        (b'{"a":' + b"[" * 100_000, None),
    ],
)
def test_json_scalars_as_written_in_the_payload(payload: bytes, expected: bytes | None) -> None:
    assert key("json:$.a", payload=payload) == expected


def test_strings_and_other_values_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings are looked for first; for a while after something else they are not."""
    monkeypatch.setattr("barnabas.nats.records.keys._OTHERS_EXPECTED", 2)
    kinds = {b'"s"': b"s", b"7": b"7", b'"\xff"': b"\xff", b"null": None, b"{": None, b'"\\n"': b"\n"}
    of_payload = compile_key("json:$.a").of_part
    for first, second, third in itertools.product(kinds, repeat=3):
        for text in (first, second, third):
            assert of_payload(b'{"a":%b}' % text) == kinds[text]


@given(st.binary(max_size=60), paths)
def test_any_payload_has_a_key_or_none(payload: bytes, path: list[str | int]) -> None:
    spec = "json:$" + "".join(f"[{step}]" if isinstance(step, int) else f"['{step}']" for step in path)
    assert isinstance(key(spec, payload=payload), bytes | None)


def test_a_malformed_key_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        compile_key("tokn:2")
