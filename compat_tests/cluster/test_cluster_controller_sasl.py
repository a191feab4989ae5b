"""Controller listeners where nodes log in by SASL: nodes that die, a wrong password, and a cluster that begins in plaintext."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from barnabas.testing.ports import free_port
from compat_tests.harness.cluster import THREE, Cluster
from compat_tests.harness.cluster_work import Work, create_topic
from compat_tests.harness.confluent_admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.sasl_clients import Login
from compat_tests.harness.tls_files import TlsFiles
from compat_tests.harness.token_issuer import SECRET, TokenIssuer

PLAIN = Login("PLAIN", "node", "node-secret")
SCRAM = Login("SCRAM-SHA-512", "node", "node-secret")
SEPARATE = {1: "controller", 2: "controller", 3: "controller", 11: "broker", 12: "broker", 13: "broker"}


def properties_of(
    login: Login, protocol: str = "SASL_PLAINTEXT", listener: str = "CONTROLLER"
) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}"
    return {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{listener}:{protocol}",
        "sasl.mechanism.controller.protocol": login.mechanism,
        f"{prefix}.sasl.enabled.mechanisms": login.mechanism,
        **jaas_of(login, listener),
    }


def jaas_of(login: Login, listener: str = "CONTROLLER") -> dict[str, str]:
    entry = login.jaas()
    if login.mechanism == "PLAIN":
        entry = entry.replace(";", f' user_{PLAIN.user}="{PLAIN.password}";')
    return {f"listener.name.{listener.lower()}.{login.mechanism.lower()}.sasl.jaas.config": entry}


def put_user(cluster: Cluster, login: Login) -> None:
    """Make the first user of a cluster, on its first voter."""
    first = cluster.nodes[1]
    first.directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "barnabas.cli", "format"]
    for name, value in first.settings.items():
        command += ["--set", f"{name}={value}"]
    command += ["--add-scram", f"{login.mechanism}=[name={login.user},password={login.password}]"]
    subprocess.run(command, check=True, timeout=60, cwd=first.directory)


def alter_user(cluster: Cluster, login: Login) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(login.user, info, login.password.encode())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for altered in admin.alter_user_scram_credentials([wanted]).values():
        altered.result(60)


def check_logs(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        assert "Traceback" not in node.log_text()
        assert "-secret" not in node.log_text()


@pytest.fixture
def made(fresh_cluster: ClusterFactory) -> Iterator[list[Cluster]]:
    clusters: list[Cluster] = []
    yield clusters
    for cluster in clusters:
        check_logs(cluster)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("login", "roles"),
    [
        pytest.param(PLAIN, THREE, marks=pytest.mark.long),
        pytest.param(SCRAM, SEPARATE, marks=pytest.mark.barnabas_only),
    ],
    ids=["PLAIN-combined", "SCRAM-separate"],
)
def test_nodes_die_and_come_back(
    fresh_cluster: ClusterFactory, made: list[Cluster], login: Login, roles: Mapping[int, str]
) -> None:
    """The active controller, then all nodes at once, which come back with another password: before a controller is active no user
    of the metadata is known."""
    cluster = fresh_cluster(roles, settings=properties_of(login), start=False)
    made.append(cluster)
    if login is SCRAM:
        put_user(cluster, login)
    cluster.start()
    create_topic(cluster, "topic", partitions=3)
    work = Work(cluster)
    work.await_progress()
    dead = cluster.active_controller()
    cluster.kill(dead)
    assert cluster.active_controller() != dead
    work.await_progress()
    cluster.start(dead)
    work.await_progress()
    work.verify()
    if login is SCRAM:
        login = login._replace(password="other-secret")
        alter_user(cluster, login)
        for node in cluster.nodes.values():
            node.settings.update(jaas_of(login))
    cluster.kill(*cluster.nodes)
    cluster.start()
    cluster.wait_until_whole()
    again = cluster.active_controller()
    cluster.kill(again)
    cluster.start(again)


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[TokenIssuer]:
    issuer = TokenIssuer(tmp_path, lifetime_s=8)
    yield issuer
    issuer.close()


@pytest.mark.barnabas_only
@pytest.mark.timeout(300)
def test_nodes_log_in_with_tokens(
    fresh_cluster: ClusterFactory, made: list[Cluster], issuer: TokenIssuer
) -> None:
    """To brokers and to controllers, with tokens that end after seconds."""
    entry = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    cluster = fresh_cluster(SEPARATE, start=False)
    made.append(cluster)
    for number, node in cluster.nodes.items():
        node.settings.update(
            {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                "sasl.mechanism.controller.protocol": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": issuer.url,
                "sasl.oauthbearer.jwks.endpoint.url": f"file://{issuer.keys}",
            }
        )
        options = f'clientId="node-{number}" clientSecret="{SECRET}"'
        for listener in ("internal", "controller"):
            node.settings[f"listener.name.{listener}.oauthbearer.sasl.jaas.config"] = f"{entry} {options};"
        if number in cluster.addresses:
            listeners = f"PLAINTEXT://{cluster.addresses[number]},INTERNAL://127.0.0.1:{free_port()}"
            node.settings["listeners"] = node.settings["advertised.listeners"] = listeners
            node.settings["inter.broker.listener.name"] = "INTERNAL"
    cluster.start()
    create_topic(cluster, "topic", partitions=3)
    work = Work(cluster)
    eventually(lambda: all(issuer.given[f"node-{number}"] >= 4 for number in cluster.nodes), 60)
    work.await_progress()
    cluster.kill(cluster.active_controller(), 11)
    work.await_progress()
    cluster.start(*(number for number, node in cluster.nodes.items() if not node.alive()))
    cluster.wait_until_whole()
    work.verify()
    for node in cluster.nodes.values():
        assert "eyJ" not in node.log_text(), "no token is logged"


@pytest.mark.barnabas_only
@pytest.mark.timeout(300)
def test_a_node_with_a_wrong_password_is_no_member(
    fresh_cluster: ClusterFactory, made: list[Cluster]
) -> None:
    cluster = fresh_cluster(SEPARATE, settings=properties_of(SCRAM), start=False)
    made.append(cluster)
    put_user(cluster, SCRAM)
    outsider = cluster.add(14, "broker", properties_of(SCRAM) | jaas_of(SCRAM._replace(password="wrong")))
    inside = [node for node in cluster.nodes if node != 14]
    cluster.start(*inside)
    outsider.launch()
    text = (
        "the login by SASL has failed: Authentication failed during authentication due to invalid credentials"
    )
    eventually(lambda: f"there refuses a link with this one: {text}" in outsider.log_text(), 60)
    eventually(lambda: f"refused a link with a caller there: {text}" in cluster.nodes[1].log_text(), 60)
    assert cluster.nodes[1].log_text().count(text) <= 2, "repetitions are counted once a minute"
    assert sorted(cluster.metadata().brokers) == [11, 12, 13]
    cluster.kill(14)
    outsider.settings.update(jaas_of(SCRAM))
    cluster.start(14)
    assert sorted(cluster.metadata().brokers) == [11, 12, 13, 14]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_plaintext_cluster_becomes_one_with_logins(
    fresh_cluster: ClusterFactory, made: list[Cluster], tmp_path: Path
) -> None:
    """In three rounds, node by node: both listeners, the new one first, the new one alone."""
    cluster = fresh_cluster()
    made.append(cluster)
    new = {number: f"127.0.0.1:{free_port()}" for number in cluster.nodes}
    voters = ",".join(f"{number}@{address}" for number, address in new.items())
    tls = TlsFiles(tmp_path).properties()
    work = Work(cluster)

    def roll(names: str, further: Mapping[str, str]) -> None:
        opened = {"CONTROLLER": cluster.controllers, "SECURED": new}
        for number, node in cluster.nodes.items():
            work.await_progress()
            listeners = [f"{name}://{opened[name][number]}" for name in names.split(",")]
            node.settings["listeners"] = ",".join([f"PLAINTEXT://{cluster.addresses[number]}", *listeners])
            node.settings["controller.listener.names"] = names
            node.settings.update(further)
            cluster.restart(number)
            cluster.wait_until_whole()

    roll("CONTROLLER,SECURED", {**tls, **properties_of(PLAIN, "SASL_SSL", "SECURED")})
    roll("SECURED,CONTROLLER", {"controller.quorum.voters": voters})
    roll("SECURED", {})
    work.verify()
