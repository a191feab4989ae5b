"""Tells the operator whose transactions are refused, once for each transactional id.

A client asks again until its own timeout ends, so neither its repeated questions nor clients that make up a
new id each time may fill the log: ids beyond `MOST_NAMED` are not named any more.
"""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger("barnabas.broker")

MOST_NAMED: Final = 100
_LONGEST: Final = 200


class RefusedTransactions:
    """Which transactional ids the log has named already; at most `MOST_NAMED`, cut to 200 characters."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def warn(self, transactional_id: str) -> None:
        """One warning, unless this id had its own or too many had."""
        # Escaped: the text is the client's, and must not break the line.
        name = transactional_id[:_LONGEST].encode("unicode_escape").decode("ascii")
        if name in self._named or len(self._named) >= MOST_NAMED:
            return
        self._named.add(name)
        logger.warning("transactional.id=%s: transactions are not served yet", name)
