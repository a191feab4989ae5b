"""Refuses transactions, which are not served yet: the client's answer, and one warning per transactional id.

The error must end the client's attempt at once: on a retriable one Java's producer retries for a minute, librdkafka and
aiokafka for ever. Neither repeated attempts nor clients with ever new ids fill the log: after `IDS_LOGGED_MAX` ids no more
are logged.
"""

from __future__ import annotations

import logging
from typing import Final

from barnabas.wire.errors import ErrorCode

logger = logging.getLogger("barnabas.broker")

IDS_LOGGED_MAX: Final = 100
_ID_CHARACTERS_MAX: Final = 200  # of an id in the log
MESSAGE: Final = "Transactions are not served yet by this broker."
_COORDINATOR_KEYS_SINCE: Final = 4  # the version of FindCoordinator that takes several keys


def coordinator_refusal(api_version: int) -> ErrorCode:
    """The error of FindCoordinator for a transactional id, beside MESSAGE.

    librdkafka and aiokafka, which send versions 0-2, both give up on an authorization failure; librdkafka on nothing
    else. Clients that send several keys (Java, kafka-python, franz-go) give up on every error that is not retriable, and
    Java shows the message unless it is an authorization failure.
    """
    if api_version < _COORDINATOR_KEYS_SINCE:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.UNSUPPORTED_VERSION


# The error of InitProducerId, which has no message.
PRODUCER_ID_REFUSAL: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class RefusedTransactions:
    """The transactional ids that have been logged; at most `IDS_LOGGED_MAX`, cut to 200 characters."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def warn(self, transactional_id: str) -> None:
        """Log one warning, unless this id, or too many others, have been logged."""
        # Escaped: the text is the client's, and must not break the line.
        name = transactional_id[:_ID_CHARACTERS_MAX].encode("unicode_escape").decode("ascii")
        if name in self._logged or len(self._logged) >= IDS_LOGGED_MAX:
            return
        self._logged.add(name)
        logger.warning("transactional.id=%s: transactions are not served yet", name)
