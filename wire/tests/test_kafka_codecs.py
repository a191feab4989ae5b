"""Every message in every version against Kafka's own generated classes.

Random messages are encoded here, read and written again by Kafka, which also prints them as JSON. The bytes
must come back unchanged and the JSON must hold the same values. One JVM serves all of them.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from barnabas.wire.message_type import MessageType
from barnabas.wire.schema_parser import Field, Message, Struct, parse_file
from barnabas.wire.uuids import uuid_to_string

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".cache" / "kafka-4.3.1" / "lib"
SCHEMAS = sorted((ROOT / "wire" / "schema").glob("*.txt"))
SAMPLES_PER_VERSION = 4

pytestmark = [pytest.mark.jvm, pytest.mark.sockets]


def test_kafka_reads_and_rewrites_what_is_encoded_here(
    tmp_path: Path, message_samples: Any, message_types: dict[str, MessageType[Any]]
) -> None:
    if not JARS.is_dir() or shutil.which("java") is None:
        pytest.fail("this test needs Java and Kafka's jars: run `make kafka`")
    rng = random.Random(1)
    samples: list[tuple[Message, int, Any, bytes]] = []
    for path in SCHEMAS:
        for message in parse_file(path).messages:
            for version in range(message.versions.first, message.versions.last + 1):
                for _ in range(SAMPLES_PER_VERSION):
                    value = message_samples(message, version, rng)
                    parts: list[Any] = list(message_types[message.name].encode(version, value))
                    samples.append((message, version, value, b"".join(bytes(part) for part in parts)))
    lines = "".join(f"{_java_class(m)} {version} {raw.hex() or '-'}\n" for m, version, _, raw in samples)
    source = Path(__file__).with_name("Rewrite.java")
    output = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", str(source)],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(output) == len(samples) > 2000
    for (message, version, value, raw), line in zip(samples, output, strict=True):
        rewritten, _, text = line.partition(" ")
        assert rewritten == (raw.hex() or "-"), f"{message.name} {version}: {text} {value}"
        expected = _as_json(message.root, version, value)
        assert _without_defaults(expected, json.loads(text)) == json.loads(text), f"{message.name} {version}"


def _java_class(message: Message) -> str:
    coordinators = {"TransactionLog": "transaction", "ShareSnapshot": "share", "ShareUpdate": "share"}
    coordinator = coordinators.get(re.sub("(Key|Value)$", "", message.name), "group")
    package = {"record": "metadata", "key": coordinator, "value": coordinator}.get(message.kind, "common")
    suffix = "Data" if message.kind in ("request", "response") else ""
    return f"{package}:{message.name}{suffix}"


def _as_json(struct: Struct, version: int, value: msgspec.Struct) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field in struct.fields:
        if version in field.versions:
            key = field.name[0].lower() + field.name[1:]
            result[key] = _json_value(field, version, getattr(value, field.python_name))
    return result


def _json_value(field: Field, version: int, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_json_value(field, version, item) for item in value]
    if field.struct is not None:
        return _as_json(field.struct, version, value)
    if field.type == "uuid":
        return uuid_to_string(value)
    if field.type == "records":
        return ""  # Kafka prints no records, but writes them back
    if field.type == "bytes":
        return b64encode(value).decode()
    return value


def _without_defaults(ours: Any, theirs: Any) -> Any:
    """Ours without the tagged fields that Kafka leaves out of its JSON; the bytes have shown them equal."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {key: _without_defaults(value, theirs[key]) for key, value in ours.items() if key in theirs}
    if isinstance(ours, list) and isinstance(theirs, list):
        return [_without_defaults(*pair) for pair in zip(ours, theirs, strict=True)]
    return ours
