"""The schema text says what Kafka's own definitions say: every field of the JSON files in Kafka's jars.

Compared are names, types, versions, nullability, tags, defaults, keys, listeners and flexibility. Versions that
no longer exist are cut off on both sides. What the JSON says about Java (ignorable, mapKey, entityType) has no
counterpart here.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.schema_parser import Field, Message, Struct, Versions, parse_file

pytestmark = pytest.mark.jvm  # Kafka's jars
ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".cache" / "kafka-4.3.1" / "lib"
SCHEMAS = sorted((ROOT / "wire" / "schema").glob("*.txt"))
FILES = (
    "kafka-clients",
    "kafka-metadata",
    "kafka-group-coordinator",
    "kafka-transaction-coordinator",
    "kafka-share-coordinator",
)
KINDS = {"metadata": "record", "coordinator-key": "key", "coordinator-value": "value"}


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    """Kafka's JSON definitions by message name."""
    found: dict[str, Any] = {}
    for name in FILES:
        path = JARS / f"{name}-4.3.1.jar"
        if not path.exists():
            pytest.fail(f"{path.relative_to(ROOT)} is missing: run `make kafka`")
        with zipfile.ZipFile(path) as jar:
            for entry in jar.namelist():
                if re.fullmatch(r"common/(message|metadata)/\w+\.json", entry):
                    definition = json.loads(
                        re.sub(r"(?m)(^\s*|[,\[{\]}]\s*)//.*$", r"\1", jar.read(entry).decode())
                    )
                    found[definition["name"]] = definition
    return found


def all_messages() -> list[Message]:
    return [message for path in SCHEMAS for message in parse_file(path).messages]


def test_every_message_agrees_with_kafkas_definition(definitions: dict[str, Any]) -> None:
    for message in all_messages():
        definition = definitions[message.name]
        assert ours(message) == kafkas(definition, message.versions), message.name


def test_no_living_api_and_no_metadata_record_is_missing(definitions: dict[str, Any]) -> None:
    names = {message.name for message in all_messages()}
    living = {
        name
        for name, definition in definitions.items()
        if definition["validVersions"] != "none" and definition["type"] in ("request", "response", "metadata")
    }
    assert len(living) > 190
    assert living <= names


def ours(message: Message) -> dict[str, Any]:
    return {
        "kind": message.kind,
        "key": message.api_key,
        "versions": message.versions,
        "flexible": message.flexible_since,
        "listeners": message.listeners,
        "unstable": message.unstable,
        "fields": our_fields(message.root),
    }


def our_fields(struct: Struct) -> list[tuple[Any, ...]]:
    return [
        (
            field.name,
            ("[]" if field.is_array else "") + field.type,
            field.versions,
            empty_is_none(field.nullable),
            field.tag,
            default(field.type, field.is_array, field.default),
            our_fields(field.struct) if field.struct else None,
        )
        for field in struct.fields
    ]


def kafkas(definition: dict[str, Any], versions: Versions) -> dict[str, Any]:
    flexible = kafka_range(definition.get("flexibleVersions", "none"), versions)
    kind = definition["type"]
    shared = {entry["name"]: entry["fields"] for entry in definition.get("commonStructs", [])}
    return {
        "kind": KINDS.get(kind, kind),
        "key": definition.get("apiKey", -1),
        "versions": Versions.parse(definition["validVersions"], 0),
        "flexible": flexible.first if flexible else None,
        "listeners": tuple(definition.get("listeners", ())),
        "unstable": definition.get("latestVersionUnstable", False),
        "fields": kafka_fields(definition["fields"], versions, shared),
    }


def kafka_fields(
    fields: list[dict[str, Any]], versions: Versions, shared: dict[str, Any]
) -> list[tuple[Any, ...]]:
    result: list[tuple[Any, ...]] = []
    for entry in fields:
        present = kafka_range(entry.get("versions") or entry["taggedVersions"], versions)
        if present is None:
            continue
        nullable = kafka_range(entry.get("nullableVersions", "none"), present)
        if "tag" in entry:
            assert kafka_range(entry["taggedVersions"], versions) == present
        kind = entry["type"].removeprefix("[]")
        nested = entry.get("fields") or shared.get(kind)
        result.append(
            (
                entry["name"],
                entry["type"],
                present,
                nullable,
                entry.get("tag"),
                default(
                    kind,
                    entry["type"] != kind,
                    default_text(entry),
                ),
                kafka_fields(nested, versions, shared) if nested else None,
            )
        )
    return result


def kafka_range(text: str, within: Versions) -> Versions | None:
    return empty_is_none(Versions.parse(text, within.last).intersect(within))


def empty_is_none(versions: Versions) -> Versions | None:
    return versions if versions.first <= versions.last else None


def default_text(entry: dict[str, Any]) -> Any:
    """JSON's null is null for a struct, and the empty array for an array, where only the text "null" is null."""
    is_null = "default" in entry and entry["default"] is None
    return "null" if is_null and not entry["type"].startswith("[]") else entry.get("default")


def default(kind: str, is_array: bool, text: Any) -> Any:
    """A default as a value, the same however it is spelled."""
    if text is None or text == "null":
        return text
    if is_array or kind in ("string", "bytes", "records"):
        return text or None
    if kind == "bool":
        return True if str(text).lower() == "true" else None
    return int(str(text), 0) or None


def test_python_names_follow_kafkas() -> None:
    fields: list[Field] = [
        field for message in all_messages() for struct in message.structs for field in struct.fields
    ]
    by_name = {field.name: field.python_name for field in fields}
    assert by_name["ThrottleTimeMs"] == "throttle_time_ms"
    assert by_name["IsrNodes"] == "isr_nodes"
    assert by_name["currentStateTimestamp"] == "current_state_timestamp"
    assert all(name.isidentifier() for name in by_name.values())
