"""Our commands beside Kafka's tools: the same arguments against the same broker print the same and exit alike.

docs/command-line.md lists the differences that are meant. `make conform` runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.command_line import KAFKAS, OURS, BothTools, without_order
from compat_tests.harness.fixture_types import BrokerFactory, TopicFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools

pytestmark = pytest.mark.jvm


@pytest.fixture
def both(broker: Broker, java_tools: JavaTools) -> BothTools:
    return BothTools(broker.bootstrap, java_tools)


def test_topics(both: BothTools, unique: UniqueName) -> None:
    one, two = unique("@-one"), unique("@.two")
    create = ("topics", "--create", "--topic")
    both.compare(*create, one, "--partitions", "3", "--replication-factor", "1")
    both.compare(*create, two, "--config", "retention.ms=1000", "--config", "cleanup.policy = compact")
    both.compare(*create, one)
    both.compare(*create, one, "--if-not-exists")
    both.compare("topics", "--list", "--topic", f"{one},{two}")
    both.compare("topics", "--list", "--topic", unique("@-none"))
    both.compare("topics", "--describe", "--topic", one)
    both.compare("topics", "--describe", "--topic", f"'{one}|{two}'", view=without_order)
    both.compare("topics", "--describe", "--topic", two, "--topics-with-overrides")
    for report in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        both.compare("topics", "--describe", "--topic", one, f"--{report}-partitions")
    both.compare("topics", "--alter", "--topic", one, "--partitions", "5")
    both.compare("topics", "--alter", "--topic", one, "--partitions", "5")
    both.compare("topics", "--alter", "--topic", two, "--partitions", "3", "--replica-assignment", "1,1,1")
    both.compare("topics", "--describe", "--topic", one, "--partition-size-limit-per-response", "2")
    both.compare("topics", "--delete", "--topic", f"{one}|{two}")
    for action in ("--delete", "--describe"):
        both.compare("topics", action, "--topic", one)
        both.compare("topics", action, "--topic", one, "--if-exists")


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("--partitions", "0"),
        ("--replication-factor", "0"),
        ("--replication-factor", "7"),
        ("--partitions", "x"),
        ("--config", "no.such.config=1"),
        ("--config", "retention.ms=x"),
        ("--config", "retention.ms"),
        ("--config", "retention.ms="),
        ("--replica-assignment", "1:1"),
        ("--replica-assignment", "1:2,1"),
        ("--replica-assignment", "1:x"),
        ("--replica-assignment", "9"),
        ("--if-exists",),
        ("--list",),
        ("--topics-with-overrides",),
        ("--no-such-option",),
        ("--partitions",),
    ],
)
def test_topics_that_can_not_be_created(
    both: BothTools, unique: UniqueName, arguments: tuple[str, ...]
) -> None:
    assert both.compare("topics", "--create", "--topic", unique("@"), *arguments).status == 1


@pytest.mark.long
def test_wrong_command_lines_of_topics(both: BothTools) -> None:
    for arguments in (
        (),
        ("--create",),
        ("--create", "--topic", "a/b"),
        ("--describe", "--if-exists"),
        ("--describe", "--topic", "["),
        ("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ"),
        ("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ", "--if-exists"),
        ("--describe", "--topic-id", "AAA"),
        ("--alter", "--topic", "a"),
        ("--alter", "--topic", "no-such-topic", "--partitions", "3"),
        ("--alter", "--topic", "no-such-topic", "--partitions", "3", "--if-exists"),
        ("--alter", "--topic", "a", "--partitions", "3", "--config", "a=b"),
    ):
        both.compare("topics", *arguments)


def printed(*names: str) -> tuple[str, ...]:
    """Arguments with which a consumer prints these columns."""
    return tuple(word for name in names for word in ("--formatter-property", f"print.{name}=true"))


def test_console_producer_and_consumer(both: BothTools, unique: UniqueName) -> None:
    name = unique("@")
    produce = ("produce", "--topic", name)
    both.compare("topics", "--create", "--topic", name)
    both.compare(*produce, stdin="plain\n\nwith \u00e9\r\nlast")
    both.compare(
        *produce,
        *("--property", "parse.key=true", "--property", "key.separator=:"),
        stdin="k:v\n:empty key\nk2:a:b\n",
    )
    both.compare(
        *produce,
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL", "--compression-codec", "zstd", "--sync"),
        stdin="h1:one,h2:two,\tkey\tvalue\nNULL\tkey\tNULL\n",
    )
    both.compare(*produce, "--reader-property", "parse.key=true", stdin="a\tb\nno key\n")
    both.compare(
        *produce,
        *("--reader-property", "parse.key=true", "--reader-property", "ignore.error=true"),
        stdin="no key\n",
    )
    consume = ("consume", "--topic", name, "--timeout-ms", "4000")
    everything = printed("key", "headers", "offset", "partition", "epoch", "delivery")
    first = both.compare(*consume, "--from-beginning", "--max-messages", "11", *everything)
    assert len(first.stdout.splitlines()) == 11
    both.compare(*consume, "--partition", "0", "--offset", "3", "--max-messages", "2", *everything)
    both.compare(
        *consume, "--partition", "0", "--offset", "earliest", "--max-messages", "1", "--property", "a=b"
    )
    both.compare(
        *consume,
        *("--from-beginning", "--max-messages", "8", *printed("key")),
        *("--formatter-property", "key.separator= = ", "--formatter-property", "line.separator=|"),
        *("--formatter-property", "null.literal=none", "--formatter-property", "print.value=false"),
        *("--key-deserializer", "org.apache.kafka.common.serialization.StringDeserializer"),
    )
    both.compare("consume", "--include", f"{name[:-2]}.*", "--from-beginning", "--max-messages", "1")


@pytest.mark.long
def test_a_consumer_of_a_group(both: BothTools, unique: UniqueName) -> None:
    name = unique("@")
    consume = ("consume", "--topic", name, "--group", unique("@"), "--from-beginning")
    both.compare("topics", "--create", "--topic", name)
    both.compare("produce", "--topic", name, stdin="1\n2\n3\n4\n5\n")
    assert both.compare(*consume, "--max-messages", "2", "--timeout-ms", "20000").stdout == "1\n2\n"
    assert both.compare(*consume, "--max-messages", "3", "--timeout-ms", "20000").stdout == "3\n4\n5\n"
    both.compare(*consume, "--timeout-ms", "5000")


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--topic", "a", "--include", "b"),
        ("--topic", "a", "--offset", "3"),
        ("--include", "a", "--partition", "0"),
        ("--topic", "a", "--partition", "0", "--offset", "-3"),
        ("--topic", "a", "--partition", "0", "--offset", "first"),
        ("--topic", "a", "--partition", "0", "--group", "g"),
        ("--topic", "a", "--partition", "0", "--from-beginning", "--offset", "3"),
        ("--topic", "a", "--group", "g", "--command-property", "group.id=h"),
        ("--topic", "a", "--from-beginning", "--command-property", "auto.offset.reset=latest"),
        ("--topic", "a", "--property", "a=b", "--formatter-property", "a=b"),
        ("--topic", "a", "--formatter", "no.such.Class"),
    ],
)
def test_wrong_command_lines_of_the_consumer(both: BothTools, arguments: tuple[str, ...]) -> None:
    assert both.compare("consume", *arguments).status == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--topic", "a", "--reader-property", "headers.separator=:"),
        ("--topic", "a", "--property", "a=b", "--reader-property", "a=b"),
        ("--topic", "a", "--reader-property", "null.marker=,"),
        ("--topic", "a", "--batch-size", "x"),
    ],
)
def test_wrong_command_lines_of_the_producer(both: BothTools, arguments: tuple[str, ...]) -> None:
    assert both.compare("produce", *arguments).status == 1


@pytest.mark.long
def test_a_group_without_members(both: BothTools, unique: UniqueName) -> None:
    name, group = unique("@"), unique("@-group")
    groups, of_group = "groups", ("--group", group)
    reset = (groups, "--reset-offsets", *of_group)
    both.compare("topics", "--create", "--topic", name, "--partitions", "2")
    keys = ("--reader-property", "parse.key=true", "--request-required-acks", "all")
    both.compare("produce", "--topic", name, *keys, stdin="a\t1\nb\t2\nc\t3\n")
    both.compare(*reset, "--to-earliest", "--topic", name, view=without_order)
    both.compare(*reset, "--to-latest", "--topic", f"{name}:0", "--execute")
    both.compare(*reset, "--to-offset", "1", "--topic", f"{name}:0,1", "--execute", view=without_order)
    both.compare(groups, "--describe", *of_group, view=without_order)
    both.compare(groups, "--describe", *of_group, "--verbose", view=without_order)
    both.compare(groups, "--describe", *of_group, "--members")
    both.compare(groups, "--describe", *of_group, "--state")
    both.compare(groups, "--describe", *of_group, "--state", "--verbose")
    both.compare(groups, "--describe", *of_group, "--offsets", "--timeout", "10000", view=without_order)
    for scenario in (
        ("--shift-by", "-1"),
        ("--shift-by", "5"),
        ("--to-current",),
        ("--to-offset", "100"),
        ("--to-datetime", "2001-02-03T04:05:06.789"),
        ("--to-datetime", "2001-02-03T04:05:06.789+02:00"),
        ("--to-datetime", "2001-02-03"),
        ("--to-datetime", "2001-02-03T04:05:06"),
        ("--by-duration", "P1DT2H3M4.5S"),
        ("--by-duration", "PT0S"),
        ("--by-duration", "1D"),
    ):
        both.compare(*reset, *scenario, "--all-topics", "--dry-run", view=without_order)
    both.compare(*reset, "--to-earliest", "--all-topics", "--export", view=without_order)
    both.compare(*reset, "--to-earliest", "--topic", f"{name}:7", "--execute")
    both.compare(*reset, "--to-earliest", "--topic", unique("@none"))
    both.compare(*reset, "--to-earliest", "--topic", f"{name}:x")
    both.compare(groups, "--delete-offsets", *of_group, "--topic", f"{name}:1")
    both.compare(groups, "--delete-offsets", *of_group, "--topic", name)
    both.compare(groups, "--delete-offsets", *of_group, "--topic", unique("@none"))
    both.compare(groups, "--delete", *of_group)
    for action in (("--delete",), ("--describe",), ("--delete-offsets", "--topic", name)):
        both.compare(groups, *action, *of_group)


@pytest.mark.long
def test_offsets_from_a_file(both: BothTools, unique: UniqueName, tmp_path: Path) -> None:
    name, group = unique("@"), unique("@-group")
    both.compare("topics", "--create", "--topic", name)
    both.compare("produce", "--topic", name, stdin="1\n2\n3\n")
    for side in (KAFKAS, OURS):
        topic = name.replace("@", side)
        (tmp_path / f"{side}.csv").write_text(f'"{topic}",0,2\n')
        (tmp_path / f"{side}-two.csv").write_text(
            f"{group.replace('@', side)},{topic},0,1\nother,{topic},0,9\n"
        )
    reset = ("groups", "--reset-offsets", "--execute", "--from-file")
    both.compare(*reset, str(tmp_path / "@.csv"), "--group", group)
    both.compare(*reset, str(tmp_path / "@-two.csv"), "--group", group)
    both.compare(*reset, str(tmp_path / "@-two.csv"), "--group", unique("@none"))
    both.compare("groups", "--describe", "--group", group)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("instance", ["", "static-1"])
def test_a_group_with_a_member(
    both: BothTools,
    java_tools: JavaTools,
    topic: TopicFactory,
    unique: UniqueName,
    protocol: str,
    instance: str,
) -> None:
    """One group, at which both look."""
    name, group = topic(3), unique("group")
    # It commits nothing, as a commit between the two tools would make them differ.
    properties = {
        "group.protocol": protocol,
        "enable.auto.commit": "false",
        **({"group.instance.id": instance} if instance else {}),
    }
    PLAIN.produce(both.bootstrap, name, [Sample(None, b"1")], "none")
    member = java_tools.start(
        "kafka-console-consumer",
        *("--bootstrap-server", both.bootstrap, "--topic", name, "--group", group, "--from-beginning"),
        *(word for pair in properties.items() for word in ("--command-property", "=".join(pair))),
    )
    try:
        member.wait_for(lambda text: text.endswith("1\n"))
        for view in ((), ("--members",), ("--state",)):
            for more in ((), ("--verbose",)):
                done = both.compare("groups", "--describe", "--group", group, *view, *more)
                assert group in done.stdout
        both.compare("groups", "--reset-offsets", "--to-latest", "--topic", name, "--group", group)
        both.compare("groups", "--delete", "--group", group)
        both.compare("groups", "--delete-offsets", "--group", group, "--topic", name)
        for listing in ((), ("--state",), ("--type",), ("--state", "stable", "--type", "classic,consumer")):
            both.compare("groups", "--list", *listing, view=without_order)
    finally:
        member.stop()
        member.wait()


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--describe",),
        ("--describe", "--list"),
        ("--describe", "--group", "g", "--state", "stable"),
        ("--describe", "--group", "g", "--state", "--members"),
        ("--describe", "--group", "g", "--topic", "t"),
        ("--delete",),
        ("--delete", "--group", "g", "--topic", "t"),
        ("--delete-offsets", "--group", "g"),
        ("--list", "--group", "g"),
        ("--list", "--members"),
        ("--list", "--state", "wrong"),
        ("--list", "--type", "wrong"),
        ("--reset-offsets", "--group", "g", "--dry-run", "--execute"),
        ("--reset-offsets", "--to-earliest", "--all-topics"),
        ("--reset-offsets", "--group", "g", "--to-earliest", "--to-latest", "--all-topics"),
        ("--validate-regex", "a.*"),
        ("--validate-regex", "a.*", "--list"),
    ],
)
def test_wrong_command_lines_of_groups(both: BothTools, arguments: tuple[str, ...]) -> None:
    both.compare("groups", *arguments)


@pytest.mark.long
def test_configs_of_topics(both: BothTools, unique: UniqueName) -> None:
    name = unique("@")
    topic, alter = ("--entity-type", "topics", "--entity-name", name), ("configs", "--alter")
    both.compare("topics", "--create", "--topic", name, "--config", "retention.ms=1000")
    both.compare("configs", "--describe", *topic)
    both.compare(*alter, *topic, "--add-config", "cleanup.policy=[compact,delete],max.message.bytes = 2000")
    both.compare(*alter, "--topic", name, "--delete-config", "retention.ms")
    both.compare("configs", "--describe", "--topic", name)
    both.compare("configs", "--describe", "--topic", name, "--all")
    both.compare(*alter, *topic, "--add-config", "retention.ms=x")
    both.compare(*alter, *topic, "--add-config", "no.such.config=1")
    both.compare(*alter, *topic, "--delete-config", "no.such.config")
    both.compare(*alter, "--topic", unique("@none"), "--add-config", "retention.ms=1")
    both.compare("configs", "--describe", "--topic", unique("@none"))


@pytest.mark.long
def test_configs_of_brokers(both: BothTools) -> None:
    for broker in (
        ("--broker", "1"),
        ("--entity-type", "brokers", "--entity-default"),
        ("--broker-defaults",),
    ):
        both.compare("configs", "--alter", *broker, "--add-config", "log.cleaner.backoff.ms=14999")
        both.compare("configs", "--describe", *broker)
        both.compare("configs", "--alter", *broker, "--delete-config", "log.cleaner.backoff.ms")
        both.compare("configs", "--describe", *broker)
    both.compare("configs", "--describe", "--entity-type", "brokers")
    both.compare("configs", "--describe", "--broker", "1", "--all")
    both.compare("configs", "--describe", "--broker", "77")
    both.compare("configs", "--alter", "--broker", "1", "--add-config", "broker.id=2")
    both.compare("configs", "--describe", "--broker-logger", "1")
    both.compare("configs", "--alter", "--broker-logger", "1", "--add-config", "no.such.Logger=INFO")


@pytest.mark.long
def test_configs_of_groups_and_client_metrics(both: BothTools, unique: UniqueName) -> None:
    group, metrics = ("--group", unique("@")), ("--client-metrics", unique("@"))
    for entity, config in ((group, "consumer.session.timeout.ms=46000"), (metrics, "interval.ms=60000")):
        both.compare("configs", "--describe", *entity)
        both.compare("configs", "--alter", *entity, "--add-config", config)
        both.compare("configs", "--describe", *entity)
        both.compare("configs", "--describe", "--entity-type", "client-metrics", view=without_order)
        both.compare("configs", "--alter", *entity, "--delete-config", config.partition("=")[0])
        both.compare("configs", "--describe", *entity)


@pytest.mark.long
def test_quotas(both: BothTools, unique: UniqueName) -> None:
    user, client = ("--user", unique("@")), ("--client", unique("@"))
    alter = ("configs", "--alter")
    quotas = "producer_byte_rate=1048576000,consumer_byte_rate=1024.5,request_percentage=0.0001"
    for entity in (user, client, (*user, *client), (*user, "--client-defaults")):
        both.compare(*alter, *entity, "--add-config", quotas)
        both.compare("configs", "--describe", *entity, view=in_any_order)
        both.compare(*alter, *entity, "--delete-config", "producer_byte_rate")
        both.compare("configs", "--describe", *entity, view=in_any_order)
        both.compare(*alter, *entity, "--delete-config", "producer_byte_rate")
        both.compare(*alter, *entity, "--add-config", "no_such_quota=1")
    ip = ("--ip", "127.0.0.3")
    both.compare(*alter, *ip, "--add-config", "connection_creation_rate=1000")
    both.compare(*alter, *ip, "--add-config", "producer_byte_rate=7")
    both.compare("configs", "--describe", *ip)
    both.compare(
        "configs", "--describe", "--entity-type", "users", *("--entity-type", "clients"), view=in_any_order
    )


def in_any_order(text: str) -> str:
    """Quotas, whose order in a line is that of a hash map, as well as the lines."""
    return "\n".join(sorted(" ".join(sorted(line.replace(",", " ").split())) for line in text.splitlines()))


@pytest.mark.long
def test_users(both: BothTools, unique: UniqueName) -> None:
    user, alter = ("--entity-type", "users", "--entity-name", unique("@")), ("configs", "--alter")
    both.compare("configs", "--describe", *user)
    both.compare(
        *alter,
        *user,
        "--add-config",
        "SCRAM-SHA-256=[iterations=8192,password=secret],SCRAM-SHA-512=[password=b]",
    )
    both.compare("configs", "--describe", *user)
    both.compare(*alter, *user, "--delete-config", "SCRAM-SHA-512")
    both.compare("configs", "--describe", *user)
    both.compare(*alter, *user, "--delete-config", "SCRAM-SHA-512")
    for wrong in (
        "[iterations=10,password=a]",
        "[iterations=100000,password=a]",
        "secret",
        "[password=a],producer_byte_rate=1",
    ):
        both.compare(*alter, *user, "--add-config", f"SCRAM-SHA-256={wrong}")
    both.compare(*alter, "--user-defaults", "--add-config", "SCRAM-SHA-256=[password=a]")


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--describe",),
        ("--describe", "--alter", "--topic", "a"),
        ("--describe", "--topic", "a", "--add-config", "a=b"),
        ("--describe", "--entity-type", "wrong"),
        ("--describe", "--topic", "a", "--entity-type", "topics"),
        ("--describe", "--topic", "a", "--user", "b"),
        ("--describe", "--entity-type", "topics", "--entity-default"),
        ("--describe", "--entity-type", "broker-loggers"),
        ("--describe", "--broker", "x"),
        ("--describe", "--topic", "a/b"),
        ("--alter", "--entity-type", "topics", "--add-config", "a=b"),
        ("--alter", "--entity-type", "users", "--add-config", "a=b"),
        ("--alter", "--topic", "a"),
        ("--alter", "--topic", "a", "--add-config", "a"),
        ("--alter", "--topic", "a", "--add-config", "a:b=c"),
        ("--alter", "--ip", "no.such.host.invalid", "--add-config", "connection_creation_rate=1"),
    ],
)
def test_wrong_command_lines_of_configs(both: BothTools, arguments: tuple[str, ...]) -> None:
    assert both.compare("configs", *arguments).status == 1


@pytest.mark.long
def test_offsets(both: BothTools, unique: UniqueName) -> None:
    name = unique("@")
    both.compare("topics", "--create", "--topic", name, "--partitions", "3")
    keys = ("--reader-property", "parse.key=true")
    both.compare("produce", "--topic", name, *keys, stdin="a\t1\n")
    both.compare("offsets", "--topic", name, "--time", "max-timestamp")
    both.compare("produce", "--topic", name, *keys, stdin="b\t2\nc\t3\nd\t4\n")
    for time in ("latest", "earliest", "-2", "earliest-local", "1000", "4102444800000", "x"):
        both.compare("offsets", "--topic", name, "--time", time)
    for which in (
        ("--topic", f"{name[:-3]}.*"),
        ("--topic", name, "--partitions", "0,2"),
        ("--topic", name, "--partitions", "x"),
        ("--topic", unique("@none")),
        ("--topic-partitions", f"{name}:1"),
        ("--topic-partitions", f"{name}:0-2,{name}:2-"),
        ("--topic-partitions", f"{name}:-1,no-such-topic"),
        ("--topic-partitions", f"{name}:x"),
        ("--topic-partitions", name, "--topic", name),
        ("--topic", name, "--exclude-internal-topics"),
    ):
        both.compare("offsets", *which)


@pytest.mark.long
def test_cluster_and_api_versions(both: BothTools) -> None:
    server = ("--bootstrap-server", both.bootstrap)
    both.compare("cluster", "cluster-id", *server, server=False)
    both.compare("cluster", "cluster-id", "-b", both.bootstrap, server=False)
    both.compare("cluster", "list-endpoints", *server, server=False)
    both.compare("cluster", "list-endpoints", *server, "--include-fenced-brokers", server=False)
    both.compare("cluster", "unregister", *server, "--id", "77", server=False)
    both.compare("api-versions")


@pytest.fixture(scope="module")
def guarded(module_broker: BrokerFactory, java_tools: JavaTools) -> BothTools:
    """A broker that has an authorizer, whose clients may do all."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    return BothTools(module_broker(settings).bootstrap, java_tools)


