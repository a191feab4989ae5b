"""Refuses transactions, which are not served yet: what the client is answered, and one warning per transactional id.

The answer must end the client's attempt at once; on a retriable error Java's producer asks for a minute and librdkafka
and aiokafka for ever. Neither repeated attempts nor clients that make up a new id each time may fill the log: ids beyond
`MOST_NAMED` are not named any more.
"""

from __future__ import annotations

import logging
from typing import Final

from barnabas.wire.errors import ErrorCode

logger = logging.getLogger("barnabas.broker")

MOST_NAMED: Final = 100
_LONGEST: Final = 200
MESSAGE: Final = "Transactions are not served yet by this broker."
_COORDINATOR_KEYS_SINCE: Final = 4  # the version of FindCoordinator that takes several keys


def coordinator_refusal(api_version: int) -> ErrorCode:
    """The error of FindCoordinator for a transactional id, beside MESSAGE.

    librdkafka and aiokafka, which ask in versions 0-2, both give up on an authorization failure; librdkafka on nothing
    else. Those that ask for several keys (Java, kafka-python, franz-go) give up on whatever is not retriable, and Java
    shows the message unless it is an authorization failure.
    """
    if api_version < _COORDINATOR_KEYS_SINCE:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.UNSUPPORTED_VERSION


# The error of InitProducerId, which has no message.
PRODUCER_ID_REFUSAL: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


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
