"""What nodes say to each other before a link is open, as msgpack (arrays, so fields are known by their place).

A newer release may append fields, each with a default; decoding passes over those it does not know. Whatever
else changes gets a new protocol version in the hello.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION: Final = 3
CLOCKS_SINCE: Final = 3

AUTHENTICATION_NONE: Final = "none"
AUTHENTICATION_SECRET: Final = "secret"

BROKER: Final = "broker"
CONTROLLER: Final = "controller"

# What each frame is
HELLO: Final = 1
IDENTITY: Final = 2
WELCOME: Final = 3
REFUSED: Final = 4
PING: Final = 5
PONG: Final = 6
RAFT: Final = 7
REQUEST: Final = 8
RESPONSE: Final = 9
NO_RESPONSE: Final = 10
LEADER: Final = 11
FORMATION: Final = 12
METADATA: Final = 13
CLOCK: Final = 18

IGNORED: Final = frozenset(
    range(14, 18)
)  # links by way of a third node, in versions 2 and 3 of earlier releases

KINDS: Final = frozenset(range(HELLO, CLOCK + 1))

M = TypeVar("M", bound=msgspec.Struct)


class MalformedMessage(Exception):
    """The peer has sent bytes that are no such message."""


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The first message of either side. `nonce`: 16 random bytes, which make the keys of this link its own."""

    version_min: int
    version_max: int
    authentication: str
    nonce: bytes


class Voter(msgspec.Struct, array_like=True, frozen=True):
    """A member of the quorum. `directory_id`: of its metadata directory, 16 bytes; empty while it is not known."""

    node_id: int
    host: str
    port: int
    directory_id: bytes = b""


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """Who speaks.

    `cluster_id` is empty on a node that has none yet. `directory_id` lives as long as the metadata directory,
    `incarnation_id` as long as the process. `voter_ids`: the node ids that controller.quorum.voters names, empty
    where bootstrap servers are configured; `journalled`: the voters of a quorum that has formed, with their addresses at
    that time; `configured`: those of controller.quorum.voters, by node id, as far as the release tells them.
    """

    cluster_id: str
    node_id: int
    roles: list[str]
    directory_id: bytes
    incarnation_id: bytes
    voter_ids: list[int]
    journalled: list[Voter]
    bootstrap: bool = False
    release: str = ""
    configured: list[Voter] = []

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles


class Refused(msgspec.Struct, array_like=True, frozen=True):
    """Why a node is not wanted, for its operator to read. `passing`: it may be otherwise in a moment."""

    code: str
    reason: str
    passing: bool = False


class Leader(msgspec.Struct, array_like=True, frozen=True):
    """Who leads, as far as the sender knows; -1 for nobody. The newer term is right."""

    term: int
    leader_id: int


class Clock(msgspec.Struct, array_like=True, frozen=True):
    """What the sender's wall clock shows, in ms since the epoch."""

    time_ms: int


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(payload: bytes | memoryview, kind: type[M]) -> M:
    """MalformedMessage when it is none."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise MalformedMessage(f"a {kind.__name__} can't be read: {error}") from None