@pytest.mark.long
def test_acls(guarded: BothTools, unique: UniqueName) -> None:
    topic, group = ("--topic", unique("@")), ("--group", unique("@-group"))
    alice = ("--allow-principal", "User:alice")
    for action in ("--add", "--add", "--list"):
        who = () if action == "--list" else alice
        guarded.compare("acls", action, *topic, *who, view=without_order)
    for arguments in (
        (
            "--add",
            *topic,
            *alice,
            "--operation",
            "Read",
            "--operation",
            "describe",
            "--allow-host",
            "127.0.0.1",
        ),
        ("--add", *topic, *alice, "--producer"),
        ("--add", *topic, *alice, "--producer", "--transactional-id", unique("@tx")),
        ("--add", *topic, *group, *alice, "--consumer"),
        (
            "--add",
            *topic,
            "--deny-principal",
            "User:*",
            "--deny-host",
            "10.0.0.1",
            "--operation",
            "DescribeConfigs",
        ),
        ("--add", *topic, *alice, "--resource-pattern-type", "prefixed"),
        ("--list", *topic),
        ("--list", *topic, "--resource-pattern-type", "any"),
        ("--list", *topic, "--resource-pattern-type", "match"),
        ("--list", *topic, *group, "--principal", "User:alice"),
        ("--list", *topic, "--principal", "User:carol"),
        ("--remove", *topic, *alice, "--operation", "Read", "--allow-host", "127.0.0.1", "--force"),
        ("--list", *topic),
        ("--remove", *topic, "--force"),
        ("--list", *topic, *group, "--resource-pattern-type", "any"),
        ("--remove", *topic, *group, "--resource-pattern-type", "any", "--force"),
        ("--list", *topic, *group, "--resource-pattern-type", "any"),
    ):
        guarded.compare("acls", *arguments, view=without_order)


