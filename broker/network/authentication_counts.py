"""Counts of authentications, for the metrics: Kafka's, of its socket server (KIP-368)."""

from __future__ import annotations


class AuthenticationCounts:
    """Of one listener, since the start."""

    __slots__ = (
        "expired_connections_killed", "failed", "failed_reauthentications", "successful", "successful_no_reauth",
        "successful_reauthentications",
    )  # fmt: skip

    def __init__(self) -> None:
        self.successful = 0
        self.successful_no_reauth = 0  # of those, clients that cannot re-authenticate, as all without SASL
        self.failed = 0
        self.successful_reauthentications = 0
        self.failed_reauthentications = 0
        self.expired_connections_killed = 0  # sessions that a request came after the end of

    def succeed(self, *, again: bool, may_reauthenticate: bool) -> None:
        if again:
            self.successful_reauthentications += 1
        else:
            self.successful += 1
            self.successful_no_reauth += not may_reauthenticate

    def fail(self, *, again: bool) -> None:
        if again:
            self.failed_reauthentications += 1
        else:
            self.failed += 1
