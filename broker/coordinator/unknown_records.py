"""Counts the records of a shard that can't be read while it is loaded."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.broker.coordinator.record_encoding import UnknownRecord

log = logging.getLogger("barnabas.coordinator")

_KINDS_SHOWN: Final = 8  # those with the most records


class UnknownRecords:
    """What was passed over, by kind."""

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()

    def count(self, error: UnknownRecord) -> None:
        self._kinds[str(error)] += 1

    def warn(self, name: str) -> None:
        """Log what was passed over in the partition, if anything was."""
        if self._kinds:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in self._kinds.most_common(_KINDS_SHOWN))
            log.warning("%s: records that can't be read are passed over (%s)", name, kinds)
