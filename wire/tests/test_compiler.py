"""The schema parser and the compiler: the committed modules are current, and wrong text is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.wire import compiler
from barnabas.wire.codegen_layouts import generate_layouts
from barnabas.wire.schema_parser import SchemaError, Versions, parse_file


def test_the_committed_modules_are_what_the_schemas_generate() -> None:
    assert compiler.main(["--check"]) == 0


def test_a_difference_is_found_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas, messages = tmp_path / "schema", tmp_path / "messages"
    schemas.mkdir()
    messages.mkdir()
    (schemas / "000_echo.txt").write_text(ECHO)
    monkeypatch.setattr(compiler, "SCHEMAS", schemas)
    monkeypatch.setattr(compiler, "MESSAGES", messages)
    assert compiler.main(["--check"]) == 1
    assert compiler.main([]) == 0
    assert sorted(path.name for path in messages.iterdir()) == ["echo.py", "index.py"]
    assert compiler.main(["--check"]) == 0
    (messages / "old.py").write_text("")
    assert compiler.main(["--check"]) == 1
    assert compiler.main([]) == 0
    assert not (messages / "old.py").exists()


def test_versions_of_the_same_layout_share_their_functions(tmp_path: Path) -> None:
    path = tmp_path / "000_echo.txt"
    path.write_text(ECHO)
    source = compiler.generate_module(parse_file(path))
    assert source.count("def read_echo_request_") == 2  # 0-1 and 2-3
    assert "{0: read_echo_request_0, 2: read_echo_request_2}" in source


def test_a_common_struct_and_ranges(tmp_path: Path) -> None:
    path = tmp_path / "000_echo.txt"
    path.write_text(ECHO)
    request, response = parse_file(path).messages
    text, pairs = request.root.fields
    assert (text.versions, text.nullable) == (Versions(0, 3), Versions(2, 3))
    assert pairs.struct is not None
    assert pairs.struct.class_name == "Pair"
    assert response.structs[0].class_name == "ResponsePair"  # the request has a Pair of its own


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("request A key=0 versions=0 flexible=none\n  X: []Unknown\n", "unknown type Unknown"),
        ("request A key=0 versions=0 flexible=none\n  X: int32 colour=red\n", "colour"),
        ("request A key=0 versions=0 flexible=none\n      X: int32\n", "indentation"),
    ],
)
def test_wrong_schema_text_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "000_a.txt"
    path.write_text(text)
    with pytest.raises(SchemaError, match=complaint):
        parse_file(path)


ECHO = """\
# Echo: says it back.

request EchoRequest key=0 versions=0-3 flexible=2+ listeners=broker
  Text: string nullable=2+
  Pairs: []Pair
  struct Pair
    Left: int32
    Right: int64

response EchoResponse key=0 versions=0-3 flexible=2+
  Pair: Pair
    Left: int32
"""


def test_a_fast_layout_is_the_same_in_all_its_versions() -> None:
    schemas = [parse_file(path) for path in sorted(compiler.SCHEMAS.glob("00[01]_*.txt"))]
    assert generate_layouts(schemas) is not None
    fetch = next(
        message for schema in schemas for message in schema.messages if message.name == "FetchRequest"
    )
    head = next(field for field in fetch.root.fields if field.name == "ReplicaId")
    head.versions = Versions(4, 15)
    with pytest.raises(SchemaError, match="FETCH_REQUEST_HEAD_15"):
        generate_layouts(schemas)
