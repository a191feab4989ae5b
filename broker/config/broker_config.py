"""The broker's configuration: typed attributes over the tables of controller/config/broker_configs.py.

A value is the first of: `--set`, KAFKA_* variables, the properties file, the table's default. Without a file the values of
Kafka's shipped server.properties precede the defaults (one replica for internal topics, and so on), so that `barnabas start`
serves without one.

The attributes are the properties that the broker reads by name, so that mypy knows every type; a test compares them with the
tables. Property `message.max.bytes` is attribute `message_max_bytes`. Where several properties set one value in different units
(log.retention.ms, .minutes, .hours) use `topic_defaults`. Dynamic values (AlterConfigs on a broker) change the attributes in
place (`apply_dynamic`), so keep the config and not a copy of its values.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.broker.config.authorizer import AuthorizerConfig, authorizer_config
from barnabas.broker.config.listeners import (
    SASL_PROTOCOLS,
    TLS_PROTOCOLS,
    ListenerConfig,
    base_name,
    open_listeners,
    parse_address,
    parse_protocol_map,
    resolve_listeners,
)
from barnabas.broker.config.quorum import VOTERS, QuorumConfig, check_own_address, quorum_config
from barnabas.broker.config.sources import (
    jaas_file,
    new_cluster_id,
    parse_properties,
    parse_settings,
    properties_from_environment,
)
from barnabas.broker.config.warnings import check_value, warnings_about
from barnabas.controller.config.config_def import READ_ONLY, ConfigDef, Value
from barnabas.controller.config.topic_configs import topic_default
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.extension import ConfigExtension, ConfigTables

if TYPE_CHECKING:
    from barnabas.broker.config.providers import ConfigProviders

DEFAULT_LOG_DIR: Final = "barnabas-data"

# Used where there is no properties file: Kafka's shipped server.properties, on the loopback address.
SHIPPED: Final[dict[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": DEFAULT_LOG_DIR,
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# Properties that Kafka requires, with the values that a single node can assume.
_ASSUMED: Final = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
}


class _Values:
    """One attribute per property that the broker reads; `<property>` with `_` for `.`."""

    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    auto_create_topics_enable: bool
    barnabas_balancer: str
    barnabas_balancer_report_interval_ms: int
    barnabas_controller_secret_file: str | None
    barnabas_cores: str
    barnabas_event_loop: str
    barnabas_log_format: str
    barnabas_log_slow_request_ms: int
    barnabas_metrics_listener: str
    barnabas_metrics_partitions_max: int
    barnabas_ready_lines: list[str]
    barnabas_reassignment_throttled_rate: int
    broker_heartbeat_interval_ms: int
    broker_rack: str | None
    broker_session_timeout_ms: int
    compression_type: str
    connection_failed_authentication_delay_ms: int
    connections_max_idle_ms: int
    controlled_shutdown_enable: bool
    cordoned_log_dirs: list[str]
    controller_listener_names: list[str]
    controller_quorum_bootstrap_servers: list[str]
    controller_quorum_voters: list[str]
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    default_replication_factor: int
    delegation_token_expiry_check_interval_ms: int
    delegation_token_expiry_time_ms: int
    delegation_token_max_lifetime_ms: int
    delegation_token_secret_key: str | None
    delete_topic_enable: bool
    fetch_max_bytes: int
    follower_fetch_last_tiered_offset_enable: bool
    group_consumer_assignors: list[str]
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_regex_refresh_interval_ms: int
    group_coordinator_rebalance_protocols: list[str]
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_streams_max_size: int
    group_min_session_timeout_ms: int
    group_share_delivery_count_limit: int
    group_share_initialize_retry_interval_ms: int
    group_share_max_delivery_count_limit: int
    group_share_max_partition_max_record_locks: int
    group_share_max_record_lock_duration_ms: int
    group_share_max_share_sessions: int
    group_share_max_size: int
    group_share_min_delivery_count_limit: int
    group_share_min_partition_max_record_locks: int
    group_share_min_record_lock_duration_ms: int
    group_share_partition_max_record_locks: int
    group_share_record_lock_duration_ms: int
    inter_broker_listener_name: str | None
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
    log_retention_check_interval_ms: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    message_max_bytes: int
    min_insync_replicas: int
    node_id: int
    num_io_threads: int
    num_partitions: int
    num_replica_fetchers: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    process_roles: list[str]
    producer_id_expiration_check_interval_ms: int
    producer_id_expiration_ms: int
    queued_max_request_bytes: int
    quota_window_num: int
    quota_window_size_seconds: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    remote_fetch_max_wait_ms: int
    remote_log_index_file_cache_total_size_bytes: int
    remote_log_manager_copier_thread_pool_size: int
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_copy_quota_window_num: int
    remote_log_manager_copy_quota_window_size_seconds: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_fetch_quota_window_num: int
    remote_log_manager_fetch_quota_window_size_seconds: int
    remote_log_manager_task_interval_ms: int
    remote_log_reader_threads: int
    remote_log_storage_system_enable: bool
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    replica_selector_class: str | None
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    request_timeout_ms: int
    sasl_mechanism_controller_protocol: str
    sasl_mechanism_inter_broker_protocol: str
    sasl_server_max_receive_size: int
    security_inter_broker_protocol: str
    share_coordinator_cold_partition_snapshot_interval_ms: int
    share_coordinator_snapshot_update_records_per_snapshot: int
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_prune_interval_ms: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_segment_bytes: int
    share_coordinator_write_timeout_ms: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    telemetry_max_bytes: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int


PROPERTY_OF_ATTRIBUTE: Final = {name: name.replace("_", ".") for name in _Values.__annotations__}


class BrokerConfig(_Values):
    """The configuration of a node. Beyond the plain properties it has listeners, quorum and directories in a parsed form, and
    `notes`: lines for the log at the start, as (level name, text)."""

    listeners: list[ListenerConfig]
    controller_listeners: list[ListenerConfig]
    quorum: QuorumConfig
    log_dirs: list[str]
    notes: list[tuple[str, str]]
    authorizer: AuthorizerConfig | None  # None: everything is allowed
    metrics_address: tuple[str, int] | None  # of the metrics listener; None: there is none

    def __init__(self, given: Mapping[str, str], extensions: Sequence[ConfigExtension] = ()) -> None:
        """`given`: the properties that are set, by name, as text. ConfigError names a property that is wrong."""
        self.notes = []
        self.new_cluster_id: str | None = None  # of a cluster that begins on this node's empty directories
        self.jaas_file: Path | None = None  # of SASL listeners without JAAS entries in their properties
        self.tables = ConfigTables(extensions)
        self._providers = _providers(given)
        self.given = dict(self.resolved(given))  # static values: file, variables, --set
        self.stored_cluster: Mapping[str, str] = {}  # dynamic values in the metadata
        self.stored_node: Mapping[str, str] = {}
        self.dynamic_cluster: dict[str, str] = {}  # the valid ones of those
        self.dynamic_node: dict[str, str] = {}
        self._read_all()
        for extension in extensions:
            extension.check_broker(self.given)
        self._check_roles()
        self._check_authentication_delay()
        self.authorizer = authorizer_config(self.given)
        self.listeners = self._listeners()
        for listener in self.listeners:
            self.listener_limit(listener.name, "max.connections")
            self.listener_limit(listener.name, "max.connection.creation.rate")
        self.notes.extend(
            ("warning", text)
            for text in warnings_about(
                self.given,
                self.tables.broker,
                is_alone=self.quorum.is_alone,
                has_tls=not self._protocols().isdisjoint(TLS_PROTOCOLS),
                has_sasl=not self._protocols().isdisjoint(SASL_PROTOCOLS),
                late_listeners=self._late_listeners(),
            )
        )
        self.log_dirs = self._log_dirs()
        address = self.barnabas_metrics_listener
        self.metrics_address = parse_address("barnabas.metrics.listener", address) if address else None
        own = check_own_address(self.quorum, self.node_id, self.listeners, self.controller_listeners)
        self.notes.extend(("warning", text) for text in own)

    # -- sources of values

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str] | None = None, extensions: Sequence[ConfigExtension] = ()
    ) -> BrokerConfig:
        """The configuration of a broker without a file, with `properties` set on top (tests, in-process use)."""
        return cls({**SHIPPED, **(properties or {})}, extensions)

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environ: Mapping[str, str] | None = None,
        settings: Iterable[str] = (),
        extensions: Sequence[ConfigExtension] = (),
    ) -> BrokerConfig:
        """Read the file (None: the shipped values), KAFKA_* of `environ` and `name=value` settings.

        ConfigError for a wrong value; OSError when the file can't be read.
        """
        base = SHIPPED if file is None else _read_file(file)
        given = {**base, **properties_from_environment(environ or {}), **parse_settings(settings)}
        config = cls(given, extensions)
        config.jaas_file = jaas_file(environ or {})
        config.new_cluster_id = new_cluster_id(environ or {})
        return config

    def static_value(self, name: str) -> str | None:
        """The text of a property in the file, a variable or --set, else its default; None for null."""
        given = self.given.get(name)
        if given is not None:
            return given
        key = self.tables.broker[name]
        return _ASSUMED.get(name) if key.required else key.default

    def value(self, name: str) -> str | None:
        """The present text of a property, dynamic or static; None for null."""
        dynamic = self.dynamic_node.get(name, self.dynamic_cluster.get(name))
        return dynamic if dynamic is not None else self.static_value(name)

    def resolved(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Static values with what the config providers have for them. ConfigError."""
        return values if self._providers is None else self._providers.resolve(values)

    def resolved_stored(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Dynamic values with what this node's config providers have for them: passwords and JAAS entries alone, which are never
        shown. Who may alter and describe configs could read the files and variables of this node by all others
        (CVE-2024-31141)."""
        if self._providers is None:
            return values
        table = self.tables.broker
        passwords = {
            name: text
            for name, text in values.items()
            if (key := table.get(base_name(name))) is None or key.sensitive
        }
        return {**values, **self._providers.resolve_stored(passwords)}

    def listener_value(self, listener: str, name: str, mechanism: str = "") -> str | None:
        """The text of a property that listeners may set for themselves, and for a SASL mechanism of theirs (KIP-103)."""
        own = f"listener.name.{listener.lower()}."
        for prefix in (f"{own}{mechanism.lower()}.", own) if mechanism else (own,):
            if (found := self.given.get(prefix + name)) is not None:
                return found
        return self.value(name)

    def listener_limit(self, listener: str, name: str) -> int:
        """A limit of connections that counts for one listener alone; the largest number where it has none."""
        text = self.given.get(f"listener.name.{listener.lower()}.{name}")
        if text is None:
            return 2**31 - 1
        found = self.tables.broker[name].parse(text)
        assert isinstance(found, int)
        return found

    # -- defaults of topics

    def topic_defaults(self) -> dict[str, str]:
        """The broker's value of each topic property, without those that have none."""
        table = self.tables.topic
        found = {name: topic_default(name, self.value, table) for name in table}
        return {name: text for name, text in found.items() if text is not None}

    def topic_properties(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """All properties of a topic that sets `overrides`."""
        return {**self.topic_defaults(), **overrides}

    # -- dynamic values

    def apply_dynamic(self, cluster: Mapping[str, str], node: Mapping[str, str]) -> set[str]:
        """Apply the dynamic values of the cluster and of this node. Returns the names of properties whose value has changed.

        Properties that a running broker can't change are ignored, as are values that do not parse: a controller has accepted
        them, and they must not stop the broker.
        """
        self.stored_cluster, self.stored_node = dict(cluster), dict(node)
        table = self.tables.broker
        new_cluster = _usable(self.resolved_stored(cluster), table)
        new_node = _usable(self.resolved_stored(node), table)
        touched = {*self.dynamic_cluster, *self.dynamic_node, *new_cluster, *new_node}
        before = {name: self.value(name) for name in touched}
        self.dynamic_cluster, self.dynamic_node = new_cluster, new_node
        changed = {name for name, text in before.items() if name in table and self.value(name) != text}
        for name in changed:
            self._read(name)
        return changed

    # -- reading

    def _read_all(self) -> None:
        for name in self.given:
            if name in self.tables.broker:
                check_value(self.tables.broker[name], self.given[name])
        for name in PROPERTY_OF_ATTRIBUTE.values():
            self._read(name)

    def _read(self, name: str) -> None:
        attribute = name.replace(".", "_")
        if attribute in PROPERTY_OF_ATTRIBUTE:
            setattr(self, attribute, self._parsed(name))

    def _parsed(self, name: str) -> Value:
        return self.tables.broker[name].parse(self.value(name))

    def _check_roles(self) -> None:
        if "broker.id" in self.given and "node.id" not in self.given:
            # Its name before KRaft.
            self.node_id = max(int(self.given["broker.id"]), 0)
        is_named = "node.id" in self.given or "broker.id" in self.given
        self.given["node.id"] = self.given["broker.id"] = str(self.node_id)
        self.quorum = quorum_config(
            self.process_roles,
            self.node_id,
            self.controller_quorum_voters,
            self.controller_quorum_bootstrap_servers,
        )
        if not is_named and not self.quorum.is_alone:
            raise ConfigError(
                "node.id is missing: each node of a cluster has an id of its own"
                + (f", a voter the one before its address in {VOTERS}" if self.quorum.voters else "")
            )
        self.notes.extend(("warning", text) for text in self.quorum.warnings)

    def _check_authentication_delay(self) -> None:
        delay_ms, idle_ms = self.connection_failed_authentication_delay_ms, self.connections_max_idle_ms
        if 0 <= idle_ms <= delay_ms:
            raise ConfigError(
                f"connection.failed.authentication.delay.ms={delay_ms} should always be less than "
                f"connections.max.idle.ms={idle_ms} to prevent failed authentication responses from timing out"
            )

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles

    def _log_dirs(self) -> list[str]:
        found = self._parsed("log.dirs") or self._parsed("log.dir")
        assert isinstance(found, list)
        if "log.dirs" not in self.given and "log.dir" not in self.given:
            return [DEFAULT_LOG_DIR]
        return list(dict.fromkeys(found))

    def check_is_one_node(self, instead: str) -> None:
        """ConfigError where barnabas.cores is set, in what knows one node alone. `instead`: what to do."""
        if self.barnabas_cores != "1":
            raise ConfigError(
                f"barnabas.cores={self.barnabas_cores} is for `barnabas start` alone: {instead}"
            )

    def cordoned_directories(self) -> list[str]:
        """The log directories that get no new partitions (KIP-1066); "*" names all."""
        named = {os.path.abspath(each) for each in self.cordoned_log_dirs}
        return [
            each for each in self.log_dirs if "*" in self.cordoned_log_dirs or os.path.abspath(each) in named
        ]

    def _listeners(self) -> list[ListenerConfig]:
        if self.inter_broker_listener_name and "security.inter.broker.protocol" in self.given:
            raise ConfigError(
                "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."
            )
        listeners, advertised = self._parsed("listeners"), self._parsed("advertised.listeners")
        assert isinstance(listeners, list)
        assert advertised is None or isinstance(advertised, list)
        opened, self.controller_listeners = resolve_listeners(
            listeners, advertised, self._protocol_map(), self.controller_listener_names
        )
        if self.is_broker and not opened:
            raise ConfigError(
                "listeners has no listener for clients: every name in it is in controller.listener.names"
            )
        if (
            self.is_broker
            and not self.quorum.is_alone
            and self.inter_broker_listener not in {listener.name for listener in opened}
        ):
            raise ConfigError(
                f"listeners has no {self.inter_broker_listener}, where the other brokers would fetch: name one of its "
                f"listeners in inter.broker.listener.name"
            )
        if not self.is_broker and opened:
            raise ConfigError(
                f"listeners: a node with process.roles=controller serves no clients; {opened[0].name} is not in "
                f"controller.listener.names"
            )
        if self.is_controller and not self.quorum.is_alone and not self.controller_listeners:
            raise ConfigError(
                "listeners must name the controller's listener (controller.listener.names="
                f"{','.join(self.controller_listener_names)}), where the other voters connect"
            )
        if not self.is_controller and self.controller_listeners:
            raise ConfigError(
                f"listeners: {self.controller_listeners[0].name} is in controller.listener.names, and a node with "
                f"process.roles=broker has no controller listener"
            )
        return opened

    def _protocols(self) -> set[str]:
        """Those of this node's listeners, and of the one of controllers that it calls."""
        opened = self.listeners + self.controller_listeners
        return {self.controller_protocol, *(each.security_protocol for each in opened)}

    def _late_listeners(self) -> list[str]:
        """Those of early.start.listeners that are none for controllers. ConfigError for one that is none at all, as in Kafka."""
        named = self._parsed("early.start.listeners") or []
        assert isinstance(named, list)
        late = {each.name for each in self.listeners}
        early = {each.name for each in self.controller_listeners}
        names = [name.strip().upper() for name in named if name.strip()]
        for name in names:
            if name not in late | early:
                raise ConfigError(
                    f"early.start.listeners contains listener {name}, but this is not contained in listeners or "
                    f"controller.listener.names"
                )
        return [name for name in names if name in late]

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener where brokers fetch from each other."""
        return (self.inter_broker_listener_name or self.security_inter_broker_protocol).upper()

    @property
    def tls_listeners(self) -> list[ListenerConfig]:
        """The listeners for clients and brokers that use TLS."""
        return [each for each in self.listeners if each.security_protocol in TLS_PROTOCOLS]

    @property
    def sasl_listeners(self) -> list[ListenerConfig]:
        """The listeners that use SASL, those for controllers too."""
        opened = self.listeners + self.controller_listeners
        return [each for each in opened if each.security_protocol in SASL_PROTOCOLS]

    def open_listeners(self) -> str:
        """What is open to clients of other machines without authentication, as a line for the log; "" for nothing."""
        return open_listeners(
            self.listeners,
            lambda name: (self.listener_value(name, "ssl.client.auth") or "").strip().lower() == "required",
            has_authorizer=bool((self.value("authorizer.class.name") or "").strip()),
        )

    @property
    def controller_listener(self) -> str:
        """The name of the listener where controllers are reached."""
        return self.controller_listener_names[0].upper() if self.controller_listener_names else "CONTROLLER"

    @property
    def controller_protocol(self) -> str:
        """The protocol of that listener."""
        return parse_protocol_map(self._protocol_map()).get(self.controller_listener, "PLAINTEXT")

    @property
    def may_have_followers(self) -> bool:
        """Whether this is a broker, and there may be others."""
        return self.is_broker and (bool(self.controller_listeners) or not self.quorum.is_alone)

    def _protocol_map(self) -> str:
        text = self.static_value("listener.security.protocol.map") or ""
        if "listener.security.protocol.map" not in self.given:
            # As in Kafka: controller listeners use PLAINTEXT unless the map has them.
            text += "".join(f",{name}:PLAINTEXT" for name in self.controller_listener_names)
        return text


def _providers(given: Mapping[str, str]) -> ConfigProviders | None:
    if not given.get("config.providers", "").strip():
        return None
    from barnabas.broker.config.providers import ConfigProviders

    return ConfigProviders(given)


def _usable(properties: Mapping[str, str], table: ConfigDef) -> dict[str, str]:
    usable: dict[str, str] = {}
    for name, text in properties.items():
        key = table.get(name)
        if key is None or key.update_mode == READ_ONLY:
            continue
        try:
            key.parse(text)
        except ConfigError:
            continue
        usable[name] = text
    return usable


def _read_file(file: Path) -> dict[str, str]:
    try:
        return parse_properties(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        # Java's own encoding for these files.
        return parse_properties(file.read_text(encoding="latin-1"))
