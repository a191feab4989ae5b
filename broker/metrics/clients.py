"""The metrics of clients: quotas, authentication, authorisation, and what clients push themselves (KIP-714)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, one

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from barnabas.broker.network.authentication_counts import AuthenticationCounts
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.quotas.connection_rates import ConnectionRates
    from barnabas.broker.security.authorizer import Authorizer
    from barnabas.broker.telemetry.client_metrics import ClientMetrics

# Metric, kind, attribute of AuthenticationCounts, text
_AUTHENTICATIONS: Final = (
    (
        "successful_authentication_total",
        COUNTER,
        "successful",
        "Connections whose clients authenticated themselves",
    ),
    (
        "successful_authentication_no_reauth_total",
        COUNTER,
        "successful_no_reauth",
        "Of those, how many cannot re-authenticate",
    ),
    (
        "failed_authentication_total",
        COUNTER,
        "failed",
        "Connections whose clients failed to authenticate themselves",
    ),
    ("successful_reauthentication_total", COUNTER, "successful_reauthentications", "Re-authentications"),
    ("failed_reauthentication_total", COUNTER, "failed_reauthentications", "Re-authentications that failed"),
    (
        "expired_connections_killed_count",
        GAUGE,
        "expired_connections_killed",
        "Connections closed by a request after the end of their sessions",
    ),
)


def quota_metrics(quotas: tuple[ClientQuotas, ConnectionRates] | None) -> Iterable[Family | None]:
    """Those of client quotas; None: there has been none."""
    if quotas is not None:
        of_clients, of_addresses = quotas
        for name, value, help_text in (
            ("requests", of_clients.throttled_requests, "Requests whose clients were throttled by a quota"),
            ("request_seconds", of_clients.throttled_s, "For how long they were"),
            (
                "connections",
                of_addresses.throttled_connections,
                "Connections closed by a quota of their address",
            ),
        ):
            yield one(f"barnabas_throttled_{name}_total", value, help_text, COUNTER)


def client_metrics(source: ClientMetrics) -> Iterable[Family | None]:
    """What clients have pushed (KIP-714), by name, behind Kafka's metrics about that."""
    if source.receiver is None:
        return
    for name, value, help_text in (
        ("instance_count", len(source.instances), "Clients that have asked what to push"),
        (
            "unknown_subscription_request_count",
            source.unknown_subscriptions,
            "Pushes for an old subscription",
        ),
        ("throttle_count", source.throttled, "Requests before the push interval was over"),
        ("plugin_export_count", source.received, "Pushes taken"),
        ("plugin_error_count", source.invalid, "Pushes that could not be read"),
    ):
        family = Family(f"kafka_server_client_metrics_{name}", GAUGE, help_text)
        family.add(value)
        yield family
    left_out = Family(
        "barnabas_client_metrics_left_out_total",
        COUNTER,
        "Values of clients that were left out for want of room",
    )
    left_out.add(source.receiver.left_out)
    yield left_out
    families: dict[str, Family] = {}
    for each in source.receiver.series():
        if each is None:
            yield None
            continue
        name, labels, last = each
        found = families.get(name)
        if found is None:
            kind = COUNTER if name.endswith("_total") else GAUGE
            found = families[name] = Family(name, kind, "Pushed by clients")
        found.add(last, labels)
    for name in sorted(families):
        yield families[name]


def security_metrics(
    listeners: Mapping[str, AuthenticationCounts], authorizer: Authorizer | None, acl_count: int
) -> Iterable[Family | None]:
    """Those of authentication, by listener, and of the authorizer, if there is one."""
    for name, kind, count, help_text in _AUTHENTICATIONS:
        family = Family(f"kafka_server_socket_server_metrics_{name}", kind, help_text)
        for listener, counts in listeners.items():
            family.add(getattr(counts, count), {"listener": listener})
        yield family
    if authorizer is not None:
        allowed, denied = authorizer.allowed, authorizer.denied
        for name, value, kind, help_text in (
            ("acls_total_count", acl_count, GAUGE, "ACLs that are defined"),
            ("authorization_request_total", allowed + denied, COUNTER, "Decisions of the authorizer"),
            ("authorization_allowed_total", allowed, COUNTER, "Of those, how many allowed"),
            ("authorization_denied_total", denied, COUNTER, "Of those, how many denied"),
        ):
            family = Family(f"kafka_server_plugins_{name}", kind, help_text)
            family.add(value, {"class": "StandardAuthorizer", "config": "authorizer.class.name"})
            yield family
