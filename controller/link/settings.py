"""The figures that links work with. Times in seconds."""

from __future__ import annotations

import msgspec


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All bounds are per node, `queue_bytes_max` and `requests_max` per link."""

    hello_timeout_s: float = 3.0  # from the connection to the open link
    connect_timeout_s: float = 2.0
    ping_s: float = 0.5  # a side that has said nothing for so long says that it lives
    silence_s: float = 2.5  # after which a link counts as broken
    probe_s: float = 0.5  # in which a node must answer, or another process may take its id
    backoff_first_s: float = 0.02
    backoff_max_s: float = 0.5
    refused_backoff_s: float = 2.0  # after a refusal that an operator has to mend
    connections_max: int = 1024  # accepted
    handshakes_max: int = 128  # accepted and not yet open
    queue_bytes_max: int = 32 * 1024 * 1024  # waiting for a peer that does not read
    requests_max: int = 10_000  # without an answer
