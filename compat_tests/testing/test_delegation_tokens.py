"""Delegation tokens of the test broker, and their end by its clock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from barnabas.testing import Broker, Security
from compat_tests.harness.java_tools import JavaTools

pytestmark = [pytest.mark.jvm, pytest.mark.barnabas_only]

DAY_S = 86_400


def test_a_token_logs_in_until_the_clock_is_past_its_life(java_tools: JavaTools, tmp_path: Path) -> None:
    security = Security(users={"alice": "alice-secret"}, mechanisms=["SCRAM-SHA-256"])
    with Broker(security=security) as broker:
        broker.create_topic("orders")
        where = ("--bootstrap-server", broker.bootstrap_servers, "--command-config")
        alice, token = tmp_path / "alice", tmp_path / "token"
        alice.write_text(broker.security.client("java", "alice"))
        created = java_tools.run(
            "kafka-delegation-tokens", *where, str(alice), "--create", "--max-life-time-period", "-1"
        ).stdout
        found = re.search(r"^(\S{22}) +(\S+==) ", created, re.MULTILINE)
        assert found, created
        jaas = f'username="{found[1]}" password="{found[2]}" tokenauth="true";'
        text = re.sub(r"username=.*;", lambda _: jaas, broker.security.client("java", "alice"))
        token.write_text(text)
        assert "orders" in java_tools.run("kafka-topics", *where, str(token), "--list").stdout
        broker.clock.advance(2 * DAY_S)
        refused = java_tools.run("kafka-topics", *where, str(token), "--list", status=1).output
        assert "SaslAuthenticationException" in refused
        assert "orders" in java_tools.run("kafka-topics", *where, str(alice), "--list").stdout
