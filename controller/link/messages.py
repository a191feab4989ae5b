"""Messages of the link protocol: msgpack arrays, whose fields have fixed positions.

A newer release may append fields, each with a default; decoding ignores unknown ones. Any other change needs a new protocol
version in the hello.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from barnabas.controller.metadata.errors import UNREADABLE
from barnabas.controller.raft.voters import Voter

PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION: Final = 5
CLOCKS_SINCE: Final = 3
VOTERS_SINCE: Final = 4
LOADS_SINCE: Final = 5

AUTHENTICATION_NONE: Final = "none"
AUTHENTICATION_SECRET: Final = "secret"

BROKER: Final = "broker"
CONTROLLER: Final = "controller"

# Kinds of frames
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
SASL: Final = 19
VOTERS: Final = 20
LOAD: Final = 21  # a broker's load report, to the active controller (controller/balancer/load_reports.py)

IGNORED: Final = frozenset(
    range(14, 18)
)  # links by way of a third node, in versions 2 and 3 of earlier releases
KINDS: Final = frozenset(range(HELLO, LOAD + 1))

# Metadata for brokers that do not vote, and the genesis of a quorum, in pieces
METADATA_WINDOW_BYTES: Final = 2 * 1024 * 1024  # sent to one broker and not acknowledged
METADATA_PIECE_BYTES: Final = 256 * 1024  # in one message, about
GENESIS_PIECE_BYTES: Final = 512 * 1024

REASON_LENGTH_MAX: Final = 1000

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")


class MalformedMessage(Exception):
    """The peer has sent other bytes than the expected message."""


# Opening a link


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The first message of either side. `nonce`: 16 random bytes, which make the keys of each link different."""

    version_min: int
    version_max: int
    authentication: str
    nonce: bytes


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """The sender.

    `cluster_id` is empty on a node that has none yet. `directory_id` is the same for the life of the metadata directory,
    `incarnation_id` for that of the process. `voter_ids`: the node ids in controller.quorum.voters, empty where bootstrap
    servers are configured. `journalled`: the voters of a quorum that has formed, with their addresses at that time.
    `configured`: the voters of controller.quorum.voters, by node id; empty from older releases. `dynamic`: the metadata log of
    the quorum names its voters (kraft.version 1); `journalled` are those that the sender knew last. `join_id`: with `directory_id` the
    sender's metadata directory (raft/voters.py). `features`: name -> lowest and highest level that a controller supports; none from a
    release that does not say.
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
    dynamic: bool = False
    join_id: bytes = b""
    features: dict[str, tuple[int, int]] = {}

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles


class RefusalCode(StrEnum):
    """Why a link is refused. Other releases may send other codes."""

    VERSION = "version"
    AUTHENTICATION = "authentication"
    MALFORMED = "malformed"
    CLUSTER = "cluster"
    NODE_ID = "node_id"
    VOTERS = "voters"
    DIRECTORY = "directory"
    BUSY = "busy"
    SELF = "self"  # the node has reached itself


class Refused(msgspec.Struct, array_like=True, frozen=True):
    """The sender refuses the link. `reason`: for the operator. `passing`: a later attempt may succeed."""

    code: str
    reason: str
    passing: bool = False


class LinkRefused(Exception):
    """A link is refused, by the peer (`by_peer`) or by this node."""

    def __init__(self, code: str, reason: str, *, passing: bool = False, by_peer: bool = False) -> None:
        reason = "".join(letter if letter.isprintable() else "?" for letter in reason[:REASON_LENGTH_MAX])
        super().__init__(reason)
        self.code = code
        self.reason = reason  # parts of it may come from the peer
        self.passing = passing
        self.by_peer = by_peer

    @classmethod
    def from_peer(cls, refused: Refused) -> LinkRefused:
        return cls(refused.code, refused.reason, passing=refused.passing, by_peer=True)

    def message(self) -> Refused:
        return Refused(str(self.code), self.reason, self.passing)


def busy(reason: str) -> LinkRefused:
    """A refusal after which a later attempt may succeed."""
    return LinkRefused(RefusalCode.BUSY, reason, passing=True)


# On an open link


class Leader(msgspec.Struct, array_like=True, frozen=True):
    """The active controller that the sender knows, -1 for none. The newer term wins."""

    term: int
    leader_id: int


class Clock(msgspec.Struct, array_like=True, frozen=True):
    """The sender's wall clock, in ms since the epoch."""

    time_ms: int


