"""Lines as records."""

from __future__ import annotations

import pytest

from barnabas.commands.produce import LineReader, ReaderError


def reader(**properties: str) -> LineReader:
    return LineReader({name.replace("_", "."): value for name, value in properties.items()})


def test_a_line_is_a_value() -> None:
    assert reader().read("a\tb") == (None, b"a\tb", [])
    assert reader().read("") == (None, b"", [])


def test_bytes_that_are_no_text_pass_through() -> None:
    line = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert reader().read(line).value == b"\xff\xfe"


def test_keys() -> None:
    assert reader(parse_key="true").read("k\tv\tw") == (b"k", b"v\tw", [])
    assert reader(parse_key=" TRUE ", key_separator="::").read("::v") == (b"", b"v", [])
    with pytest.raises(ReaderError, match="No key separator found on line number 1: 'kv'"):
        reader(parse_key="true").read("kv")
    assert reader(parse_key="true", ignore_error="true").read("kv") == (None, b"kv", [])


def test_headers_and_null() -> None:
    both = reader(parse_key="true", parse_headers="true", null_marker="NULL")
    assert both.read("a:1,b:NULL,,\tk\tNULL") == (b"k", None, [("a", b"1"), ("b", None)])
    assert both.read("NULL\tNULL\tv") == (None, b"v", [])
    with pytest.raises(ReaderError, match="No header key separator found in pair 'a' on line number 3"):
        both.read("a\tk\tv")
    with pytest.raises(ReaderError, match="Header keys should not be equal to the null marker"):
        both.read("NULL:1\tk\tv")


def test_marks_that_can_not_be_told_apart() -> None:
    with pytest.raises(ReaderError, match=r"headers.delimiter and headers.key.separator may not be equal"):
        reader(headers_delimiter=":")
    with pytest.raises(ReaderError, match=r"null.marker and key.separator may not be equal"):
        reader(null_marker="\t", headers_delimiter="|")
