"""Random messages, made from the schema text, and the message types by name."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.message_type import MessageType
from barnabas.wire.schema_parser import Field, Message, Struct, parse_file

SCHEMAS = sorted((Path(__file__).resolve().parents[1] / "schema").glob("*.txt"))
_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


class SampleMaker:
    """Makes a random message: fields that a version lacks keep their defaults, all others vary."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        for path in SCHEMAS:
            schema = parse_file(path)
            module = importlib.import_module(f"barnabas.wire.messages.{schema.module}")
            for message in schema.messages:
                self._modules[message.name] = module

    def __call__(self, message: Message, version: int, rng: random.Random) -> Any:
        return self._struct(self._modules[message.name], message.root, version, rng)

    def _struct(self, module: Any, struct: Struct, version: int, rng: random.Random) -> Any:
        values = {
            field.python_name: self._field(module, field, version, rng)
            for field in struct.fields
            if version in field.versions and (field.tag is None or rng.random() < 0.6)
        }
        return getattr(module, struct.class_name)(**values)

    def _field(self, module: Any, field: Field, version: int, rng: random.Random) -> Any:
        if version in field.nullable and rng.random() < 0.25:
            return None
        if field.is_array:
            size = 150 if field.struct is None and rng.random() < 0.03 else rng.choice((0, 1, 1, 2, 3))
            return [self._element(module, field, version, rng) for _ in range(size)]
        return self._element(module, field, version, rng)

    def _element(self, module: Any, field: Field, version: int, rng: random.Random) -> Any:
        if field.struct is not None:
            return self._struct(module, field.struct, version, rng)
        match field.type:
            case "string":
                size = rng.choice((126, 127, 128, 300)) if rng.random() < 0.1 else rng.randrange(9)
                return "".join(rng.choice("abcdefgh.-_é€😀") for _ in range(size))
            case "bytes" | "records":
                return rng.randbytes(200 if rng.random() < 0.1 else rng.randrange(9))
            case "uuid":
                return rng.randbytes(16)
            case "bool":
                return rng.random() < 0.5
            case "float64":
                return rng.uniform(-1e9, 1e9)
            case kind:
                low, high = _RANGES[kind]
                if rng.random() < 0.5:
                    return rng.randint(max(low, -2), 100)
                return rng.randint(low, high)


@pytest.fixture(scope="session")
def message_samples() -> Callable[[Message, int, random.Random], Any]:
    """A function (message, version, rng) -> a random instance of the message class."""
    return SampleMaker()


@pytest.fixture(scope="session")
def message_types() -> dict[str, MessageType[Any]]:
    """Every MessageType by Kafka's name of the message."""
    types: dict[str, MessageType[Any]] = {}
    for path in SCHEMAS:
        module = importlib.import_module(f"barnabas.wire.messages.{parse_file(path).module}")
        found = [value for value in vars(module).values() if isinstance(value, MessageType)]
        types.update({entry.name: entry for entry in found})
    return types
