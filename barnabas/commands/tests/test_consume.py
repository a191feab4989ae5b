"""Records as lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.commands.consume import Formatter


def record(**fields: Any) -> SimpleNamespace:
    usual = {"partition": 1, "offset": 2, "timestamp": 3, "timestamp_type": 0, "headers": []}
    return SimpleNamespace(**{**usual, "key": b"k", "value": b"v", **fields})


def written(properties: dict[str, str], **fields: Any) -> bytes:
    return Formatter(properties).write(record(**fields))


def test_columns() -> None:
    names = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key")
    properties = {f"print.{name}": "true" for name in names}
    assert (
        written(properties, headers=[("a", b"1"), ("b", None)])
        == b"CreateTime:3\tPartition:1\tOffset:2\tDelivery:NOT_PRESENT\tEpoch:NOT_PRESENT\ta:1,b:null\tk\tv\n"
    )
    assert written({"print.timestamp": "true"}, timestamp_type=1) == b"LogAppendTime:3\tv\n"
    assert written({"print.timestamp": "true"}, timestamp_type=None) == b"NO_TIMESTAMP\tv\n"
    assert written({"print.headers": "true", "print.value": "false"}) == b"NO_HEADERS\n"
    assert written({"print.value": "false"}) == b""


def test_marks() -> None:
    marks = {"key.separator": "=", "line.separator": ";", "null.literal": "-", "print.key": "true"}
    assert written(marks, key=None) == b"-=v;"


def test_deserializers(capsys: pytest.CaptureFixture[str]) -> None:
    package = "org.apache.kafka.common.serialization"
    assert written({"value.deserializer": f"{package}.LongDeserializer"}, value=b"\xff" * 8) == b"-1\n"
    assert written({"value.deserializer": f"{package}.IntegerDeserializer"}, value=b"\0\0\0\x07") == b"7\n"
    assert (
        written({"value.deserializer": f"{package}.StringDeserializer"}, value=b"\xff") == "\ufffd\n".encode()
    )
    with pytest.raises(ValueError, match="not 2"):
        written({"value.deserializer": f"{package}.ShortDeserializer"}, value=b"\0")
    assert written({"value.deserializer": "no.such.Class"}) == b"v\n"
    assert "no.such.Class" in capsys.readouterr().err
