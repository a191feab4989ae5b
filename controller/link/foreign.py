"""What a connection may be that does not speak the link protocol, told from its first bytes: for the log line
that tells an operator which client he has pointed at the wrong port."""

from __future__ import annotations

from typing import Final

from barnabas.wire.registry import API_NAMES

_HTTP: Final = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PRI * HTTP")
_KAFKA_FRAME_BYTES_MAX: Final = 100 * 1024 * 1024


def describe_foreign(first: bytes) -> str:
    """A few words that complete "refused a connection from ...: "."""
    if len(first) >= 3 and first[0] == 0x16 and first[1] == 3:
        return "it begins with a TLS handshake, and this listener speaks plain text: its security protocol differs"
    if first.startswith(_HTTP):
        return "it is an HTTP client, and this is a controller listener"
    if len(first) >= 8:
        length = int.from_bytes(first[:4], "big")
        api_key, version = int.from_bytes(first[4:6], "big"), int.from_bytes(first[6:8], "big")
        if 8 <= length <= _KAFKA_FRAME_BYTES_MAX and api_key in API_NAMES and version < 32:
            return (
                f"it is a Kafka client (its first request is {API_NAMES[api_key]} version {version}), and this "
                f"listener is for the nodes of the cluster alone; give it the address of a broker's listener"
            )
    return f"it does not speak the protocol of controller listeners (it begins with {first[:16]!r})"
