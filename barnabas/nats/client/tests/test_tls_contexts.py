"""TLS contexts of connections to nats-servers."""

from __future__ import annotations

import pytest

from barnabas.broker.cluster.tests.test_controller_tls import FILES, assert_rules
from barnabas.nats.client.connection_settings import ConnectionSettings, ServerAddress
from barnabas.nats.client.handshake import tls_context


@pytest.mark.parametrize("ca_file", ["", str(FILES / "ca.pem")], ids=["the system's authorities", "a file"])
def test_contexts_have_the_same_rules_as_those_between_nodes(ca_file: str) -> None:
    server = ServerAddress("127.0.0.1", tls=True)
    context = tls_context(ConnectionSettings(servers=(server,), tls_ca_file=ca_file), server, None)
    assert context is not None
    assert_rules(context)
    assert context.check_hostname
