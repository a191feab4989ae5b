"""Authorization of requests: what handlers ask before they serve one.

Kafka's order holds: a request is authorized before it is looked at whether what it names exists, so that nothing can be learnt from
a refusal. Where no authorizer is configured everything is allowed. A node of this cluster needs no grant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from barnabas.broker.security.authorizer import ALL_OPERATIONS
from barnabas.controller.metadata.acls import CLUSTER_NAME, Operation, ResourceType
from barnabas.controller.metadata.image import GROUP_RESOURCE, TOPIC_RESOURCE
from barnabas.wire.errors import ErrorCode

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


def allows_transactional_id(
    context: RequestContext[Any], operation: Operation, name: str, *, silent: bool = False
) -> bool:
    return allows(context, operation, ResourceType.TRANSACTIONAL_ID, name, silent=silent)


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


def refused_topics(
    context: RequestContext[Any], operation: Operation, named: Iterable[tuple[str, int]]
) -> Generator[None, None, set[str]]:
    """The topics with which the sender may not do it, in slices. `named`: topics, with the number of their partitions that the
    request names."""
    refused: set[str] = set()
    if context.services.authorizer is None:
        return refused
    counts = Counter[str]()
    for name, count in named:
        counts[name] += count
    for name, count in counts.items():
        if not allows_topic(context, operation, name, count=count):
            refused.add(name)
        yield
    return refused


def config_refusal(context: RequestContext[Any], operation: Operation, kind: int, name: str) -> ErrorCode:
    """The error of a sender that may not do it with the configs of a resource (`kind`: ConfigResource.Type); NONE for one that
    may."""
    if kind == TOPIC_RESOURCE:
        refused, error = not allows_topic(context, operation, name), ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif kind == GROUP_RESOURCE:
        refused, error = not allows_group(context, operation, name), ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        refused, error = not allows_cluster(context, operation), ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return error if refused else ErrorCode.NONE
