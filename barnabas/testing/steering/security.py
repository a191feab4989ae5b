"""Users and ACLs of a running broker. Functions run on the broker's loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from barnabas.controller.metadata.acls import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from barnabas.testing.contents import awake_services_of
from barnabas.testing.operations import RequestFailed, ask, when
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.operations import Done
    from barnabas.testing.security import Acl

CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
INCREMENTAL_ALTER_CONFIGS: Final = 44
ALTER_USER_SCRAM_CREDENTIALS: Final = 51
BROKER: Final = 4  # the type of a resource
SET: Final = 0  # the operation on a config
ITERATIONS: Final = 4096  # as few as Kafka takes
SALT: Final = (
    b"barnabas-testing"  # the same for all: the credential of a user can be kept for the next broker
)
_SCRAM: Final = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}

_salted: dict[tuple[str, str], bytes] = {}  # by mechanism and password: each takes milliseconds


def add_acls(nodes: Sequence[BrokerNode], acls: Sequence[Acl], done: Done) -> None:
    """`done` when all nodes that are awake decide by them. RequestFailed, ValueError."""
    creations = [AclCreation(*_fields(acl)) for acl in acls]
    ask(
        nodes,
        CREATE_ACLS,
        CreateAclsRequest(creations),
        lambda answer: _changed(nodes, answer.results, done),
        done,
    )


def remove_acls(nodes: Sequence[BrokerNode], acls: Sequence[Acl], done: Done) -> None:
    """`done` when no node that is awake has them; those that do not exist are left out. RequestFailed, ValueError."""
    filters = [DeleteAclsFilter(*_fields(acl)) for acl in acls]
    ask(
        nodes,
        DELETE_ACLS,
        DeleteAclsRequest(filters),
        lambda answer: _changed(nodes, answer.filter_results, done),
        done,
    )


def _fields(acl: Acl) -> tuple[int, str, int, str, str, int, int]:
    """As the requests have them. ValueError."""
    names = {
        ResourceType.TOPIC: acl.topic,
        ResourceType.GROUP: acl.group,
        ResourceType.TRANSACTIONAL_ID: acl.transactional_id,
        ResourceType.CLUSTER: CLUSTER_NAME if acl.cluster else None,
    }
    named = [(kind, name) for kind, name in names.items() if name is not None]
    if len(named) != 1:
        raise ValueError(f"an ACL is about one of topic, group, transactional_id, cluster: {acl}")
    [(kind, name)] = named
    try:
        operation, permission = Operation[acl.operation.upper()], Permission[acl.permission.upper()]
    except KeyError as error:
        raise ValueError(f"ACLs have no {error}: {acl}") from None
    pattern = PatternType.PREFIXED if acl.prefixed else PatternType.LITERAL
    return kind, name, pattern, acl.principal, acl.host, operation, permission


def put_scram_users(
    nodes: Sequence[BrokerNode], users: Mapping[str, str], mechanisms: Sequence[str], done: Done
) -> None:
    """Create the users, or give them these passwords. `done` when all nodes that are awake know them. RequestFailed."""

    def request(mechanism: str) -> AlterUserScramCredentialsRequest:
        number = _SCRAM[mechanism][0]
        return AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    user, number, ITERATIONS, SALT, _salted_password(mechanism, password)
                )
                for user, password in users.items()
            ]
        )

    _alter_scram(nodes, [request(each) for each in mechanisms], done)


def remove_scram_user(nodes: Sequence[BrokerNode], user: str, mechanisms: Sequence[str], done: Done) -> None:
    """`done` when no node that is awake knows the user. RequestFailed."""
    requests = [
        AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(user, _SCRAM[each][0])])
        for each in mechanisms
    ]
    _alter_scram(nodes, requests, done)


def _alter_scram(
    nodes: Sequence[BrokerNode], requests: Sequence[AlterUserScramCredentialsRequest], done: Done
) -> None:
    """One after the other: a request may name each user once."""
    if not requests:
        done(None)
        return

    def answered(answer: AlterUserScramCredentialsResponse) -> None:
        _changed(nodes, answer.results, next_one)

    def next_one(error: Exception | None) -> None:
        if error is not None:
            done(error)
        else:
            _alter_scram(nodes, requests[1:], done)

    ask(nodes, ALTER_USER_SCRAM_CREDENTIALS, requests[0], answered, done)


def alter_broker_configs(nodes: Sequence[BrokerNode], configs: Mapping[str, str], done: Done) -> None:
    """Set dynamic configs of every node. `done` when all nodes that are awake have them. RequestFailed."""
    from barnabas.wire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    altered = [
        AlterableConfig(name=name, config_operation=SET, value=value) for name, value in configs.items()
    ]
    resources = [
        AlterConfigsResource(resource_type=BROKER, resource_name=str(node.node_id), configs=altered)
        for node in nodes
    ]
    ask(
        nodes,
        INCREMENTAL_ALTER_CONFIGS,
        IncrementalAlterConfigsRequest(resources=resources),
        lambda answer: _changed(nodes, answer.responses, done),
        done,
    )


def _salted_password(mechanism: str, password: str) -> bytes:
    import hashlib

    found = _salted.get((mechanism, password))
    if found is None:
        found = hashlib.pbkdf2_hmac(_SCRAM[mechanism][1], password.encode(), SALT, ITERATIONS)
        _salted[mechanism, password] = found
    return found


def _changed(nodes: Sequence[BrokerNode], results: Sequence[Any], done: Done) -> None:
    """`done` with the first error of the results, or when all nodes that are awake have as much of the metadata as any."""
    for each in results:
        if each.error_code:
            done(RequestFailed(ErrorCode.of(each.error_code), each.error_message or ""))
            return
    end = max(services.controller.image.offset for services in awake_services_of(nodes))
    when(
        nodes,
        lambda: all(services.controller.image.offset >= end for services in awake_services_of(nodes)),
        lambda: done(None),
        done,
    )
