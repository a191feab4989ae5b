"""Warnings at the start about properties that have no effect here, or an unexpected one.

A Kafka server.properties must work unchanged, so these are no errors: each kind is one line of the log. It has names only, no
values, as some are passwords.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from barnabas.broker.config import authorizer
from barnabas.broker.config.quorum import BOOTSTRAP, VOTERS, read_addresses, read_voters
from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.config_def import ConfigDef, ConfigKey
from barnabas.controller.config.validators import ConfigError

_WITHOUT_EFFECT: Final = frozenset(
    [
        "alter.config.policy.class.name",
        "client.quota.callback.class",
        "controller.quorum.election.timeout.ms",
        "controller.quorum.fetch.timeout.ms",
        "create.topic.policy.class.name",
        "metric.reporters",
        "principal.builder.class",
        "security.providers",
        "transaction.two.phase.commit.enable",
    ]
)
_WITHOUT_EFFECT_BEGINNINGS: Final = ("sasl.", "ssl.")
_OF_TLS: Final = "ssl."
# Choices within Java's TLS.
_OF_JAVA: Final = (
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
)
_OF_SASL: Final = (
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.mechanism.controller.protocol",
    "sasl.mechanism.inter.broker.protocol",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.server.callback.handler.class",
    "sasl.server.max.receive.size",
)
# What replica.selector.class may name (fetch/replica_selector.py).
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
# Properties for which Kafka's own error does not name the entry that is wrong.
_READ_HERE: Final[dict[str, Callable[[list[str]], object]]] = {
    VOTERS: read_voters,
    BOOTSTRAP: read_addresses,
}
_REPLICATION: Final = {
    "default.replication.factor": "topics created without a replication factor fail with INVALID_REPLICATION_FACTOR",
    "offsets.topic.replication.factor": "__consumer_offsets can't be created, so consumer groups fail",
    "transaction.state.log.replication.factor": "__transaction_state can't be created, so transactions fail",
    "transaction.state.log.min.isr": "transactions fail with COORDINATOR_NOT_AVAILABLE",
    "min.insync.replicas": "producing with acks=all fails with NOT_ENOUGH_REPLICAS",
}


def warnings_about(
    given: Mapping[str, str],
    table: ConfigDef = BROKER_CONFIGS,
    *,
    is_alone: bool,
    has_tls: bool = False,
    has_sasl: bool = False,
    late_listeners: Sequence[str] = (),
) -> Iterator[str]:
    """The warnings about the properties that are set; their values are valid. `is_alone`: this node is the only controller, so
    probably the only broker. `has_tls`: ssl.* configures its listeners. `has_sasl`: sasl.* does. `late_listeners`: those of
    early.start.listeners that open only once the metadata is known."""
    if not given.get(authorizer.CLASS, "").strip():
        unused = [name for name in authorizer.PROPERTIES if given.get(name, "").strip()]
        if unused:
            yield f"no effect without {authorizer.CLASS}: {', '.join(unused)}; every client may do everything"
    selector = given.get("replica.selector.class", "").strip()
    if selector and selector not in (RACK_AWARE_SELECTOR, LEADER_SELECTOR):
        yield (
            "replica.selector.class has no effect: this version has Kafka's RackAwareReplicaSelector and "
            "LeaderSelector; consumers read from leaders"
        )
    idle = [
        name
        for name, text in given.items()
        if _is_without_effect(name, text)
        and not (has_tls and _OF_TLS in name and not name.endswith(_OF_JAVA))
        and not (has_sasl and name.endswith(_OF_SASL))
    ]
    if idle:
        yield f"no effect in this version: {', '.join(sorted(idle))}"
    if late_listeners:
        yield (
            f"early.start.listeners has no effect on {', '.join(late_listeners)}: controller listeners are open from the start on, "
            f"and others once the node knows the ACLs"
        )
    old = sorted(name for name in given if name.startswith("zookeeper."))
    if old:
        yield f"{', '.join(old)}: belongs to ZooKeeper mode, ignored"
    beyond = [name for name in _REPLICATION if name in given and _number(name, given[name]) > 1]
    if beyond and is_alone:
        what = "; ".join(f"with {name}={given[name].strip()} {_REPLICATION[name]}" for name in beyond)
        yield f"one node has one replica: {what}"
    for name in given:
        if not _is_known(name, table):
            yield f"unknown property {name} is ignored{_hint(name, table)}"


def without_effect() -> frozenset[str]:
    """The properties of the table that never have an effect, as docs/properties.md lists them."""
    used = (
        *_OF_SASL,
        *(name for name in BROKER_CONFIGS if name.startswith(_OF_TLS) and name not in _OF_JAVA),
    )
    secure = {name for name in BROKER_CONFIGS if name.startswith(_WITHOUT_EFFECT_BEGINNINGS)}
    return _WITHOUT_EFFECT | secure.difference(used)


def check_names(names: Iterable[str], table: ConfigDef) -> None:
    """ConfigError for unknown names, where they are not from a file that Kafka reads as well."""
    for name in names:
        if not _is_known(name, table):
            raise ConfigError(f"unknown property {name}{_hint(name, table)}")


def check_value(key: ConfigKey, text: str) -> None:
    """ConfigError when the text is no valid value of the property."""
    name = key.name
    if name in _READ_HERE:
        _READ_HERE[name]([entry for entry in text.split(",") if entry.strip()])
    try:
        key.parse(text)
    except ConfigError as error:
        if text.strip():
            raise
        if name in ("log.dirs", "log.dir"):
            raise ConfigError(f"{name} must name at least one directory") from None
        # Kafka's text has nothing between two blanks for an empty value.
        raise ConfigError(str(error).replace("Invalid value  for", 'Invalid value "" for', 1)) from None


def _is_without_effect(name: str, text: str) -> bool:
    if name.startswith("listener.name."):
        # listener.name.<listener>.ssl.*, .<mechanism>.sasl.* and so on.
        return any(f".{part}" in name for part in ("sasl.", "ssl.", "principal.builder.class"))
    if name not in BROKER_CONFIGS:
        return False
    if name not in _WITHOUT_EFFECT and not name.startswith(_WITHOUT_EFFECT_BEGINNINGS):
        return False
    # The default is what this broker does.
    return text.strip() not in ("", BROKER_CONFIGS[name].default)


def _number(name: str, text: str) -> int:
    value = BROKER_CONFIGS[name].parse(text)
    assert isinstance(value, int)
    return value


def _is_known(name: str, table: ConfigDef) -> bool:
    return (
        name in table
        or name in authorizer.PROPERTIES
        or name.startswith(
            ("listener.name.", "zookeeper.", "config.providers.", "rsm.config.", "rlmm.config.")
        )
    )


def _hint(name: str, table: ConfigDef) -> str:
    import difflib  # only a mistake needs it, and it takes milliseconds to import

    close = difflib.get_close_matches(name, table, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""
