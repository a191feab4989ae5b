"""The commands of clients, as processes beside a broker; test_command_line_beside_kafka.py compares them with Kafka's tools."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from barnabas.commands import SUMMARIES
from barnabas.testing import Acl, Security
from barnabas.testing import Broker as InProcessBroker
from barnabas.testing.ports import free_port
from compat_tests.harness.broker import Broker
from compat_tests.harness.command_line import COMMANDS, barnabas
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import TopicFactory, UniqueName

SCRIPTS = Path(__file__).resolve().parents[1] / "deploy" / "bin"


def test_topics(broker: Broker, unique: UniqueName) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    name = unique("topic")
    create = (
        "topics",
        *server,
        "--create",
        "--topic",
        name,
        "--partitions",
        "3",
        "--replication-factor",
        "1",
    )
    assert barnabas(*create, "--config", "retention.ms=1000").stdout == f"Created topic {name}.\n"
    assert barnabas(*create, "--if-not-exists").stdout == ""
    assert (
        barnabas(*create, status=1).stdout
        == f"Error while executing topic command : Topic '{name}' already exists.\n"
    )
    assert name in barnabas("topics", *server, "--list").stdout.splitlines()
    barnabas("topics", *server, "--alter", "--topic", name, "--partitions", "4")
    head, *partitions = barnabas("topics", *server, "--describe", "--topic", name).stdout.splitlines()
    assert head.startswith(f"Topic: {name}\tTopicId: ")
    assert "\tPartitionCount: 4\tReplicationFactor: 1\tConfigs: " in head
    assert "retention.ms=1000" in head
    assert (
        partitions[3]
        == f"\tTopic: {name}\tPartition: 3\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
    )
    assert len(partitions) == 4
    barnabas("topics", *server, "--delete", "--topic", name)
    assert name not in barnabas("topics", *server, "--list").stdout.splitlines()


def run_script(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of deploy/bin/ as in an image, which has `barnabas` on its PATH."""
    command = folder / "barnabas"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m barnabas.cli "$@"\n')
    command.chmod(0o700)
    return subprocess.run(
        [SCRIPTS / name, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("tool", sorted(COMMANDS.values()))
def test_scripts_of_kafka_s_names(tool: str, tmp_path: Path) -> None:
    done = run_script(f"{tool}.sh", tmp_path, "--help")
    assert f"(as {tool}.sh)" in done.stdout, done.stderr
    assert done.returncode == 0


def test_every_command_is_beside_a_tool() -> None:
    assert set(COMMANDS) == {*SUMMARIES, "storage"}


# One that is longer than the first attempt is said before it has passed
@pytest.mark.parametrize(
    ("timeout_ms", "waits"), [(300, ""), (2500, "; trying for 2.5 s\ngave up after 2.5 s")]
)
def test_a_broker_that_does_not_answer(timeout_ms: int, waits: str, tmp_path: Path) -> None:
    """The command waits as long as Kafka's tool, unless the client's properties say otherwise; its first line says for what, and what to do."""
    file = tmp_path / "client.properties"
    file.write_text(f"default.api.timeout.ms={timeout_ms}\n")
    server = f"127.0.0.1:{free_port()}"
    done = barnabas("topics", "--list", "--bootstrap-server", server, "--command-config", str(file), status=1)
    assert done.stdout == ""
    advice = "start a broker there, or name another with --bootstrap-server"
    assert done.stderr == f"no connection to {server}: {errno.ECONNREFUSED} ECONNREFUSED; {advice}{waits}\n"


@pytest.mark.parametrize("version", ["raise ModuleNotFoundError(name='kafka')", "__version__ = '2.3.0'"])
def test_without_kafka_python(tmp_path: Path, version: str) -> None:
    """One line says what to install, also where an older one is."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "__init__.py").write_text("")
    (tmp_path / "kafka" / "version.py").write_text(f"{version}\n")
    done = subprocess.run(
        [sys.executable, "-m", "barnabas.cli", "topics", "--list"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "this command needs kafka-python 3: pip install 'barnabas[cli]'\n"


def test_produce_and_consume(broker: Broker, topic: TopicFactory) -> None:
    server, name = ("--bootstrap-server", broker.bootstrap), topic()
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    assert barnabas("produce", *server, "--topic", name, *keys, stdin="a:1\nb:2\n").stdout == ""
    consume = ("consume", *server, "--topic", name, "--timeout-ms", "20000")
    columns = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    done = barnabas(*consume, *columns, "--from-beginning", "--max-messages", "2")
    assert done.stdout == "Offset:0\ta\t1\nOffset:1\tb\t2\n"
    assert done.stderr == "Processed a total of 2 messages\n"
    assert barnabas(*consume, "--partition", "0", "--offset", "1", "--max-messages", "1").stdout == "2\n"


def test_a_group_goes_on_where_it_was(broker: Broker, topic: TopicFactory, unique: UniqueName) -> None:
    server, name = ("--bootstrap-server", broker.bootstrap), topic()
    barnabas("produce", *server, "--topic", name, stdin="1\n2\n3\n")
    group = ("--group", unique("group"), "--from-beginning", "--timeout-ms", "20000")
    consume = ("consume", *server, "--topic", name, *group)
    assert barnabas(*consume, "--max-messages", "2").stdout == "1\n2\n"
    assert barnabas(*consume, "--max-messages", "1").stdout == "3\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_consumer(broker: Broker, topic: TopicFactory, number: signal.Signals) -> None:
    name = topic()
    barnabas("produce", "--bootstrap-server", broker.bootstrap, "--topic", name, stdin="1\n")
    consume = ["consume", "--bootstrap-server", broker.bootstrap, "--topic", name, "--from-beginning"]
    with subprocess.Popen(
        [sys.executable, "-m", "barnabas.cli", *consume],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},  # a record is seen before it is counted
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "1\n"
        consumer.send_signal(number)
        rest, errors = consumer.communicate(timeout=60)
    assert (rest, errors) == ("", "Processed a total of 1 messages\n")
    assert consumer.returncode == 128 + number


def test_a_signal_while_nobody_reads_loses_no_record(broker: Broker, topic: TopicFactory) -> None:
    """What is committed for the group has been written."""
    name = topic()
    lines = "".join(f"{number:06d}{'x' * 1000}\n" for number in range(300))
    barnabas("produce", "--bootstrap-server", broker.bootstrap, "--topic", name, stdin=lines)
    server = ("--bootstrap-server", broker.bootstrap)
    consume = ["consume", *server, "--topic", name, "--from-beginning", "--group", name]
    with subprocess.Popen(
        [sys.executable, "-m", "barnabas.cli", *consume],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},  # as in most images
    ) as consumer:
        assert consumer.stdout is not None
        pipe = consumer.stdout.fileno()
        seen: list[int] = []
        eventually(lambda: _is_full(pipe, seen))  # so the consumer waits within a write
        consumer.send_signal(signal.SIGTERM)
        written, _ = consumer.communicate(timeout=60)
    first = barnabas("consume", *server, "--topic", name, "--group", name, "--max-messages", "1").stdout
    assert int(first[:6]) <= written.count(b"\n")


def _is_full(pipe: int, seen: list[int]) -> bool:
    """Whether there is much in it, and nothing has come for some calls."""
    seen.append(int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder))
    return seen[-1] > 32_000 and seen[-10:] == [seen[-1]] * 10


def test_a_record_that_is_refused(broker: Broker, topic: TopicFactory) -> None:
    """As with Kafka's tool the exit code tells it with --sync alone."""
    produce = (
        "produce",
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        topic(configs={"cleanup.policy": "compact"}),
    )
    done = barnabas(*produce, stdin="no key\n")
    assert "value: 6 bytes with error: " in done.stderr
    assert barnabas(*produce, "--sync", stdin="no key\n", status=1).stdout == ""


def test_a_reader_that_ends_early(broker: Broker, topic: TopicFactory) -> None:
    name = topic()
    barnabas("produce", "--bootstrap-server", broker.bootstrap, "--topic", name, stdin="line\n" * 50000)
    consume = f"{sys.executable} -m barnabas.cli consume --bootstrap-server {broker.bootstrap} --topic {name}"
    done = subprocess.run(
        f"{consume} --from-beginning | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "line\n"
    assert "Traceback" not in done.stderr


@pytest.mark.barnabas_only
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_secured_broker(tmp_path: Path, mechanism: str) -> None:
    file = tmp_path / "client.properties"
    with InProcessBroker(security=Security(users={"alice": "secret"}, mechanisms=[mechanism])) as broker:
        text = broker.security.client("java", user="alice")
        assert isinstance(text, str)
        file.write_text(text)
        server = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(file))
        barnabas("topics", *server, "--create", "--topic", "a")
        barnabas("produce", *server, "--topic", "a", stdin="1\n")
        consume = ("consume", *server, "--topic", "a", "--from-beginning", "--max-messages", "1")
        assert barnabas(*consume).stdout == "1\n"
        file.write_text(text.replace("secret", "wrong"))
        *_, line = barnabas("topics", *server, "--list", status=1).stderr.splitlines()
        assert "Authentication failed" in line
        file.write_text("".join(each for each in text.splitlines(True) if "truststore" not in each))
        *_, line = barnabas("topics", *server, "--list", status=1).stderr.splitlines()
        assert "CERTIFICATE_VERIFY_FAILED" in line


def test_groups(broker: Broker, topic: TopicFactory, unique: UniqueName) -> None:
    server, name, group = ("--bootstrap-server", broker.bootstrap), topic(), unique("group")
    of_group = ("groups", *server, "--group", group)
    barnabas("produce", *server, "--topic", name, stdin="1\n2\n3\n")
    barnabas("consume", *server, "--topic", name, "--group", group, "--from-beginning", "--max-messages", "2")
    assert group in barnabas("groups", *server, "--list").stdout.splitlines()
    done = barnabas(*of_group, "--describe")
    assert done.stderr == f"\nConsumer group '{group}' has no active members.\n"
    assert done.stdout.splitlines()[2].split() == [group, name, "0", "2", "3", "1", "-", "-", "-"]
    reset = barnabas(*of_group, "--reset-offsets", "--shift-by", "-1", "--topic", name, "--execute")
    assert reset.stdout.splitlines()[2].split() == [group, name, "0", "1"]
    assert barnabas(*of_group, "--reset-offsets", "--all-topics", status=1).stdout == ""
    assert barnabas(*of_group, "--reset-offsets", "--to-latest", status=1).stdout == ""
    assert barnabas(*of_group, "--describe", "--state").stdout.splitlines()[2].split()[3:] == [
        "-",
        "Empty",
        "0",
    ]
    done = barnabas(*of_group, "--delete")
    assert done.stdout == f"Deletion of requested consumer groups ('{group}') was successful.\n"
    assert group not in barnabas("groups", *server, "--list").stdout.splitlines()


def test_configs(broker: Broker, topic: TopicFactory, unique: UniqueName) -> None:
    configs, name, user = ("configs", "--bootstrap-server", broker.bootstrap), topic(), unique("user")
    of_topic = ("--entity-type", "topics", "--entity-name", name)
    done = barnabas(*configs, "--alter", *of_topic, "--add-config", "cleanup.policy=[compact,delete]")
    assert done.stdout == f"Completed updating config for topic {name}.\n"
    lines = barnabas(*configs, "--describe", *of_topic).stdout.splitlines()
    assert lines[0] == f"Dynamic configs for topic {name} are:"
    assert lines[1].startswith(
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:"
    )
    barnabas(*configs, "--alter", *of_topic, "--delete-config", "cleanup.policy,retention.ms")
    assert barnabas(*configs, "--describe", *of_topic).stdout.splitlines() == lines[:1]
    of_user = ("--entity-type", "users", "--entity-name", user)
    barnabas(*configs, "--alter", *of_user, "--add-config", "SCRAM-SHA-256=[password=secret]")
    barnabas(*configs, "--alter", *of_user, "--add-config", "producer_byte_rate=1000")
    assert barnabas(*configs, "--describe", *of_user).stdout.splitlines() == [
        f"Quota configs for user-principal '{user}' are producer_byte_rate=1000.0",
        f"SCRAM credential configs for user-principal '{user}' are SCRAM-SHA-256=iterations=4096",
    ]
    ip = (*configs, "--alter", "--ip", "127.0.0.2")
    barnabas(*ip, "--add-config", "connection_creation_rate=1000")
    barnabas(*ip, "--delete-config", "connection_creation_rate")
    done = barnabas(*ip, "--delete-config", "connection_creation_rate", status=1)
    assert (done.stdout, done.stderr) == ("", "Invalid config(s): connection_creation_rate\n")


@pytest.mark.barnabas_only
def test_acls() -> None:
    security = Security(protocol="PLAINTEXT", acls=[], super_users=["User:ANONYMOUS"])
    with InProcessBroker(security=security) as broker:
        acls = ("acls", "--bootstrap-server", broker.bootstrap_servers)
        of_topic = ("--topic", "orders", "--allow-principal", "User:alice", "--operation", "Read")
        entry = "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)"
        pattern = "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)"
        assert (
            barnabas(*acls, "--add", *of_topic).stdout
            == f"Adding ACLs for resource `{pattern}`: \n \t{entry}\n\n"
        )
        assert (
            barnabas(*acls, "--add", *of_topic).stdout
            == f"Acl (pattern={pattern}, entry={entry}) already exists.\n"
        )
        listed = f"Current ACLs for resource `{pattern}`:\n\t{entry}\n\n"
        assert barnabas(*acls, "--list").stdout == listed
        remove = (*acls, "--remove", "--topic", "orders")
        assert "(y/n)" in barnabas(*remove, stdin="n\n").stdout
        assert barnabas(*acls, "--list", "--topic", "orders").stdout == listed
        barnabas(*remove, stdin="y\n")
        assert barnabas(*acls, "--list").stdout == ""


def test_offsets(broker: Broker, topic: TopicFactory) -> None:
    server, name = ("--bootstrap-server", broker.bootstrap), topic(2)
    barnabas("produce", *server, "--topic", name, "--reader-property", "parse.key=true", stdin="a\t1\na\t2\n")
    printed = barnabas("offsets", *server, "--topic", name).stdout.splitlines()
    assert sorted(line.removeprefix(f"{name}:")[2:] for line in printed) == ["0", "2"]
    earliest = ("offsets", *server, "--topic-partitions", f"{name}:1-", "--time", "earliest")
    assert barnabas(*earliest).stdout == f"{name}:1:0\n"


def test_cluster(broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    assert barnabas("cluster", "cluster-id", *server).stdout.startswith("Cluster ID: ")
    head, line = barnabas("cluster", "list-endpoints", *server).stdout.splitlines()
    assert head.split() == ["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"]
    assert line.split() == ["1", broker.host, str(broker.port), "null", "unfenced", "broker"]
    for wrong in (
        (),
        ("no-such-command", *server),
        ("unregister", *server),
        ("unregister", "--id", "77", *server),
    ):
        assert barnabas("cluster", *wrong, status=1).stdout == ""
    printed = barnabas("api-versions", *server).stdout
    assert printed.startswith(
        f"{broker.bootstrap} (id: 1 rack: null isFenced: false) -> (\n\tProduce(0): 0 to 13 [usable: 13],\n"
    )


def test_the_class_of_a_tool(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """kafka-run-class.sh, as start scripts call it for offsets."""
    name = topic()
    arguments = ["kafka.tools.GetOffsetShell", "--bootstrap-server", broker.bootstrap, "--topic", name]
    assert run_script("kafka-run-class.sh", tmp_path, *arguments).stdout == f"{name}:0:0\n"
    done = run_script("kafka-run-class.sh", tmp_path, "no.such.Class")
    assert (done.returncode, done.stderr) == (
        1,
        "kafka-run-class.sh: no.such.Class is not among the tools here\n",
    )


@pytest.mark.barnabas_only
@pytest.mark.parametrize("user", [False, True])
def test_storage(tmp_path: Path, user: bool) -> None:
    """What start scripts do: an id, the directories, then the node, and all of it again."""
    cluster_id = barnabas("storage", "random-uuid").stdout.strip()
    assert len(cluster_id) == 22
    file = tmp_path / "server.properties"
    port = free_port()
    file.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
    )
    users = ("--add-scram", "SCRAM-SHA-256=[name=alice,password=secret]") if user else ()
    format_ = ("storage", "format", "-t", cluster_id, "-c", str(file), "--standalone", *users)
    assert barnabas(*format_).stdout == f"Formatting data directory {tmp_path / 'data'}.\n"
    done = barnabas(*format_, status=1)
    assert (done.stdout, "--ignore-formatted" in done.stderr) == ("", True)
    assert (
        barnabas(*format_, "--ignore-formatted").stdout
        == "All of the log directories are already formatted.\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "barnabas.cli", "start", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as node:
        assert node.stdout is not None
        try:
            assert f"cluster={cluster_id}" in node.stdout.readline()
            server = ("--bootstrap-server", f"127.0.0.1:{port}")
            assert barnabas("cluster", "cluster-id", *server).stdout == f"Cluster ID: {cluster_id}\n"
            described = barnabas("configs", "--describe", "--user", "alice", *server).stdout
            assert ("SCRAM-SHA-256=iterations=4096" in described) == user
        finally:
            node.terminate()


def test_storage_refuses(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("process.roles=broker,controller\nnode.id=1\n")
    format_ = ("storage", "format", "-c", str(file))
    for wrong in (
        (),
        ("-t", "abc", "--feature", "kraft.version=1"),
        ("-t", "abc", "--initial-controllers", "1@a:1:b"),
        ("-t", "abc", "--standalone", "--no-initial-controllers"),
    ):
        assert barnabas(*format_, *wrong, status=1).stdout == ""
    assert barnabas("storage", "format", "-t", "abc", "-c", str(tmp_path / "none"), status=1).stdout == ""
    assert barnabas("storage", "no-such-command", status=1).stdout == ""


@pytest.mark.barnabas_only
def test_a_topic_whose_configs_are_not_for_the_user(tmp_path: Path) -> None:
    security = Security(
        protocol="SASL_PLAINTEXT",
        users={"alice": "secret", "admin": "secret"},
        mechanisms=["PLAIN"],
        acls=[Acl("User:alice", "DESCRIBE", topic="orders")],
        super_users=["User:admin"],
    )
    with InProcessBroker(security=security) as broker:
        broker.create_topic("orders")
        file = tmp_path / "client.properties"
        file.write_text(str(broker.security.client("java", user="alice")))
        server = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(file))
        assert barnabas("topics", *server, "--list").stdout == "orders\n"
        done = barnabas("topics", *server, "--describe", status=1)
        assert done.stdout.startswith("Error while executing topic command : ")
