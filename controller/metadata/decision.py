"""What an operation decides: the records that would make it true, and the response once they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

R = TypeVar("R")


class Decision(msgspec.Struct, Generic[R], frozen=True):
    """`records` are metadata records (wire/messages/metadata_records.py) that commit together or not at all;
    `response` goes to the caller when they have been committed and replayed. No records: it goes at once."""

    records: Sequence[msgspec.Struct]
    response: R
