"""Every reader on mutated bytes: its own error or a message, nothing else.

`BARNABAS_FUZZ_SEEDS` sets how many seeds run; a failure names its seed, message and bytes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.wire.codecs import decompress
from barnabas.wire.compression import Codec, CompressionError
from barnabas.wire.headers import decode_request_header, decode_response_header
from barnabas.wire.message_type import MessageType
from barnabas.wire.messages.index import APIS
from barnabas.wire.primitives import DecodeError
from barnabas.wire.record_batch import RecordBatchError, iterate_headers, verify_crc
from barnabas.wire.records import iterate_records
from barnabas.wire.schema_parser import Field, Message, Struct, parse_file
from barnabas.wire.tests.conftest import SCHEMAS
from barnabas.wire.tests.lying_batches import lying_batch
from barnabas.wire.tests.message_tokens import Node, build, encode
from barnabas.wire.tests.mutations import damage, mutate

SEEDS = int(os.environ.get("BARNABAS_FUZZ_SEEDS", "1"))
UNPACKED_MAX = 1 << 20

_NUMBERS = {"bool": 1, "int8": 7, "int16": 15, "uint16": 16, "int32": 31, "int64": 63}


def values(rng: random.Random) -> Any:
    def value(field: Field, _owner: Struct) -> Any:
        if field.type in _NUMBERS:
            return rng.getrandbits(_NUMBERS[field.type])
        if field.type == "float64":
            return rng.random()
        if field.type == "uuid":
            return rng.randbytes(16)
        if field.type == "string":
            return rng.choice(("", "name", "x" * 127, "x" * 128, "é" * 20))
        return lying_batch(rng)[0] if field.type == "records" else rng.randbytes(rng.randrange(200))

    return value


@pytest.fixture(scope="session")
def messages() -> list[Message]:
    return [message for path in SCHEMAS for message in parse_file(path).messages]


def every_version(messages: list[Message]) -> Iterator[tuple[Message, int]]:
    for message in messages:
        for version in range(message.versions.first, message.versions.last + 1):
            yield message, version


@pytest.mark.parametrize("seed", range(SEEDS))
def test_messages(seed: int, messages: list[Message], message_types: dict[str, MessageType[Any]]) -> None:
    refused = accepted = 0
    rng = random.Random(seed)
    for message, version in every_version(messages):
        kind = message_types[message.name]
        nodes = build(message, version, values(rng), rng)
        valid = encode(nodes)
        assert kind.decode(version, valid)[1] == len(valid), f"{message.name} {version} {valid.hex()}"
        for data, what in mutated(valid, nodes, rng):
            try:
                _, end = kind.readers[version](memoryview(data), 0, len(data))
                assert 0 <= end <= len(data)
                accepted += 1
            except DecodeError:
                refused += 1
            except Exception as error:
                raise AssertionError(
                    f"seed {seed}: {message.name} {version}, {what}: {error!r}\n{data[:4000].hex()}"
                ) from error
    assert refused > 1000
    assert accepted > 1000


def mutated(valid: bytes, nodes: list[Node], rng: random.Random) -> Iterator[tuple[bytes, str]]:
    """Some damaged encodings of a message; the last ones have all mutations of those before."""
    for _ in range(2):
        yield damage(valid, rng)
    for _ in range(4):
        what = mutate(nodes, rng, 4000)
        yield encode(nodes), what


@pytest.mark.parametrize("seed", range(SEEDS))
def test_headers(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        key = rng.choice((*APIS, -1, 32767))
        header = b"".join(
            (
                key.to_bytes(2, "big", signed=True),
                rng.randint(-2, 19).to_bytes(2, "big", signed=True),
                rng.randbytes(4),
                rng.choice((b"\xff\xff", b"\x00\x03abc", b"\x7f\xffabc", b"\xff\xfe", b"\x00\x02\xff\xfe")),
                rng.choice((b"", b"\x00", b"\x01\x00\x00", b"\x02\x00\x05ab", b"\xff\xff\x03", b"\xff" * 6)),
            )
        )
        for data in (header, damage(header, rng)[0]):
            for read in (decode_request_header, lambda data: decode_response_header(3, 12, data)):
                try:
                    read(data)
                except DecodeError:
                    pass
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {error!r}\n{data.hex()}") from error


@pytest.mark.parametrize("seed", range(SEEDS))
def test_record_batches(seed: int) -> None:
    rng = random.Random(seed)
    refused = accepted = 0
    for _ in range(800):
        data, what = lying_batch(rng, bomb_megabytes=2 if rng.random() < 0.05 else 0)
        if rng.random() < 0.3:
            data, how = damage(data, rng)
            what += f", {how}"
        try:
            for position, header in iterate_headers(data):
                verify_crc(data, position, header)
                for _ in iterate_records(data[position:], UNPACKED_MAX):
                    pass
            accepted += 1
        except RecordBatchError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}: {error!r}\n{data[:4000].hex()}") from error
    assert refused > 300
    assert accepted > 100


@pytest.mark.parametrize("seed", range(SEEDS))
def test_compressed_bytes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        data, what = lying_batch(rng)
        payload = damage(data[61:], rng)[0]
        for codec in (*Codec, 5, 7):
            try:
                assert len(decompress(codec, payload, UNPACKED_MAX)) <= UNPACKED_MAX
            except CompressionError:
                pass
            except Exception as error:
                raise AssertionError(
                    f"seed {seed}: {codec} {what}: {error!r}\n{payload[:4000].hex()}"
                ) from error
