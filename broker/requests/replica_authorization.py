"""Authorizes requests with a replica id: the connection must be authenticated as that broker (inter_broker_authentication.py).

Kafka's authorizer requires CLUSTER_ACTION on the cluster, without which each partition is answered
TOPIC_AUTHORIZATION_FAILED; Kafka does not check which broker it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.broker.requests.context import RequestContext


def may_act_as_replica(context: RequestContext[Any], replica_id: int) -> bool:
    """Whether the request may be that of broker `replica_id`. Refusals are logged once a minute for each host."""
    peer_id = context.reply.peer.broker_id
    if replica_id == peer_id:
        return True
    reason = "not authenticated" if peer_id < 0 else f"authenticated as broker {peer_id}"
    context.services.replica_warnings.warn(
        context.client_host,
        reason,
        f"{context.client_host}: a request on {context.listener} says that it is of broker {replica_id}, and its connection "
        f"is {reason}: refused",
    )
    return False