@pytest.mark.long
def test_acls_of_the_cluster(guarded: BothTools, unique: UniqueName) -> None:
    who = ("--allow-principal", unique("User:@"))
    for arguments in (
        ("--add", "--cluster", *who, "--operation", "Create"),
        ("--add", "--topic", unique("@"), *who, "--producer", "--idempotent"),
        ("--add", "--delegation-token", unique("@"), *who, "--operation", "Describe"),
        ("--add", "--user-principal", unique("User:@"), *who, "--operation", "CreateTokens"),
    ):
        guarded.compare("acls", *arguments, view=without_order)


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--add",),
        ("--add", "--list"),
        ("--add", "--topic", "a"),
        ("--add", "--topic", "a", "--allow-principal", "alice"),
        ("--add", "--topic", "a", "--allow-principal", "User:a", "--resource-pattern-type", "match"),
        ("--add", "--topic", "a", "--allow-principal", "User:a", "--operation", "IdempotentWrite"),
        ("--add", "--topic", "a", "--allow-principal", "User:a", "--operation", "wrong"),
        ("--add", "--topic", "a", "--allow-principal", "User:a", "--consumer"),
        ("--add", "--topic", "a", "--allow-principal", "User:a", "--producer", "--operation", "Read"),
        ("--list", "--producer", "--topic", "a"),
        ("--list", "--resource-pattern-type", "wrong"),
        ("--remove",),
        ("--remove", "--topic", "a", "--principal", "User:a"),
    ],
)
def test_wrong_command_lines_of_acls(guarded: BothTools, arguments: tuple[str, ...]) -> None:
    assert guarded.compare("acls", *arguments, view=first_line).status == 1


@pytest.mark.long
def test_acls_without_an_authorizer(both: BothTools) -> None:
    both.compare("acls", "--list", view=first_line)


def first_line(text: str) -> str:
    """Without Java's stack trace, which is on standard output. In the shared JVM an exit is an exception, which this tool prints."""
    line = text.partition("\n")[0]
    return "" if line.endswith(": exit 1") else line
