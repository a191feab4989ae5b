"""Authorization of requests: what handlers ask before they serve one.

Kafka's order holds: a request is authorized before it is looked at whether what it names exists, so that nothing can be learnt from
a refusal. Where no authorizer is configured everything is allowed. A node of this cluster needs no grant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.broker.security.authorizer import ALL_OPERATIONS
from barnabas.controller.metadata.acls import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from barnabas.broker.requests.context import RequestContext


def allows(
    context: RequestContext[Any],
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    count: int = 1,
    silent: bool = False,
) -> bool:
    """Whether the sender of the request may do it. `count`, `silent`: see Authorizer."""
    authorizer = context.services.authorizer
    return (
        authorizer is None
        or context.reply.peer.broker_id >= 0
        or authorizer.allows(
            context.caller, context.api_key, operation, kind, name, count=count, silent=silent
        )
    )


def allows_topic(
    context: RequestContext[Any], operation: Operation, name: str, *, count: int = 1, silent: bool = False
) -> bool:
    """Whether the sender may do it with the topic, existing or not."""
    return allows(context, operation, ResourceType.TOPIC, name, count=count, silent=silent)


def allows_group(context: RequestContext[Any], operation: Operation, group_id: str) -> bool:
    return allows(context, operation, ResourceType.GROUP, group_id)


def allows_cluster(context: RequestContext[Any], operation: Operation, *, silent: bool = False) -> bool:
    return allows(context, operation, ResourceType.CLUSTER, CLUSTER_NAME, silent=silent)


def allows_transactional_id(context: RequestContext[Any], operation: Operation, name: str) -> bool:
    return allows(context, operation, ResourceType.TRANSACTIONAL_ID, name)


def allows_on_any_topic(context: RequestContext[Any], operation: Operation) -> bool:
    """Whether there are topics, existing or not, with which the sender may do it."""
    authorizer = context.services.authorizer
    return authorizer is None or authorizer.allows_any(context.caller, operation, ResourceType.TOPIC)


def authorized_operations(context: RequestContext[Any], kind: ResourceType, name: str) -> int:
    """The bits of the operations that the sender may do (KIP-430)."""
    authorizer = context.services.authorizer
    if authorizer is None:
        return ALL_OPERATIONS[kind]
    return int(authorizer.operations(context.caller, kind, name))


def authorized_cluster_operations(context: RequestContext[Any]) -> int:
    """The same of the cluster; 0 for a sender that may not describe it."""
    if not allows_cluster(context, Operation.DESCRIBE):
        return 0
    return authorized_operations(context, ResourceType.CLUSTER, CLUSTER_NAME)
