"""Kafka Streams' word count, exactly once, at a broker with TLS, logins and ACLs: with the rights that its guide names, no more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from barnabas.testing import Acl, Broker, Security
from compat_tests.company.test_streams import SOURCE
from compat_tests.harness.java_program import JavaProgram

pytestmark = [pytest.mark.jvm, pytest.mark.barnabas_only]

LINES = ["the quick brown fox", "jumps over the lazy dog", "the end"] * 20
ALICE = "User:alice"
ACLS = [
    Acl(ALICE, "READ", topic="lines"),
    Acl(ALICE, "WRITE", topic="counts"),
    Acl(ALICE, "ALL", topic="words-", prefixed=True),  # its internal topics
    Acl(ALICE, "ALL", group="words"),
    Acl(ALICE, "ALL", transactional_id="words", prefixed=True),
]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_word_count(mechanism: str, tmp_path: Path) -> None:
    security = Security(users={"alice": "alice-secret"}, mechanisms=[mechanism], acls=ACLS)
    with Broker({"group.min.session.timeout.ms": 500}, security=security) as broker:
        for topic in ("lines", "counts"):
            broker.create_topic(topic, 2)
        broker.seed("lines", LINES)
        settings = tmp_path / "alice.properties"
        settings.write_text(broker.security.client("java", user="alice"))
        state = str(tmp_path / "state")
        arguments = [
            broker.bootstrap_servers,
            "words",
            "lines",
            "counts",
            state,
            "exactly_once_v2",
            str(settings),
        ]

        def counts() -> dict[str, int]:
            return {
                (record.key or b"").decode(): int(record.value or b"") for record in broker.records("counts")
            }

        with JavaProgram(SOURCE, arguments, tmp_path) as program:
            program.wait_until(lambda: counts() == Counter(word for line in LINES for word in line.split()))
