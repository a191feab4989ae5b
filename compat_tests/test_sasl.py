"""SASL: real clients, and the states of a connection before its client is authenticated."""

from __future__ import annotations

import re
import struct
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.raw import RawConnection, array, request, string
from compat_tests.harness.sasl_clients import CLIENTS, Login

PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="admin-secret" user_admin="admin-secret" user_alice="alice-secret";'
)
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_USERS,
}
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
WITH_SCRAM = {
    **SETTINGS,
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": SCRAM_MODULE,
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": SCRAM_MODULE,
}
ALICE = Login("PLAIN", "alice", "alice-secret")
WRONG = "Authentication failed: Invalid username or password"


@pytest.fixture(scope="module")
def secured(module_broker: BrokerFactory) -> Broker:
    return module_broker(SETTINGS)


def test_clients_send_and_read(secured: Broker, unique: UniqueName) -> None:
    for name, round_trip in CLIENTS.items():
        assert round_trip(secured.bootstrap, unique("topic"), ALICE) == name.encode()


def test_clients_are_told_why_they_are_refused(secured: Broker, unique: UniqueName) -> None:
    wrong = ALICE._replace(password="wrong")
    with pytest.raises(Exception, match=WRONG):
        CLIENTS["confluent"](secured.bootstrap, unique("topic"), wrong)
    with pytest.raises(Exception, match=r"(?i)authentication|unable to bootstrap"):
        CLIENTS["aiokafka"](secured.bootstrap, unique("topic"), wrong)
    with pytest.raises(
        Exception, match=r"(?i)authentication|unable to bootstrap"
    ):  # it tries again until its time is over
        KafkaProducer(bootstrap_servers=secured.bootstrap, bootstrap_timeout_ms=2000, **wrong.python())
    assert "wrong" not in secured.log_text()
    assert "alice-secret" not in secured.log_text()


def test_java_tools_authenticate_themselves(
    secured: Broker, unique: UniqueName, java_tools: JavaTools, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(ALICE.java())
    server = ("--bootstrap-server", secured.bootstrap, "--command-config", str(config))
    name = unique("topic")
    java_tools.run("kafka-topics", *server, "--create", "--topic", name)
    java_tools.run("kafka-console-producer", *server, "--topic", name, stdin="hello\n")
    read = java_tools.run(
        "kafka-console-consumer", *server, "--topic", name, "--from-beginning", "--max-messages", "1"
    )
    assert read.stdout == "hello\n"
    config.write_text(ALICE._replace(password="wrong").java())
    refused = java_tools.run("kafka-topics", *server, "--list", status=1)
    assert f"SaslAuthenticationException: {WRONG}" in refused.output
    config.write_text(Login("SCRAM-SHA-256", "alice", "alice-secret").java())
    refused = java_tools.run("kafka-topics", *server, "--list", status=1)
    assert "Client SASL mechanism 'SCRAM-SHA-256' not enabled in the server" in refused.output


def test_users_of_scram(
    fresh_broker: BrokerFactory, unique: UniqueName, java_tools: JavaTools, tmp_path: Path
) -> None:
    broker = fresh_broker(WITH_SCRAM)
    config = tmp_path / "client.properties"
    config.write_text(ALICE.java())
    configs = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config))
    olga = ("--entity-type", "users", "--entity-name", "olga")
    for secret in ("SCRAM-SHA-256=[password=first]", "SCRAM-SHA-512=[iterations=8192,password=second]"):
        java_tools.run("kafka-configs", *configs, "--alter", "--add-config", secret, *olga)
    shown = java_tools.run("kafka-configs", *configs, "--describe", *olga).stdout
    assert "SCRAM-SHA-256=iterations=4096" in shown
    assert "SCRAM-SHA-512=iterations=8192" in shown
    broker.restart()
    configs = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config))
    for mechanism, password in (("SCRAM-SHA-256", "first"), ("SCRAM-SHA-512", "second")):
        login = Login(mechanism, "olga", password)
        for name, round_trip in CLIENTS.items():
            assert round_trip(broker.bootstrap, unique("topic"), login) == name.encode()
        config.write_text(login.java())
        assert "__" not in java_tools.run("kafka-topics", *configs, "--list", "--exclude-internal").stdout
    generic = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    for wrong in (Login("SCRAM-SHA-256", "olga", "second"), Login("SCRAM-SHA-256", "unknown", "first")):
        config.write_text(wrong.java())
        refused = java_tools.run("kafka-topics", *configs, "--list", status=1)
        assert f"SaslAuthenticationException: {generic}" in refused.output
        with pytest.raises(Exception, match=generic):
            CLIENTS["confluent"](broker.bootstrap, unique("topic"), wrong)
    assert not any(secret in broker.log_text() for secret in ("first", "second"))


