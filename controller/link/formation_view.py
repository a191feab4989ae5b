"""Who is to form a quorum, as one voter sees it: pure questions to what it has met and heard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from barnabas.controller.link.messages import Voter

if TYPE_CHECKING:
    from barnabas.controller.link.formation_messages import Standing
    from barnabas.controller.link.links import Links


class CanNotForm(Exception):
    """Not before an operator has changed something."""


def find_voters(links: Links) -> list[Voter] | None:
    """All whose addresses are configured, by node id; None until each has answered. CanNotForm."""
    own = links.identity
    found: dict[int, Voter] = {}
    for (host, port), node_id, is_self in links.addresses():
        if is_self and node_id is not None and node_id != own.node_id:
            raise CanNotForm(
                f"controller.quorum.voters names node {node_id} at {host}:{port}, and this node, with "
                f"node.id={own.node_id}, answers there: correct the one or the other"
            )
    for (host, port), node_id, is_self in links.addresses():
        if is_self or node_id == own.node_id:
            found[own.node_id] = Voter(own.node_id, host, port, own.directory_id)
            continue
        peer = links.peer(node_id) if node_id is not None else None
        if peer is None or not peer.is_open:
            return None
        if not peer.identity.is_controller:
            raise CanNotForm(
                f"{host}:{port} is named among the controllers, and node {node_id} there has no such role"
            )
        found.setdefault(peer.node_id, Voter(peer.node_id, host, port, peer.identity.directory_id))
    if own.node_id not in found:
        raise CanNotForm(
            "controller.quorum.bootstrap.servers does not name this node's own controller listener; name those of "
            "all controllers, on every node"
        )
    return [found[node_id] for node_id in sorted(found)]


def find_seed(standings: Mapping[int, Standing], voters: Sequence[Voter]) -> int:
    """Node id of the one that has metadata, else the lowest. CanNotForm when several have."""
    holders = [node_id for node_id, standing in sorted(standings.items()) if standing.has_metadata]
    if len(holders) > 1:
        raise CanNotForm(
            f"nodes {' and '.join(map(str, holders))} each have metadata of their own, and a quorum can begin with that "
            f"of one only. Start the others with empty directories"
        )
    return holders[0] if holders else voters[0].node_id


def directories(voters: Sequence[Voter]) -> dict[int, bytes]:
    """Node id -> id of the metadata directory."""
    return {voter.node_id: voter.directory_id for voter in voters}


def why_not_join(formed_id: int, directory: str, *, has_metadata: bool) -> str:
    """Why a voter is none of the quorum that node `formed_id` belongs to, and what to do."""
    text = f"node {formed_id} belongs to a quorum that has formed, and this node's metadata directory {directory} holds "
    if has_metadata:
        return text + (
            f"a single node's metadata instead. Where it is to begin a new quorum (after barnabas leave-quorum): stop "
            f"node {formed_id} and the other voters, remove __cluster_metadata-0 from their metadata directories, and "
            f"start all. Where it is another cluster's: correct controller.quorum.voters"
        )
    return text + (
        "nothing of it: it was wiped or replaced, and must not vote. Bring the old directory back; where it is lost: "
        "barnabas leave-quorum --help"
    )
