"""Admission of links: pure rules over two identities, which both sides apply to each other.

The text of a rule goes to this node's log and, as the reason, to that of the other node. So it calls neither "this node".
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.controller.link.messages import (
    BROKER,
    CONTROLLER,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    Hello,
    Identity,
    LinkRefused,
    RefusalCode,
)
from barnabas.wire.uuids import uuid_to_string


def check_hello(own: Hello, peer: Hello) -> None:
    """LinkRefused when the two nodes have no protocol version or authentication in common."""
    if peer.version_min > PROTOCOL_VERSION or peer.version_max < PROTOCOL_VERSION_MIN:
        raise LinkRefused(
            RefusalCode.VERSION,
            f"one node speaks versions {peer.version_min} to {peer.version_max} of the link protocol and the other "
            f"{own.version_min} to {own.version_max}: their releases are too far apart",
        )
    if peer.authentication != own.authentication:
        raise LinkRefused(
            RefusalCode.AUTHENTICATION,
            "barnabas.controller.secret.file is configured on one of the two nodes only; give all nodes of the "
            "cluster the same secret",
        )


def check_identity(own: Identity, peer: Identity, expected_id: int | None) -> None:
    """LinkRefused when `peer` must not be linked. `expected_id`: of the node that should answer at the called address."""
    _check_form(peer)
    if peer.incarnation_id == own.incarnation_id:
        raise LinkRefused(RefusalCode.SELF, "a node has called itself")
    if own.cluster_id and peer.cluster_id and own.cluster_id != peer.cluster_id:
        raise LinkRefused(
            RefusalCode.CLUSTER,
            f"node {own.node_id} belongs to cluster {own.cluster_id} and node {peer.node_id} to {peer.cluster_id} "
            f"(cluster.id in meta.properties); {_why_two_clusters(own, peer)}",
        )
    if expected_id is not None and peer.node_id != expected_id:
        raise LinkRefused(
            RefusalCode.NODE_ID,
            f"controller.quorum.voters of node {own.node_id} names node {expected_id} at this address, and node "
            f"{peer.node_id} answers there",
        )
    if peer.node_id == own.node_id:
        raise LinkRefused(
            RefusalCode.NODE_ID,
            f"two running nodes have node.id={own.node_id}; give one of them another node.id",
        )
    if not (own.is_controller or peer.is_controller):
        raise LinkRefused(
            RefusalCode.VOTERS,
            f"neither node {own.node_id} nor node {peer.node_id} has the controller role; "
            f"controller.quorum.voters or controller.quorum.bootstrap.servers points at a broker",
        )
    _check_voters(own, peer)


def _why_two_clusters(own: Identity, peer: Identity) -> str:
    wrong = (
        "a controller address points at another cluster's node, or log.dirs names another cluster's directory"
    )
    if not (own.is_controller and peer.is_controller) or own.journalled or peer.journalled:
        return wrong
    return (
        f"both have metadata of their own, and a quorum can begin with that of one only: to make one cluster of them "
        f"start the other with empty directories. Else {wrong}"
    )


def _check_form(peer: Identity) -> None:
    if (
        peer.node_id < 0
        or len(peer.incarnation_id) != 16
        or len(peer.directory_id) not in (0, 16)
        or len(peer.join_id) not in (0, 16)
        or not set(peer.roles) <= {BROKER, CONTROLLER}
    ):
        raise LinkRefused(RefusalCode.MALFORMED, "the identity that was sent is not valid")


def _check_voters(own: Identity, peer: Identity) -> None:
    if not (peer.voter_ids or peer.bootstrap or peer.journalled):
        raise LinkRefused(
            RefusalCode.VOTERS,
            f"node {peer.node_id} has no voter list: set controller.quorum.voters (or "
            f"controller.quorum.bootstrap.servers) there as on the other nodes",
        )
    if own.dynamic or peer.dynamic:
        return  # the metadata log names the voters, and either node's knowledge may be old
    mine, theirs = _voter_ids(own), _voter_ids(peer)
    if mine and theirs and mine != theirs:
        raise LinkRefused(
            RefusalCode.VOTERS,
            f"node {own.node_id} has the voters {_ids(mine)} ({_source(own)}) and node {peer.node_id} has "
            f"{_ids(theirs)} ({_source(peer)}); every node of a cluster must name the same voters",
        )
    voters = mine or theirs
    for node in (own, peer):
        if voters and node.is_controller and node.node_id not in voters:
            raise LinkRefused(
                RefusalCode.VOTERS,
                f"node {node.node_id} has the controller role and is not among the voters {_ids(voters)}; take "
                f"{CONTROLLER} out of its process.roles, or give it the id of a voter. From kraft.version 1 on controllers are "
                f"added while the cluster runs: docs/cluster.md",
            )
        if not node.is_controller and node.node_id in voters:
            raise LinkRefused(
                RefusalCode.VOTERS,
                f"node {node.node_id} is among the voters {_ids(voters)} and has no controller role; add "
                f"{CONTROLLER} to its process.roles, or give it another node.id",
            )
    _check_directories(own, peer)
    _check_directories(peer, own)


def _check_directories(knows: Identity, known: Identity) -> None:
    """LinkRefused for a voter without the directory that the quorum was formed with, which holds its votes and entries."""
    for voter in knows.journalled:
        if voter.node_id == known.node_id and voter.directory_id != known.directory_id:
            raise LinkRefused(
                RefusalCode.DIRECTORY,
                f"voter {known.node_id} comes with metadata directory {_uuid(known.directory_id)}, and the quorum was "
                f"formed with its directory {_uuid(voter.directory_id)}: its disk was wiped or replaced, and what it "
                f"had promised to the quorum is gone. Bring the old directory back; an emptied one must not vote. "
                "Where it is lost: barnabas leave-quorum --help",
            )


def other_addresses(own: Identity, peer: Identity) -> list[str]:
    """Warnings about voters for which the two nodes have different addresses configured. Both may be right: a host may have
    several names."""
    mine = {voter.node_id: voter for voter in own.configured}
    return [
        f"its controller.quorum.voters names node {theirs.node_id} at {theirs.host}:{theirs.port}, and that of node "
        f"{own.node_id} at {voter.host}:{voter.port}; every node should name the same addresses"
        for theirs in peer.configured
        if (voter := mine.get(theirs.node_id)) is not None
        and (voter.host, voter.port) != (theirs.host, theirs.port)
    ]


def _voter_ids(node: Identity) -> list[int]:
    """Empty where the node has bootstrap servers and no quorum yet."""
    return sorted(voter.node_id for voter in node.journalled) or sorted(node.voter_ids)


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


def _source(node: Identity) -> str:
    return "journalled when the quorum was formed" if node.journalled else "controller.quorum.voters"


def _uuid(directory_id: bytes) -> str:
    return uuid_to_string(directory_id) if directory_id else "(none)"