@pytest.mark.barnabas_only
def test_users_of_plain_change_while_the_broker_runs(
    fresh_broker: BrokerFactory, java_tools: JavaTools, tmp_path: Path
) -> None:
    """Kafka takes the same change up with its next start."""
    secured = fresh_broker(SETTINGS)
    config = tmp_path / "client.properties"
    config.write_text(ALICE.java())
    server = ("--bootstrap-server", secured.bootstrap, "--command-config", str(config))
    own = ("--entity-type", "brokers", "--entity-name", "1")
    users = PLAIN_USERS.replace("alice-secret", "new-secret")
    changed = f"listener.name.sasl_plaintext.plain.sasl.jaas.config=[{users}]"
    java_tools.run("kafka-configs", *server, *own, "--alter", "--add-config", changed)

    def log_in(password: str) -> int:
        with RawConnection(secured.bootstrap) as connection:
            connection.ask(handshake("PLAIN"))
            return result(connection.ask(authenticate(plain(password=password))))[0]

    eventually(lambda: log_in("new-secret") == 0)
    assert log_in("alice-secret") == 58
    config.write_text(ALICE._replace(password="new-secret").java())
    shown = java_tools.run("kafka-configs", *server, *own, "--describe", "--all").output
    assert "sasl.jaas.config=null sensitive=true" in shown
    assert "-secret" not in shown + secured.log_text()


OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
WITH_TOKENS = {
    **SETTINGS,
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
        f'{OAUTHBEARER_MODULE} unsecuredValidatorPrincipalClaimName="sub" unsecuredLoginStringClaim_sub="admin";'
    ),
}


def test_unsecured_tokens(
    fresh_broker: BrokerFactory, unique: UniqueName, java_tools: JavaTools, tmp_path: Path
) -> None:
    broker = fresh_broker(WITH_TOKENS)
    name = unique("topic")
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=alice",
        }
    )
    producer.produce(name, b"librdkafka")
    assert producer.flush(30) == 0
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f'sasl.jaas.config={OAUTHBEARER_MODULE} unsecuredLoginStringClaim_sub="bob";\n'
    )
    server = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config))
    read = java_tools.run(
        "kafka-console-consumer", *server, "--topic", name, "--from-beginning", "--max-messages", "1"
    )
    assert read.stdout == "librdkafka\n"
    config.write_text(config.read_text().replace('unsecuredLoginStringClaim_sub="bob"', ""))
    refused = java_tools.run("kafka-topics", *server, "--list", status=1)
    assert "org.apache.kafka.common" in refused.output


def test_clients_authenticate_themselves_again(fresh_broker: BrokerFactory, unique: UniqueName) -> None:
    """Over several lifetimes of their sessions no request fails."""
    broker = fresh_broker({**SETTINGS, "connections.max.reauth.ms": "1500"})
    name = unique("topic")
    failed: list[object] = []
    confluent = Producer(
        {"bootstrap.servers": broker.bootstrap, "error_cb": failed.append, **ALICE.librdkafka()}
    )
    python = KafkaProducer(bootstrap_servers=broker.bootstrap, retries=0, **ALICE.python())
    ends_at = time.monotonic() + 5
    while time.monotonic() < ends_at:
        confluent.produce(name, b"x")
        assert confluent.flush(10) == 0
        python.send(name, b"y").get(10)
    python.close()
    assert failed == []


