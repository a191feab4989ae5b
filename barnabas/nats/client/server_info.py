"""What a server says of itself: the INFO line, with which a connection begins and which may come again."""

from __future__ import annotations

from typing import Final

import msgspec

# A message can be larger than the server's max_payload: one that passed a server with another limit, or got headers
# from JetStream.
SIZE_SLACK_BYTES: Final = 1024 * 1024
# JetStream's answers are larger than max_payload as well: a page names 100,000 subjects (kv/made_anew.py).
API_ANSWER_BYTES: Final = 32 * 1024 * 1024
# nats-server knows no larger max_payload than 64 MiB.
SIZE_MAX_BYTES: Final = 64 * 1024 * 1024 + SIZE_SLACK_BYTES


class NatsProtocolError(Exception):
    """What came is not the NATS protocol, or larger than it may be."""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the server tells of itself in INFO, as far as it matters here."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    cluster: str = ""
    domain: str = ""
    max_payload: int = 1024 * 1024
    client_id: int = 0
    client_ip: str = ""
    headers: bool = False
    jetstream: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    tls_verify: bool = False
    nonce: str = ""
    connect_urls: tuple[str, ...] = ()
    ldm: bool = False  # lame duck mode: the server goes away soon

    @property
    def size_max(self) -> int:
        """Largest message to expect, headers and payload, in bytes."""
        return min(max(self.max_payload, API_ANSWER_BYTES) + SIZE_SLACK_BYTES, SIZE_MAX_BYTES)


def read_info(line: bytes) -> ServerInfo:
    """The line INFO {...}, without its end. NatsProtocolError when it is none."""
    if line[:5].upper() not in (b"INFO ", b"INFO\t"):
        raise NatsProtocolError(f"not the NATS protocol: {shown(line)}")
    try:
        return msgspec.json.decode(line[5:], type=ServerInfo)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise NatsProtocolError(f"INFO that cannot be read: {error}: {shown(line)}") from error


def shown(line: bytes) -> str:
    """A line as a log may show it."""
    return repr(line[:200])[1:]
