"""How a broker that is no voter learns which cluster it belongs to: from the first voter of a formed quorum that it is
linked with. From then on it calls all voters, also those that its bootstrap servers do not name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.messages import Voter
    from barnabas.controller.link.peer import Peer

Target = tuple[str, int, int | None]


class Discovery:
    """`done(cluster_id, voters)` once; voters by node id. `configured`: what the links were told to call."""

    def __init__(
        self, links: Links, configured: Sequence[Target], done: Callable[[str, list[Voter]], object]
    ) -> None:
        self._links = links
        self._configured = configured
        self._done = done
        self._is_over = False
        links.add_listener(self._connected, lambda _: None)

    def _connected(self, peer: Peer) -> None:
        identity = peer.identity
        if self._is_over or not identity.is_controller or not identity.journalled:
            return
        self._is_over = True
        voters = identity.journalled
        links = self._links
        links.belong_to(identity.cluster_id)
        links.call(targets_with(self._configured, voters))
        self._done(identity.cluster_id, voters)


def targets_with(configured: Sequence[Target], voters: Sequence[Voter]) -> list[Target]:
    """What to call in a formed quorum: what is configured, and each voter that no configured id or address names."""
    ids = {node_id for _, _, node_id in configured}
    addresses = {(host, port) for host, port, _ in configured}
    return list(configured) + [
        (voter.host, voter.port, voter.node_id)
        for voter in voters
        if voter.node_id not in ids and (voter.host, voter.port) not in addresses
    ]