def test_a_session_past_its_life_is_closed(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker({**SETTINGS, "connections.max.reauth.ms": "1000"})
    with RawConnection(broker.bootstrap) as connection:
        connection.ask(handshake("PLAIN"))
        answer = connection.ask(authenticate(plain()))
        assert struct.unpack(">q", answer[-8:]) == (1000,)

        def is_closed() -> bool:
            try:
                connection.ask(METADATA)
            except (EOFError, ConnectionError):
                return True
            return False

        eventually(is_closed, 10)
    assert "Traceback" not in broker.log_text()


def test_a_delegation_token_logs_in_for_its_owner(
    fresh_broker: BrokerFactory, unique: UniqueName, java_tools: JavaTools, tmp_path: Path
) -> None:
    broker = fresh_broker({**WITH_SCRAM, "delegation.token.secret.key": "a secret of the cluster"})
    config = tmp_path / "client.properties"
    config.write_text(ALICE.java())
    server = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config))
    made = java_tools.run("kafka-delegation-tokens", *server, "--create", "--max-life-time-period", "-1")
    found = re.search(r"^(\S{22})\s+(\S{88})\s+User:alice", made.stdout, re.MULTILINE)
    assert found is not None, made.output
    token_id, hmac = found.groups()
    as_token = Login("SCRAM-SHA-512", token_id, hmac).java().replace(";\n", ' tokenauth="true";\n')
    config.write_text(as_token)
    name = unique("topic")
    create = ("--create", "--if-not-exists", "--topic", name)  # Kafka's brokers know the token a little later
    eventually(lambda: java_tools.run("kafka-topics", *server, *create, status=None).status == 0)
    refused = java_tools.run(
        "kafka-delegation-tokens", *server, "--create", "--max-life-time-period", "-1", status=None
    )
    assert "DelegationTokenDisabledException" not in refused.output
    assert "not allowed" in refused.output
    config.write_text(ALICE.java())
    ended = ("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    java_tools.run("kafka-delegation-tokens", *server, *ended)
    config.write_text(as_token)

    def is_refused() -> bool:
        listed = java_tools.run("kafka-topics", *server, "--list", status=None)
        return listed.status == 1 and "SaslAuthenticationException" in listed.output

    eventually(is_refused)
    assert hmac not in broker.log_text()


# -- states, with plain sockets


def handshake(mechanism: str, version: int = 1) -> bytes:
    return request(17, version, string(mechanism))


def authenticate(token: bytes, version: int = 1) -> bytes:
    return request(36, version, struct.pack(">i", len(token)) + token)


def plain(user: str = "alice", password: str = "alice-secret", authzid: str = "") -> bytes:
    return f"{authzid}\0{user}\0{password}".encode()


def result(answer: bytes) -> tuple[int, str | None]:
    """Error code and message of a SaslAuthenticate response."""
    error, length = struct.unpack_from(">hh", answer)
    return error, None if length < 0 else answer[4 : 4 + length].decode()


METADATA = request(3, 1, array([]))


def test_requests_are_served_after_the_authentication(secured: Broker) -> None:
    with RawConnection(secured.bootstrap) as connection:
        assert connection.ask(request(18, 0, b""))[:2] == b"\0\0"
        assert connection.ask(handshake("PLAIN")) == b"\0\0" + array([string("PLAIN")])
        assert connection.ask(authenticate(plain()))[:2] == b"\0\0"
        assert len(connection.ask(METADATA)) > 10
        assert connection.ask(handshake("PLAIN"))[:2] == struct.pack(">h", 34)
        assert result(connection.ask(authenticate(plain()))) == (
            34,
            "SaslAuthenticate request received after successful authentication",
        )


def test_a_handshake_of_version_0_is_followed_by_bare_tokens(secured: Broker) -> None:
    with RawConnection(secured.bootstrap) as connection:
        assert connection.ask(handshake("PLAIN", 0))[:2] == b"\0\0"
        connection.send(plain())
        assert connection.receive() == b""
        assert len(connection.ask(METADATA)) > 10
    with RawConnection(secured.bootstrap) as connection:
        connection.ask(handshake("PLAIN", 0))
        connection.send(plain(password="wrong"))
        assert connection.is_closed()


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (plain(password="wrong"), WRONG),
        (plain(user="unknown"), WRONG),
        (plain(user=""), "Authentication failed: username not specified"),
        (plain(password=""), "Authentication failed: password not specified"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"a\0b\0c\0d\0e", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\xff\xfe\0\xff\0\xff", WRONG),
        (
            plain(authzid="admin"),
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
    ],
)
def test_refusals_of_plain(secured: Broker, token: bytes, text: str) -> None:
    with RawConnection(secured.bootstrap) as connection:
        connection.ask(handshake("PLAIN"))
        assert result(connection.ask(authenticate(token))) == (58, text)
        assert connection.is_closed()


def test_a_mechanism_that_is_not_enabled(secured: Broker) -> None:
    with RawConnection(secured.bootstrap) as connection:
        assert connection.ask(handshake("GSSAPI")) == struct.pack(">h", 33) + array([string("PLAIN")])
        assert connection.is_closed()


@pytest.mark.parametrize(
    "frames",
    [
        [authenticate(plain())],
        [METADATA],
        [request(0, 7, b"")],
        [b""],
        [b"\0"],
        [request(18, 0, b""), request(18, 0, b"")],
        [request(17, 2, string("PLAIN"))],
        [handshake("PLAIN"), authenticate(plain(), 3)],
        [handshake("PLAIN"), b"garbage"],
        [handshake("PLAIN", 0), b"garbage"],
        [handshake("PLAIN", 0), authenticate(plain())],
    ],
)
def test_connections_that_end_without_an_answer(secured: Broker, frames: list[bytes]) -> None:
    with RawConnection(secured.bootstrap) as connection:
        for frame in frames[:-1]:
            connection.ask(frame)
        connection.send(frames[-1])
        assert connection.is_closed()


def test_another_request_in_place_of_a_token(secured: Broker) -> None:
    with RawConnection(secured.bootstrap) as connection:
        connection.ask(handshake("PLAIN"))
        assert connection.ask(request(16, 0, b""))[:2] == struct.pack(">h", 34)
        assert connection.is_closed()
    with RawConnection(secured.bootstrap) as connection:
        connection.ask(handshake("PLAIN"))
        assert connection.ask(request(15, 0, array([string("g")]))) == (
            array([struct.pack(">h", 34) + string("g") + string("") * 3 + array([])])
        ), "each group has the error"
        assert connection.is_closed()
    with RawConnection(secured.bootstrap) as connection:
        connection.ask(handshake("PLAIN"))
        connection.send(request(15, 0, array([string("g")])[:-1]))
        assert connection.is_closed()


def test_an_unsupported_version_of_api_versions_may_be_asked_again(secured: Broker) -> None:
    with RawConnection(secured.bootstrap) as connection:
        assert connection.ask(request(18, 99, b"", flexible=True))[:2] == struct.pack(">h", 35)
        assert connection.ask(request(18, 0, b""))[:2] == b"\0\0"
        assert connection.ask(handshake("PLAIN"))[:2] == b"\0\0"


@pytest.mark.parametrize("size", [524288 + 1, -1])
def test_frames_before_the_authentication_are_bounded(secured: Broker, size: int) -> None:
    with RawConnection(secured.bootstrap) as connection:
        connection.socket.sendall(struct.pack(">i", size))
        assert connection.is_closed()
    with RawConnection(secured.bootstrap) as connection:
        connection.ask(handshake("PLAIN"))
        connection.socket.sendall(struct.pack(">i", size))
        assert connection.is_closed()


def test_a_token_of_the_largest_size_is_refused_as_a_token(secured: Broker) -> None:
    token = b"\0alice\0".ljust(524288 - 100, b"x")
    with RawConnection(secured.bootstrap) as connection:
        connection.ask(handshake("PLAIN"))
        assert result(connection.ask(authenticate(token))) == (58, WRONG)


def test_a_plaintext_listener_expects_no_sasl(broker: Broker) -> None:
    with RawConnection(broker.bootstrap) as connection:
        assert connection.ask(handshake("PLAIN"))[:2] == struct.pack(">h", 34)
        assert result(connection.ask(authenticate(plain())))[0] == 34
