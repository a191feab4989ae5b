"""kafkajs' transactions with the broker under test; the same file runs with the test broker as one of the examples."""

from __future__ import annotations

import dataclasses

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.languages.toolchains import LANGUAGES, run


@pytest.mark.timeout(900)  # the first run fetches the client
def test_kafkajs(broker: Broker) -> None:
    (node,) = (each for each in LANGUAGES if each.name == "node")
    missing = node.missing()
    if missing:
        pytest.skip(f"kafkajs needs {missing}")
    language = dataclasses.replace(
        node,
        test=(*node.test, "transactions.test.js"),
        environment={**node.environment, "BOOTSTRAP_SERVERS": broker.bootstrap},
    )
    assert run(language) == 4
