"""`quorum.state` in the metadata journal's directory: the voters of this voter's quorum.

Two lines of text, replaced in one step. The first names the format and the checksum (CRC-32C) of the second, which is JSON. Once
the stage is "formed", its voters are the quorum, and the configuration is only compared with them.

Where the metadata log names the voters (`dynamic`) the file has those that this node knew last, to find the others with. A node that
has joined such a quorum (`joins`) may begin without metadata, until it has been a voter. Its join id (raft/voters.py) is kept here:
it goes with Raft's files when the directory is emptied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.errors import UNREADABLE, MetadataError
from barnabas.controller.raft.voters import Voter
from barnabas.storage.disk.disk import Disk
from barnabas.wire.checksum import crc32c
from barnabas.wire.uuids import uuid_from_string, uuid_to_string

QUORUM_STATE: Final = "quorum.state"
FORMAT: Final = "barnabas-quorum 1"

# Stages of the bootstrap
NOTHING: Final = 0
FORMING: Final = 1  # the Raft files in this directory, if any, are invalid
PREPARED: Final = 2  # they hold the genesis of this attempt; the seed may have committed it or not
FORMED: Final = 3
_STAGES: Final = ("nothing", "forming", "prepared", "formed")


class QuorumState(msgspec.Struct, frozen=True, kw_only=True):
    """`attempt`: its id, 16 random bytes of the seed. `voters` by node id. `genesis`: fingerprint of the initial metadata."""

    stage: int
    attempt: bytes
    cluster_id: str
    seed_id: int
    voters: list[Voter]
    genesis: int = 0
    dynamic: bool = False
    joins: bool = False
    join_id: bytes = b""

    @property
    def voter_ids(self) -> list[int]:
        return [voter.node_id for voter in self.voters]

    @property
    def is_formed(self) -> bool:
        return self.stage == FORMED

    def voter(self, node_id: int) -> Voter | None:
        return next((voter for voter in self.voters if voter.node_id == node_id), None)

    def at(self, stage: int) -> QuorumState:
        return msgspec.structs.replace(self, stage=stage)


class _VoterText(msgspec.Struct, omit_defaults=True):
    id: int
    host: str
    port: int
    directory_id: str
    join_id: str = ""


class _Text(msgspec.Struct, omit_defaults=True):
    stage: str
    attempt: str
    cluster_id: str
    seed_id: int
    genesis: int
    voters: list[_VoterText]
    dynamic: bool = False
    joins: bool = False
    join_id: str = ""


def write_quorum_state(disk: Disk, directory: str, state: QuorumState) -> None:
    """Blocking: on disk when it returns. OSError."""
    text = _Text(
        _STAGES[state.stage],
        uuid_to_string(state.attempt),
        state.cluster_id,
        state.seed_id,
        state.genesis,
        [
            _VoterText(v.node_id, v.host, v.port, uuid_to_string(v.directory_id), v.join_id.hex())
            for v in state.voters
        ],
        state.dynamic,
        state.joins,
        state.join_id.hex(),
    )
    body = msgspec.json.encode(text)
    if not disk.exists(directory):
        disk.make_directory(directory, parents=True)
    disk.write_file(
        f"{directory}/{QUORUM_STATE}", f"{FORMAT} crc32c={crc32c(body):08x}\n".encode() + body + b"\n"
    )


def read_quorum_state(disk: Disk, directory: str) -> QuorumState | None:
    """None when the file does not exist. MetadataError when it can't be read; OSError."""
    path = f"{directory}/{QUORUM_STATE}"
    if not disk.exists(path):
        return None
    head, _, body = disk.read_file(path).partition(b"\n")
    body = body.removesuffix(b"\n")
    if head.startswith(b"barnabas-quorum ") and not head.startswith(FORMAT.encode() + b" "):
        raise MetadataError(
            f"{path} begins with {head[:40].decode('latin-1')!r}, which is of a newer release; this one reads {FORMAT!r}"
        )
    if head != f"{FORMAT} crc32c={crc32c(body):08x}".encode():
        raise _damaged(path, "its checksum does not match")
    try:
        text = msgspec.json.decode(body, type=_Text)
        voters = [
            Voter(v.id, v.host, v.port, uuid_from_string(v.directory_id), bytes.fromhex(v.join_id))
            for v in text.voters
        ]
        return QuorumState(
            stage=_STAGES.index(text.stage),
            attempt=uuid_from_string(text.attempt),
            cluster_id=text.cluster_id,
            seed_id=text.seed_id,
            voters=voters,
            genesis=text.genesis,
            dynamic=text.dynamic,
            joins=text.joins,
            join_id=bytes.fromhex(text.join_id),
        )
    except UNREADABLE as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: str, why: str) -> MetadataError:
    return MetadataError(
        f"{path} is damaged ({why}). It names the voters of this node's quorum; restore it from a backup of this "
        f"directory. Without it the node must not vote, so it does not start"
    )


def check_configuration(
    state: QuorumState | None, node_id: int, configured: Sequence[int], path: str
) -> None:
    """MetadataError when `configured`, the ids in controller.quorum.voters (empty with bootstrap servers), are not
    the quorum that `state`, read from the directory `path`, was formed with, and its log does not name other voters."""
    if state is None or not state.is_formed or state.dynamic:
        return
    journalled = state.voter_ids
    names = ",".join(f"{voter.node_id}@{voter.host}:{voter.port}" for voter in state.voters)
    if node_id not in journalled:
        raise MetadataError(
            f"{path}/{QUORUM_STATE} belongs to a voter of the quorum {names}, and node.id={node_id} is none of them. "
            f"Set node.id back to what it was, or give the node a directory of its own"
        )
    if configured and sorted(configured) != journalled:
        raise MetadataError(
            f"controller.quorum.voters names the voters {','.join(map(str, sorted(configured)))}, and this node's "
            f"quorum was formed with {names} ({path}/{QUORUM_STATE}). Name the same ids again (hosts and ports may "
            f"change). Voters are added and removed while the cluster runs, from kraft.version 1 on: docs/cluster.md"
        )
