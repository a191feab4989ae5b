"""Metadata that this broker keeps and does not act on yet: ACLs, SCRAM users, quotas, delegation tokens.

A directory that Kafka has used may hold them. They are kept as they are, from one start to the next and into
what goes back to Kafka, and each start logs that they have no effect here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from barnabas.wire.messages import metadata_records as wire

Key = tuple[object, ...]
Carried = dict[Key, msgspec.Struct]

_NAMES: Final[dict[type, str]] = {
    wire.AccessControlEntryRecord: "ACLs",
    wire.UserScramCredentialRecord: "SCRAM credentials",
    wire.ClientQuotaRecord: "client quotas",
    wire.DelegationTokenRecord: "delegation tokens",
}


def replay_carried(carried: Carried, record: msgspec.Struct) -> None:
    """Take in one record of CARRIED_RECORDS: it replaces what has its key, or removes it."""
    key_of, removes = CARRIED_RECORDS[type(record)]
    key = key_of(record)
    if removes or (isinstance(record, wire.ClientQuotaRecord) and record.remove):
        carried.pop(key, None)
    else:
        carried[key] = record


def describe(records: Iterable[msgspec.Struct]) -> str:
    """Such as `3 ACLs, 1 SCRAM credentials`."""
    counts = Counter(_NAMES[type(record)] for record in records)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _acl(record: wire.AccessControlEntryRecord | wire.RemoveAccessControlEntryRecord) -> Key:
    return "acl", record.id


def _scram(record: wire.UserScramCredentialRecord | wire.RemoveUserScramCredentialRecord) -> Key:
    return "scram", record.name, record.mechanism


def _quota(record: wire.ClientQuotaRecord) -> Key:
    entity = sorted(
        (part.entity_type, part.entity_name is not None, part.entity_name) for part in record.entity
    )
    return "quota", tuple(entity), record.key


def _token(record: wire.DelegationTokenRecord | wire.RemoveDelegationTokenRecord) -> Key:
    return "token", record.token_id


# record type -> (its key, whether it removes what has the key)
CARRIED_RECORDS: Final[dict[type, tuple[Callable[..., Key], bool]]] = {
    wire.AccessControlEntryRecord: (_acl, False),
    wire.RemoveAccessControlEntryRecord: (_acl, True),
    wire.UserScramCredentialRecord: (_scram, False),
    wire.RemoveUserScramCredentialRecord: (_scram, True),
    wire.ClientQuotaRecord: (_quota, False),
    wire.DelegationTokenRecord: (_token, False),
    wire.RemoveDelegationTokenRecord: (_token, True),
}
