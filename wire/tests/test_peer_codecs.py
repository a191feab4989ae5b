"""Every request and response against two codecs written by others: kio's and kafka-python's.

Bytes encoded here decode there into equal values, and what they encode from those values decodes here into the
message it started from.
"""

from __future__ import annotations

import copy
import datetime
import importlib
import io
import pkgutil
import random
import uuid
from pathlib import Path
from typing import Any

import kafka.protocol
import msgspec
import pytest
from kafka.protocol.api_message import ApiMessage
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from msgspec.structs import force_setattr

from barnabas.wire.message_type import MessageType
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.schema_parser import Field, Message, Struct, parse_file

SCHEMAS = sorted((Path(__file__).resolve().parents[1] / "schema").glob("*.txt"))
SAMPLES_PER_VERSION = 3


def requests_and_responses() -> list[tuple[str, Message, int]]:
    return [
        (schema.module, message, version)
        for schema in map(parse_file, SCHEMAS)
        for message in schema.messages
        if message.kind in ("request", "response")
        for version in range(message.versions.first, message.versions.last + 1)
    ]


def joined(parts: list[Any]) -> bytes:
    return b"".join(bytes(part) for part in parts)


# -- kio ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kio_reads_the_same_and_writes_the_same(
    message_samples: Any, message_types: dict[str, MessageType[Any]]
) -> None:
    rng = random.Random(4)
    compared = set()
    for module, message, version in requests_and_responses():
        entity = kio_entity(module, message, version)
        if entity is None:
            continue
        read, write = entity_reader(entity), entity_writer(entity)
        kind = message_types[message.name]
        for _ in range(SAMPLES_PER_VERSION):
            value = message_samples(message, version, rng)
            tame(message.root, value, version)
            encoded = joined(kind.encode(version, value))
            theirs, size = read(encoded, 0)
            assert size == len(encoded), f"{message.name} {version}"
            compare_with_kio(message.root, version, value, theirs, f"{message.name} {version}")
            rewritten = io.BytesIO()
            write(rewritten, theirs)
            assert kind.decode(version, rewritten.getvalue()) == (value, len(rewritten.getvalue()))
        compared.add((message.name, version))
    missing = {(message.name, version) for _, message, version in requests_and_responses()} - compared
    assert not missing


def kio_entity(module: str, message: Message, version: int) -> Any:
    paths: Any = schema_name_map.get(module, {}).get(version)
    if paths is None:
        return None
    path, _, name = paths[EntityType[message.kind]].partition(":")
    return getattr(importlib.import_module(path), name)


def tame(struct: Struct, value: Any, version: int) -> None:
    """Keeps numbers that kio turns into errors, times and durations in the range of Python's types."""
    for field in struct.fields:
        if version not in field.versions:
            continue
        content = getattr(value, field.python_name)
        if isinstance(content, msgspec.Struct):  # it may be a default, which all messages share
            content = copy.copy(content)
            force_setattr(value, field.python_name, content)
        items = content if isinstance(content, list) else [content]
        if field.struct is not None:
            for item in items:
                if item is not None:
                    tame(field.struct, item, version)
        elif field.type == "int16" and "error" in field.python_name:
            new = [abs(item) % 130 for item in items]
            force_setattr(value, field.python_name, new if isinstance(content, list) else new[0])
        elif field.type == "int64" and isinstance(content, int):
            force_setattr(value, field.python_name, abs(content) % (1 << 42))


def compare_with_kio(struct: Struct, version: int, ours: Any, theirs: Any, where: str) -> None:
    present = [field for field in struct.fields if version in field.versions]
    names = [name for name in type(theirs).__dataclass_fields__ if not name.startswith("__")]
    assert len(present) == len(names), f"{where}: {names}"
    for field, name in zip(present, names, strict=True):
        assert field.python_name.startswith(name.rstrip("_")), f"{where}: {name}"
        values = getattr(ours, field.python_name), getattr(theirs, name)
        compare_field(field, version, *values, f"{where}.{field.name}", from_kio)


def from_kio(value: Any) -> Any:
    match value:
        case datetime.timedelta():
            return round(value.total_seconds() * 1000)
        case datetime.datetime():
            return round(value.timestamp() * 1000)
        case uuid.UUID():
            return value.bytes
        case _:
            return value


def compare_field(field: Field, version: int, ours: Any, theirs: Any, where: str, convert: Any) -> None:
    if field.type == "uuid" and theirs is None and not field.is_array:
        theirs = ZERO_UUID
    if ours is None or theirs is None:
        assert ours is None, where
        assert theirs is None, where
    elif field.is_array:
        assert len(ours) == len(theirs), where
        for pair in zip(ours, theirs, strict=True):
            compare_element(field, version, *pair, where, convert)
    else:
        compare_element(field, version, ours, theirs, where, convert)


def compare_element(field: Field, version: int, ours: Any, theirs: Any, where: str, convert: Any) -> None:
    if field.struct is None:
        if field.type == "uuid" and theirs is None:
            theirs = ZERO_UUID
        assert convert(theirs) == ours, where
    elif convert is from_kio:
        compare_with_kio(field.struct, version, ours, theirs, where)
    else:
        compare_with_kafka_python(field.struct, version, ours, theirs, where)


# -- kafka-python -------------------------------------------------------------------------------------------


def kafka_python_classes() -> dict[str, Any]:
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate_stubs" not in module.name:
            importlib.import_module(module.name)
    return {entry.__name__: entry for entry in subclasses(ApiMessage)}


def subclasses(root: Any) -> list[Any]:
    return [entry for child in root.__subclasses__() for entry in (child, *subclasses(child))]


@pytest.mark.slow
def test_kafka_python_reads_the_same_and_writes_the_same(
    message_samples: Any, message_types: dict[str, MessageType[Any]]
) -> None:
    rng = random.Random(5)
    classes = kafka_python_classes()
    compared = 0
    for _, message, version in requests_and_responses():
        theirs_class = classes.get(message.name)
        if theirs_class is None or version > theirs_class.max_version:
            continue
        kind = message_types[message.name]
        for _ in range(SAMPLES_PER_VERSION):
            value = message_samples(message, version, rng)
            if message.name == "ApiVersionsResponse":
                value.error_code = 0  # with an error it reads version 0, whatever the version is
            encoded = joined(kind.encode(version, value))
            theirs = theirs_class.decode(encoded, version=version)
            where = f"{message.name} {version}"
            compare_with_kafka_python(message.root, version, value, theirs, where)
            theirs._header = None  # a decoded message has no such attribute, which encode() asks for
            rewritten = bytes(theirs.encode(version=version))
            assert kind.decode(version, rewritten) == (value, len(rewritten)), where
        compared += 1
    assert compared > 250


def compare_with_kafka_python(
    struct: Struct, version: int, ours: msgspec.Struct, theirs: Any, where: str
) -> None:
    for field in struct.fields:
        if version in field.versions:
            name = field.python_name
            if name.endswith("authorized_operations"):
                continue  # a set of bit numbers there; the rewritten bytes are compared instead
            pair = getattr(ours, name), getattr(theirs, name)
            if field.tag is not None and pair[1] is None:
                assert pair[0] == getattr(type(ours)(), field.python_name), where  # absent: None there
                continue
            compare_field(field, version, *pair, f"{where}.{field.name}", from_kafka_python)


def from_kafka_python(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, memoryview):
        return bytes(value)
    return value