class QuorumVoters(msgspec.Struct, array_like=True, frozen=True):
    """The voters of a quorum whose log names them, as committed up to the entry `index`. The higher index wins."""

    index: int
    voters: list[Voter]


# Committed metadata for brokers that do not vote. A broker sends Subscribe once on a link; the voter then sends each group when
# it is committed, up to a window of bytes that the broker has not acknowledged. `subscription` is the broker's number of its
# Subscribe; messages with an older one are dropped.


class Subscribe(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Requests everything after the record `offset` (-1: from the beginning)."""

    subscription: int
    offset: int


class Unsubscribe(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Ends a subscription: another voter sends the metadata."""

    subscription: int


class Acknowledge(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The receiver of the metadata has applied messages of `total` bytes (`cost`) since Subscribe."""

    subscription: int
    total: int


class Groups(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Groups of records, each applied as a whole; the first record of the first has `base_offset`. `end_offset`: one past the
    last record that the voter knew to be committed; followers do not use it, but it is in the format that nodes of other
    versions send and read. `cost`: the bytes that this counts in Acknowledge."""

    subscription: int
    base_offset: int
    groups: list[list[bytes]]
    end_offset: int
    cost: int


class SnapshotPart(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """A piece of a snapshot (metadata/local_journal.py) of `size` bytes, which replaces everything applied before."""

    subscription: int
    position: int
    size: int
    data: bytes


MetadataMessage = Subscribe | Unsubscribe | Acknowledge | Groups | SnapshotPart


# Between voters while they form a quorum (quorum_bootstrap.py)


class Status(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """The sender's stage (quorum_state.py); sent on every new link and after every step."""

    stage: int
    attempt: bytes
    has_metadata: bool


class Prepare(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The seed proposes an attempt."""

    attempt: bytes
    cluster_id: str
    voters: list[Voter]
    genesis: int
    genesis_bytes: int


class Prepared(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The sender has the attempt's genesis on disk."""

    attempt: bytes


class GetPart(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Requests the part of the genesis from `position` on."""

    attempt: bytes
    position: int


class Part(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """A part of the genesis."""

    attempt: bytes
    position: int
    data: bytes


FormationMessage = Status | Prepare | Prepared | GetPart | Part

_metadata_decoder: Final[msgspec.msgpack.Decoder[MetadataMessage]] = msgspec.msgpack.Decoder(MetadataMessage)
_formation_decoder: Final[msgspec.msgpack.Decoder[FormationMessage]] = msgspec.msgpack.Decoder(
    FormationMessage
)


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(payload: bytes | memoryview, kind: type[M]) -> M:
    """MalformedMessage."""
    return _decoded(msgspec.msgpack.Decoder[M](kind), payload, f"a {kind.__name__}")


def decode_metadata(payload: bytes) -> MetadataMessage:
    """MalformedMessage."""
    return _decoded(_metadata_decoder, payload, "a message about metadata")


def decode_formation(payload: bytes) -> FormationMessage:
    """MalformedMessage."""
    return _decoded(_formation_decoder, payload, "a message about the quorum's formation")


def _decoded(decoder: msgspec.msgpack.Decoder[T], payload: bytes | memoryview, what: str) -> T:
    try:
        return decoder.decode(payload)
    except UNREADABLE as error:
        raise MalformedMessage(f"{what} can't be read: {error}") from None
