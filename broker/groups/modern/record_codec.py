"""Encodes and decodes the records of one kind of modern group, all of version 0: a type of record for each key of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from barnabas.broker.coordinator.record_encoding import decode_key, decode_value, encode_key, encode_value
from barnabas.broker.groups.modern.group import ModernGroupRecord
from barnabas.wire.message_type import MessageType

VERSION: Final = 0


class RecordCodec:
    """See the module."""

    def __init__(
        self,
        record_class: type[ModernGroupRecord],
        types: Mapping[int, tuple[MessageType[Any], MessageType[Any]]],
        to_wire: Callable[[Any], msgspec.Struct],
        from_wire: Callable[[Any], Any],
    ) -> None:
        """`types`: of the key and of the value, by the type of record, which the group's Key names. `to_wire` and `from_wire`: between a
        group's value and its message."""
        self.record_class = record_class
        self.keys = frozenset(types)
        self._types = types
        self._to_wire = to_wire
        self._from_wire = from_wire

    def encode(self, record: ModernGroupRecord) -> tuple[bytes, bytes | None]:
        """(key, value) bytes. EncodeError where a field is too long."""
        key_type, value_type = self._types[record.key]
        names = (record.group_id, record.name) if len(_names_of(key_type)) == 2 else (record.group_id,)
        key = encode_key(record.key, key_type, key_type.message_class(*names))
        if record.value is None:
            return key, None
        return key, encode_value(VERSION, value_type, self._to_wire(record.value))

    def decode(self, record_type: int, key_bytes: bytes | None, value: bytes | None) -> ModernGroupRecord:
        """`record_type`: one of `keys`. UnknownRecord for damaged records and later versions."""
        key_type, value_type = self._types[record_type]
        found = decode_key(key_type, key_bytes)
        group_id, *names = (getattr(found, name) for name in _names_of(key_type))
        decoded = None if value is None else self._from_wire(decode_value(value_type, value))
        return self.record_class(group_id, record_type, names[0] if names else "", decoded)


def _names_of(key_type: MessageType[Any]) -> tuple[str, ...]:
    return cast("tuple[str, ...]", key_type.message_class.__struct_fields__)
