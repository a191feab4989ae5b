"""`python -m compat_tests.bench.security`: TLS, logins and ACLs, on this broker and on Apache Kafka 4.3.1, in one run.

Both brokers have four listeners: PLAINTEXT, whose clients are super users and administer; SSL; SASL_SSL with PLAIN; and
SASL_PLAINTEXT with PLAIN, whose user has ACLs. Certificates have EC keys (P-256), in PEM; the cipher suite is what client and broker
choose. Workloads and rounds alternate between the brokers. Measures as in `compat_tests.bench`.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave some of these out
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from barnabas.testing.ports import free_port
from compat_tests.bench import driver, prepared
from compat_tests.bench.report import Results
from compat_tests.bench.startup import WarmApacheBroker
from compat_tests.bench.workloads import Measures, rates, topic_of
from compat_tests.harness import raw
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds
from compat_tests.harness.tls_files import TlsFiles

USER, PASSWORD = "alice", "alice-secret"
ACLS: Final = 10_000
_WARM_UP_ROUNDS = {"Apache Kafka": 3, "Barnabas": 1}
_LISTENERS = ("PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT")
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
# name, records of 1 KB in a batch, batches of a full-scale run
_SIZES = (("1 MB", 1000, 300), ("16 KB", 16, 6000))
_SMALL = prepared.batch(1, 100)


class Secured:
    """A broker and how its clients connect."""

    def __init__(self, broker: Broker, files: TlsFiles) -> None:
        self.broker = broker
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.load_verify_locations(files.anchors)

    def at(self, listener: str) -> str:
        """host:port of a listener."""
        return self.broker.listeners[listener]

    def tls(self, plain: socket.socket) -> socket.socket:
        """A handshake without resumption."""
        return self._tls.wrap_socket(plain, server_hostname="127.0.0.1")

    def tls_and_login(self, plain: socket.socket) -> socket.socket:
        return login(self.tls(plain))


def login(connected: socket.socket) -> socket.socket:
    """SaslHandshake v1 and SaslAuthenticate v1 with PLAIN."""
    token = f"\0{USER}\0{PASSWORD}".encode()
    _ask(connected, raw.request(_SASL_HANDSHAKE, 1, raw.string("PLAIN")))
    _ask(connected, raw.request(_SASL_AUTHENTICATE, 1, struct.pack(">i", len(token)) + token))
    return connected


def _ask(connected: socket.socket, request: bytes) -> None:
    connected.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _read(connected, 4))
    (error,) = struct.unpack_from(">h", _read(connected, size), 4)
    assert error == 0, f"the login is refused: error {error}"


def _read(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connected.recv(count - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


def transfers(secured: Secured, scale: float) -> Measures:
    """Produce and fetch over TLS: one connection, large and small batches; then one record of 100 B a request."""
    broker, address = secured.broker, secured.at("SSL")
    measures: Measures = {}
    for size, records, full in _SIZES:
        batch = prepared.batch(records, 1000)
        requests = max(50, int(full * scale))
        volume = requests * len(batch)
        with topic_of(broker) as topic:
            before = cpu_seconds(broker.pid)
            seconds = driver.produce_many(address, topic, batch, records, requests, secure=secured.tls)
            measures |= rates(f"TLS, produce {size}", volume, seconds, cpu_seconds(broker.pid) - before)
            before = cpu_seconds(broker.pid)
            seconds = driver.fetch_many(address, topic, len(batch), records, requests, 5, secured.tls)
            measures |= rates(f"TLS, fetch {size}", volume, seconds, cpu_seconds(broker.pid) - before)
    return measures | _small(secured, "TLS", "SSL", secured.tls, scale)


def _small(secured: Secured, name: str, listener: str, secure: driver.Secure, scale: float) -> Measures:
    broker = secured.broker
    requests = max(2000, int(40_000 * scale))
    with topic_of(broker) as topic:
        before = cpu_seconds(broker.pid)
        seconds = driver.produce_small(secured.at(listener), topic, _SMALL, requests, 10, 5, secure)
        used = cpu_seconds(broker.pid) - before
    return {
        f"{name}, produce 100 B, 10 connections, requests/s": requests / seconds,
        f"{name}, produce 100 B, 10 connections, CPU us each": used / requests * 1e6,
    }


def connects(secured: Secured, scale: float) -> Measures:
    """One after the other: TLS handshake, login, one request, close."""
    measures: Measures = {}
    number = max(50, int(400 * scale))
    hello = prepared.api_versions()
    ways: tuple[tuple[str, driver.Secure], ...] = (("SSL", secured.tls), ("SASL_SSL", secured.tls_and_login))
    for listener, secure in ways:
        before = cpu_seconds(secured.broker.pid)
        started = time.perf_counter()
        for _ in range(number):
            connection = driver.Connection(secured.at(listener), 1 << 12, secure)
            connection.ask(hello)
            connection.close()
        seconds = time.perf_counter() - started
        measures[f"{listener}, connections/s"] = number / seconds
        measures[f"{listener}, CPU us a connection"] = (
            (cpu_seconds(secured.broker.pid) - before) / number * 1e6
        )
    return measures


def authorized(secured: Secured, scale: float) -> Measures:
    """One record of 100 B a request, by a user with ACLs."""
    return _small(secured, f"{ACLS + 1:,} ACLs", "SASL_PLAINTEXT", login, scale)


ROUND: tuple[Callable[[Secured, float], Measures], ...] = (transfers, connects, authorized)


def make_brokers(folder: Path, files: TlsFiles) -> dict[str, Broker]:
    """Both brokers, started, with their ACLs."""
    brokers: dict[str, Broker] = {}
    for name, kind in (("Apache Kafka", WarmApacheBroker), ("Barnabas", BarnabasBroker)):
        protocols = ",".join(f"{each}:{each}" for each in _LISTENERS)
        broker = kind(
            folder / name.split()[0].lower(),
            {
                "listeners": ",".join(f"{each}://127.0.0.1:{free_port()}" for each in _LISTENERS),
                "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
                **files.properties(),
                "sasl.enabled.mechanisms": "PLAIN",
                **{f"listener.name.{each}.plain.sasl.jaas.config": _JAAS for each in ("sasl_ssl", "sasl_plaintext")},
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
        )  # fmt: skip
        broker.start()
        brokers[name] = broker
        make_acls(broker)
    return brokers


def make_acls(broker: Broker) -> None:
    """The user may write all topics of the benchmark; the other ACLs are of other users and topics."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})

    def acl(name: str, pattern: ResourcePatternType, user: str) -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC, name, pattern, f"User:{user}", "*", AclOperation.WRITE, AclPermissionType.ALLOW
        )  # fmt: skip

    bindings = [acl("bench-", ResourcePatternType.PREFIXED, USER)]
    for number in range(ACLS):
        pattern = ResourcePatternType.PREFIXED if number % 10 == 0 else ResourcePatternType.LITERAL
        bindings.append(acl(f"topic-{number}", pattern, f"user-{number % 100}"))
    for first in range(0, len(bindings), 1000):
        for made in admin.create_acls(bindings[first : first + 1000]).values():
            made.result(60)


def main() -> int:
    """Run everything and print the table to standard output."""
    parser = argparse.ArgumentParser(description="TLS, SASL and ACLs, beside Apache Kafka 4.3.1.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of each workload (default 1.0)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        files = TlsFiles(Path(folder))
        brokers = make_brokers(Path(folder), files)
        results = Results(list(brokers))
        try:
            secured = {name: Secured(broker, files) for name, broker in brokers.items()}
            for name, one in secured.items():
                for _ in range(_WARM_UP_ROUNDS[name]):
                    for workload in ROUND:
                        workload(one, options.scale)
            for number in range(options.rounds):
                for workload in ROUND:
                    for name, one in list(secured.items())[:: 1 if number % 2 == 0 else -1]:
                        results.add(name, workload(one, options.scale))
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        finally:
            for broker in brokers.values():
                if broker.alive():
                    broker.stop()
    print(
        f"Medians of {options.rounds} rounds (lowest - highest); {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {ssl.OPENSSL_VERSION}\n\n{results.table()}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
