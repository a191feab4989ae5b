"""The metrics of authentication and of the authorizer."""

from __future__ import annotations

from barnabas.broker.config.authorizer import AuthorizerConfig
from barnabas.broker.metrics.clients import security_metrics
from barnabas.broker.metrics.families import exposition
from barnabas.broker.network.authentication_counts import AuthenticationCounts
from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.caller import Caller, Principal
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.controller.metadata.image import MetadataImage

LABELS = 'class="StandardAuthorizer",config="authorizer.class.name"'


def lines(listeners: dict[str, AuthenticationCounts], authorizer: Authorizer | None = None) -> list[str]:
    text = b"".join(exposition(security_metrics(listeners, authorizer, 7))).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_authentications_by_listener() -> None:
    counts, others = AuthenticationCounts(), AuthenticationCounts()
    for may_reauthenticate in (True, True, False):
        counts.succeed(again=False, may_reauthenticate=may_reauthenticate)
    counts.succeed(again=True, may_reauthenticate=True)
    for again in (True, True, False, False, False, False):
        counts.fail(again=again)
    counts.expired_connections_killed = 5
    found = lines({"CLIENTS": counts, "OTHERS": others})
    prefix = "kafka_server_socket_server_metrics"
    for name, value in {
        "successful_authentication_total": 3,
        "successful_authentication_no_reauth_total": 1,
        "failed_authentication_total": 4,
        "successful_reauthentication_total": 1,
        "failed_reauthentication_total": 2,
        "expired_connections_killed_count": 5,
    }.items():
        assert f'{prefix}_{name}{{listener="CLIENTS"}} {value}' in found
        assert f'{prefix}_{name}{{listener="OTHERS"}} 0' in found
    assert len(found) == 12


def test_decisions_of_the_authorizer() -> None:
    image = MetadataImage()
    authorizer = Authorizer(AuthorizerConfig(frozenset({"User:root"}), False), lambda: image, lambda: 0.0)
    for name in ("root", "root", "bob"):
        caller = Caller(Principal("User", name), "CLIENTS", "10.0.0.1")
        authorizer.allows(caller, 0, Operation.WRITE, ResourceType.TOPIC, "a")
    assert lines({}, authorizer) == [
        f"kafka_server_plugins_acls_total_count{{{LABELS}}} 7",
        f"kafka_server_plugins_authorization_request_total{{{LABELS}}} 3",
        f"kafka_server_plugins_authorization_allowed_total{{{LABELS}}} 2",
        f"kafka_server_plugins_authorization_denied_total{{{LABELS}}} 1",
    ]
