"""The broker's configuration: its sources and their order, listeners, dynamic values, refusals."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.config.authorizer import STANDARD_AUTHORIZER, AuthorizerConfig, authorizer_config
from barnabas.broker.config.broker_config import (
    DEFAULT_LOG_DIR,
    PROPERTY_OF_ATTRIBUTE,
    SHIPPED,
    BrokerConfig,
    _Values,
)
from barnabas.broker.config.sources import parse_properties, properties_from_environment
from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.validators import ConfigError

PYTHON_TYPES = {
    "boolean": bool,
    "int": int,
    "short": int,
    "long": int,
    "double": float,
    "list": list[str],
    "string": str,
    "password": str,
    "class": str,
}

KRAFT_COMBINED = r"""
# As Kafka ships it, with a continued line.
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:9092,\
    CONTROLLER://127.0.0.1:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://broker.example:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
log.dirs=/tmp/kraft-combined-logs
num.partitions = 3
"""


def test_every_attribute_is_a_property_of_the_tables_type() -> None:
    hints = typing.get_type_hints(_Values)
    assert list(hints) == list(PROPERTY_OF_ATTRIBUTE)
    for name, hint in hints.items():
        key = BROKER_CONFIGS[PROPERTY_OF_ATTRIBUTE[name]]
        plain = PYTHON_TYPES[key.type]
        nullable = key.default is None and not key.required
        assert hint == (plain | None if nullable else plain), name


def test_without_a_file_the_shipped_values_serve_one_node() -> None:
    config = BrokerConfig.load()
    assert config.log_dirs == [DEFAULT_LOG_DIR]
    assert [(each.name, each.host, each.port) for each in config.listeners] == [
        ("PLAINTEXT", "127.0.0.1", 9092)
    ]
    assert config.offsets_topic_replication_factor == 1
    assert config.transaction_state_log_min_isr == 1
    assert config.group_initial_rebalance_delay_ms == 0
    assert config.notes == []


def test_a_kraft_server_properties_works_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KRAFT_COMBINED)
    config = BrokerConfig.load(file)
    (listener,) = config.listeners
    assert (listener.host, listener.port) == ("127.0.0.1", 9092)
    assert (listener.advertised_host, listener.advertised_port) == ("broker.example", 9092)
    assert config.node_id == 7
    assert config.num_partitions == 3
    assert config.log_dirs == ["/tmp/kraft-combined-logs"]
    assert config.offsets_topic_replication_factor == 3  # Kafka's default: the file does not say
    assert config.notes == []
    assert [each.name for each in config.controller_listeners] == ["CONTROLLER"]


def test_precedence_of_set_variables_file_and_defaults(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.retention.hours=2\nmessage.max.bytes=2\n")
    environ = {"KAFKA_LOG_RETENTION_HOURS": "3", "KAFKA_MESSAGE_MAX_BYTES": "3"}
    config = BrokerConfig.load(file, environ, ["message.max.bytes=4"])
    assert config.num_partitions == 2
    assert config.value("log.retention.hours") == "3"
    assert config.message_max_bytes == 4
    assert config.num_io_threads == 8


def test_variables_are_mapped_as_kafkas_image_maps_them() -> None:
    environ = {
        "KAFKA_LOG_DIRS": "/d",
        "KAFKA_A__B_C___D": "x",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "KAFKA_OPTS": "",
        "KAFKA_LOG4J_LOGGERS": "x",
        "KAFKA_JMX_PORT": "1",
        "PATH": "/bin",
    }
    assert properties_from_environment(environ) == {"log.dirs": "/d", "a_b.c-d": "x"}


def test_an_unknown_property_is_warned_about_once_and_the_rest_is_applied() -> None:
    config = BrokerConfig.load(None, {"KAFKA_FOO_BAR": "1"}, ["foo.bar=2", "num.partitions=5"])
    assert config.notes == [("warning", "unknown property foo.bar is ignored")]
    assert config.num_partitions == 5


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("num.partitions=0", "num.partitions"),
        ("log.segment.bytes=x", "log.segment.bytes"),
        ("listeners=127.0.0.1:9092", "listeners"),
        ("listeners=PLAINTEXT://127.0.0.1:99999", "listeners"),
        ("listeners=PLAINTEXT://a:1,PLAINTEXT://a:2", "listeners"),
        ("listeners=PLAINTEXT://a:1,SSL://a:1", "listeners"),
        ("listeners=FOO://127.0.0.1:9092", "listener.security.protocol.map"),
        ("listeners=CONTROLLER://127.0.0.1:9092", "controller.listener.names"),
        ("listeners=PLAINTEXT://0.0.0.0:9092", "advertised.listeners=PLAINTEXT://HOST:9092"),
        ("advertised.listeners=FOO://a:1", "advertised.listeners"),
        ("process.roles=controller", "process.roles"),
        ("controller.quorum.voters=1@a:1,2@b:2", "listeners must name the controller's listener"),
        ("controller.quorum.voters=2@b:2", "controller.quorum.voters does not name node.id=1"),
        ("controller.quorum.voters=1@a:1,1@b:2", "node ids must differ"),
        ("process.roles=broker", "process.roles=broker needs controller.quorum"),
        ("process.roles=zookeeper", "process.roles"),
        ("barnabas.event.loop=gevent", "barnabas.event.loop"),
        ("nonsense", "--set"),
    ],
)
def test_a_wrong_value_is_refused_by_name(setting: str, name: str) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        BrokerConfig.load(None, {}, [setting])


def test_named_listeners_each_have_their_own_address() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "INSIDE://:0,OUTSIDE://127.0.0.1:0,V6://[::1]:9095",
            "advertised.listeners": "INSIDE://broker:1000,OUTSIDE://localhost:2000",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,V6:PLAINTEXT",
        }
    )
    assert [(each.host, each.advertised_host, each.advertised_port) for each in config.listeners] == [
        ("", "broker", 1000),
        ("127.0.0.1", "localhost", 2000),
        ("::1", "::1", 9095),
    ]


def test_a_controller_listens_on_every_address_without_an_advertised_one() -> None:
    """As Kafka: clients never learn a controller's address from this property."""
    config = BrokerConfig.from_properties(
        {
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://0.0.0.0:0",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
    )
    assert [each.host for each in config.controller_listeners] == ["0.0.0.0"]


def test_dynamic_values_change_attributes_in_place() -> None:
    config = BrokerConfig.from_properties({"log.retention.hours": "1"})
    dynamic = {
        "log.retention.ms": "5",
        "message.max.bytes": "7",
        "node.id": "9",
        "unknown": "1",
        "num.io.threads": "x",
    }
    assert config.apply_dynamic(dynamic, {}) == {"log.retention.ms", "message.max.bytes"}
    assert (config.message_max_bytes, config.node_id, config.num_io_threads) == (7, 1, 8)
    assert config.topic_defaults()["retention.ms"] == "5"
    config.apply_dynamic(dynamic, {"message.max.bytes": "8"})
    assert config.message_max_bytes == 8
    assert config.apply_dynamic({}, {}) == {"log.retention.ms", "message.max.bytes"}
    assert config.message_max_bytes == 1048588
    assert config.topic_defaults()["retention.ms"] == "3600000"


def test_a_topics_value_takes_precedence_over_the_brokers() -> None:
    config = BrokerConfig.from_properties({"log.retention.ms": "5", "log.segment.bytes": "2000000"})
    properties = config.topic_properties({"retention.ms": "6"})
    assert (properties["retention.ms"], properties["segment.bytes"]) == ("6", "2000000")


def test_the_shipped_values_are_properties() -> None:
    assert set(SHIPPED) <= set(BROKER_CONFIGS)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b", {"a": "b"}),
        ("a: b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("  a   =   b  ", {"a": "b  "}),
        ("# no\n! no\n\n a=1", {"a": "1"}),
        ("a=1\\\n   2\\\n3\nb=4", {"a": "123", "b": "4"}),
        ("a=c:\\\\temp\\\nx", {"a": "c:\\tempx"}),
        ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        ("a=\\u0041\\t|\\n", {"a": "A\t|\n"}),
        ("a", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a=1\r\na=2", {"a": "2"}),
        ("a=#b", {"a": "#b"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_java_properties_syntax(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


def test_a_malformed_escape_is_refused() -> None:
    with pytest.raises(ConfigError, match="malformed escape"):
        parse_properties("a=\\u12x")


def escaped(text: str) -> str:
    """As java.util.Properties.store writes a key or value: everything special escaped."""
    special = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    return "".join(special.get(c, "\\" + c if c in " =:#!\\" else c) for c in text)


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=4))
def test_what_java_stores_is_read_back(pairs: dict[str, str]) -> None:
    text = "".join(f"{escaped(key)}={escaped(value)}\n" for key, value in pairs.items())
    assert parse_properties(text) == pairs


def _warned(*settings: str) -> list[str]:
    return [text for level, text in BrokerConfig.load(settings=settings).notes if level == "warning"]


STANDARD = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def test_an_authorizer_needs_a_class_that_this_version_has() -> None:
    assert BrokerConfig.load(settings=["authorizer.class.name="]).authorizer is None
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name: this version has no kafka\.security"):
        BrokerConfig.load(settings=["authorizer.class.name=kafka.security.authorizer.AclAuthorizer"])
    with pytest.raises(
        ConfigError, match="expected a string in format principalType:principalName but got bob"
    ):
        BrokerConfig.load(settings=[STANDARD, "super.users=User:a;bob"])
    found = BrokerConfig.load(
        settings=[STANDARD, "super.users=User:CN=a,O=b; User:bob;", "allow.everyone.if.no.acl.found=TRUE"]
    )
    assert found.authorizer == AuthorizerConfig(frozenset({"User:CN=a,O=b", "User:bob"}), True)
    assert BrokerConfig.load(settings=[STANDARD]).authorizer == AuthorizerConfig()


def test_super_users_without_an_authorizer_are_warned_about() -> None:
    assert _warned("super.users=User:admin") == [
        "no effect without authorizer.class.name: super.users; every client may do everything"
    ]
    assert _warned(STANDARD, "super.users=User:admin", "allow.everyone.if.no.acl.found=true") == []


def test_properties_without_effect_are_in_one_line_without_their_values() -> None:
    assert _warned(
        "ssl.client.auth=required",
        "ssl.keystore.password=hidden",
        "sasl.enabled.mechanisms=PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config=hidden",
        "listener.name.plaintext.ssl.client.auth=required",
        "client.quota.callback.class=a.B",
        "metric.reporters=a.B",
    ) == [
        "no effect in this version: client.quota.callback.class, "
        "listener.name.plaintext.plain.sasl.jaas.config, listener.name.plaintext.ssl.client.auth, "
        "metric.reporters, sasl.enabled.mechanisms, "
        "ssl.client.auth, ssl.keystore.password"
    ]


def test_timeouts_of_the_quorum_have_no_effect() -> None:
    """Raft's timers are others than those of Kafka's voters, which fetch."""
    assert (
        _warned("controller.quorum.fetch.timeout.ms=2000", "controller.quorum.election.timeout.ms=1000") == []
    )
    assert _warned("controller.quorum.fetch.timeout.ms=20", "controller.quorum.election.timeout.ms=10") == [
        "no effect in this version: controller.quorum.election.timeout.ms, controller.quorum.fetch.timeout.ms"
    ]


def test_values_equal_to_the_behaviour_here_are_not_warned_about() -> None:
    assert (
        _warned(
            "security.inter.broker.protocol=PLAINTEXT",
            "ssl.client.auth=none",
            "remote.log.storage.system.enable=false",
            "metric.reporters=",
            "min.insync.replicas=1",
            "offsets.topic.replication.factor=1",
            "listener.name.plaintext.max.connections=5",
        )
        == []
    )


def test_zookeeper_mode_is_named() -> None:
    assert _warned("zookeeper.connect=localhost:2181", "zookeeper.connection.timeout.ms=1") == [
        "zookeeper.connect, zookeeper.connection.timeout.ms: belongs to ZooKeeper mode, ignored"
    ]


@pytest.mark.parametrize(
    ("setting", "consequence"),
    [
        ("default.replication.factor=3", "INVALID_REPLICATION_FACTOR"),
        ("min.insync.replicas=2", "NOT_ENOUGH_REPLICAS"),
        ("offsets.topic.replication.factor=3", "consumer groups fail"),
    ],
)
def test_more_replicas_than_one_node_has(setting: str, consequence: str) -> None:
    (line,) = _warned(setting)
    assert line.startswith("one node has one replica: ")
    assert setting in line
    assert consequence in line


def test_an_unknown_property_gets_the_closest_known_one() -> None:
    assert _warned("log.retention.hour=1", "something.else.entirely=1") == [
        "unknown property log.retention.hour is ignored; did you mean log.retention.hours?",
        "unknown property something.else.entirely is ignored",
    ]


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("num.partitions=", 'Invalid value "" for configuration num.partitions: Not a number of type INT'),
        ("log.dirs=", "log.dirs must name at least one directory"),
        (
            "connections.max.idle.ms=100",
            "connection.failed.authentication.delay.ms=100 should always be less than connections.max.idle.ms=100 to "
            "prevent failed authentication responses from timing out",
        ),
        (
            "listener.security.protocol.map=PLAINTEXT:TLS",
            "Invalid value PLAINTEXT:TLS for configuration listener.security.protocol.map: String must be one of: "
            "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
    ],
)
def test_refusals_in_full(setting: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(settings=[setting])
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", []), ("/b", ["/b"]), ("/c/../a,/elsewhere", ["/a"]), ("*", ["/a", "/b"])],
)
def test_cordoned_directories(named: str, expected: list[str]) -> None:
    config = BrokerConfig.load(settings=["log.dirs=/a,/b", f"cordoned.log.dirs={named}"])
    assert config.cordoned_directories() == expected
    config.apply_dynamic({}, {"cordoned.log.dirs": "/b"})
    assert config.cordoned_directories() == ["/b"]


def test_a_file_that_names_no_listener_listens_everywhere_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n")
    config = BrokerConfig.load(file)
    assert [(each.name, each.host, each.port) for each in config.listeners] == [("PLAINTEXT", "", 9092)]
    assert config.open_listeners() == (
        "open without authentication: PLAINTEXT (PLAINTEXT) on every interface:9092; all who can connect there may read, "
        "write and change everything"
    )
    assert BrokerConfig.from_properties().open_listeners() == "", "without a file it is this machine alone"


def test_listeners_that_authenticate_are_not_open() -> None:
    given = {
        "listeners": "A://10.1.1.1:1,B://:2,C://:3,D://localhost:4",
        "advertised.listeners": "A://h:1,B://h:2,C://h:3,D://localhost:4",
        "listener.security.protocol.map": "A:PLAINTEXT,B:SASL_PLAINTEXT,C:SSL,D:PLAINTEXT",
        "inter.broker.listener.name": "A",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    open_c = BrokerConfig.from_properties(given).open_listeners()
    closed_c = BrokerConfig.from_properties(
        {**given, "listener.name.c.ssl.client.auth": "required"}
    ).open_listeners()
    acls = "all who can connect there may do what ACLs allow User:ANONYMOUS"
    assert open_c == (
        f"open without authentication: A (PLAINTEXT) on 10.1.1.1:1, C (SSL) on every interface:3; {acls}"
    )
    assert closed_c == f"open without authentication: A (PLAINTEXT) on 10.1.1.1:1; {acls}"


def test_listeners_that_start_early() -> None:
    listeners = "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert _warned(listeners, "early.start.listeners=controller") == []
    assert _warned(listeners, "early.start.listeners=CONTROLLER,PLAINTEXT") == [
        "early.start.listeners has no effect on PLAINTEXT: controller listeners are open from the start on, and others once the "
        "node knows the ACLs"
    ]
    with pytest.raises(ConfigError, match="contains listener OTHER, but this is not"):
        _warned(listeners, "early.start.listeners=OTHER")


def test_controller_listeners_are_in_the_order_of_their_names() -> None:
    """The first is where this node calls controllers."""
    config = BrokerConfig.from_properties(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,OLD://127.0.0.1:9093,NEW://127.0.0.1:9094",
            "controller.listener.names": "NEW,OLD",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OLD:PLAINTEXT,NEW:SASL_SSL",
            "controller.quorum.voters": "1@127.0.0.1:9094",
        }
    )
    assert [each.name for each in config.controller_listeners] == ["NEW", "OLD"]
    assert (config.controller_listener, config.controller_protocol) == ("NEW", "SASL_SSL")
    assert [each.name for each in config.sasl_listeners] == ["NEW"]
    assert config.notes == []


def test_with_an_authorizer_a_principal_builder_of_ones_own_stops_the_start() -> None:
    """Rules for the principals that it would make would match none of those that there are."""
    given = {"principal.builder.class": "com.acme.StripRealm"}
    assert authorizer_config(given) is None
    with pytest.raises(ConfigError, match=r"principal\.builder\.class"):
        authorizer_config({**given, "authorizer.class.name": STANDARD_AUTHORIZER})
