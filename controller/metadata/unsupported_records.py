"""Metadata records that have no effect here yet: SCRAM users.

A directory that Kafka has used may have them. They are kept unchanged over restarts and exported to Kafka again, and each start
logs that they have no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from barnabas.wire.messages import metadata_records as wire

Key = tuple[object, ...]
UnsupportedRecords = dict[Key, msgspec.Struct]

_NAMES: Final[dict[type, str]] = {
    wire.UserScramCredentialRecord: "SCRAM credentials",
}


def replay_unsupported(records: UnsupportedRecords, record: msgspec.Struct) -> None:
    """Replay one record of UNSUPPORTED_RECORDS: it replaces or removes the record with its key."""
    key_of, removes = UNSUPPORTED_RECORDS[type(record)]
    key = key_of(record)
    if removes:
        records.pop(key, None)
    else:
        records[key] = record


def describe(records: Iterable[msgspec.Struct]) -> str:
    """Such as `3 SCRAM credentials`."""
    counts = Counter(_NAMES[type(record)] for record in records)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _scram(record: wire.UserScramCredentialRecord | wire.RemoveUserScramCredentialRecord) -> Key:
    return "scram", record.name, record.mechanism


# record type -> (its key, whether it removes the record with that key)
UNSUPPORTED_RECORDS: Final[dict[type, tuple[Callable[..., Key], bool]]] = {
    wire.UserScramCredentialRecord: (_scram, False),
    wire.RemoveUserScramCredentialRecord: (_scram, True),
}
