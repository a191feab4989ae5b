"""Connections from bindings to other brokers."""

from __future__ import annotations

from barnabas.broker.cluster.peer_client import inter_broker_address
from barnabas.broker.cluster.peers import Peers, PeerTerms
from barnabas.broker.extension import ExtensionHost


def peers_of(host: ExtensionHost, terms: PeerTerms) -> Peers:
    """The connections of an extension's broker."""
    return Peers(
        host.runtime,
        host.node_id,
        lambda node_id: inter_broker_address(
            host.controller.image, node_id, host.config.inter_broker_listener
        ),
        host.inter_broker_authentication,
        terms,
    )
