"""Mutual TLS on the controller listener, with certificates of one authority and of a stranger (tls/*.pem, for tests only)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cluster.controller_security import ControllerTls, controller_tls
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.ssl_contexts import check_handshake
from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.asyncio_runtime import AsyncioRuntime

FILES = Path(__file__).parent / "tls"


def tls(certificate: str, trusted: str = "ca.pem", **properties: str) -> ControllerTls:
    """Those of a node that trusts the certificates in a file. A stranger trusts himself as well, or he could not start."""
    anchors = (FILES / trusted).read_text() + (FILES / certificate).read_text() * (
        certificate == "stranger.pem"
    )
    config = BrokerConfig.from_properties(
        {
            "listener.security.protocol.map": "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": str(FILES / certificate),
            "ssl.truststore.certificates": anchors,
            **properties,
        }
    )
    assert config.controller_protocol == "SSL"
    return controller_tls(config, config.controller_listener)


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def runtime(request: pytest.FixtureRequest) -> Iterator[AsyncioRuntime]:
    runtime = AsyncioRuntime(prefer_uvloop=request.param)
    yield runtime
    runtime.close()


class Side:
    def __init__(self, heard: list[bytes], say: bytes) -> None:
        self._heard, self._say = heard, say

    def connection_made(self, transport: Any) -> None:
        transport.write(self._say)

    def data_received(self, data: bytes) -> None:
        self._heard.append(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Seen by what was heard."""


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("caller", "truststore", "is_heard"),
    [
        ("node.pem", "ca.pem", True),
        ("stranger.pem", "ca.pem", False),
        # each certificate of a truststore is an anchor, as in Java, not those of authorities alone
        ("node.pem", "node.pem", True),
        ("stranger.pem", "node.pem", False),
    ],
)
def test_only_nodes_with_a_trusted_certificate_are_accepted(
    runtime: AsyncioRuntime, caller: str, truststore: str, is_heard: bool
) -> None:
    served: list[bytes] = []
    called: list[bytes] = []
    failures: list[OSError] = []
    server = runtime.listen(
        "127.0.0.1", 0, lambda: Side(served, b"from the server"), tls=tls("node.pem", truststore).server
    )
    runtime.connect(
        "127.0.0.1",
        server.port,
        lambda: Side(called, b"hello"),
        failures.append,
        tls=tls(caller, truststore).client,
    )

    def look() -> None:  # who is heard is so in the end; who is not is given a while
        if is_heard and not (served and called) and not failures:
            runtime.call_later(0.01, look)
        else:
            runtime.stop()

    runtime.call_later(0.3, look)
    runtime.run()
    server.close()
    assert (served == [b"hello"], called == [b"from the server"]) == (is_heard, is_heard)


@pytest.mark.parametrize("side", ["server", "client"])
def test_the_rules_are_the_same_on_every_python(side: str) -> None:
    context: ssl.SSLContext = getattr(tls("node.pem"), side)
    assert_rules(context)
    assert context.check_hostname == (side == "client")


def assert_rules(context: ssl.SSLContext) -> None:
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    # 3.13's create_default_context sets it, and refuses authorities without a key usage extension
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


@pytest.mark.sockets
def test_nothing_is_sent_to_a_server_without_a_trusted_certificate(runtime: AsyncioRuntime) -> None:
    served: list[bytes] = []
    failures: list[OSError] = []
    server = runtime.listen("127.0.0.1", 0, lambda: Side(served, b""), tls=tls("stranger.pem").server)
    runtime.connect(
        "127.0.0.1", server.port, lambda: Side([], b"hello"), failures.append, tls=tls("node.pem").client
    )
    runtime.call_later(0.3, runtime.stop)
    runtime.run()
    server.close()
    assert served == []
    assert len(failures) == 1


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"ssl.keystore.type": "JKS"}, "SSL key store is specified, but key store password is not specified"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "ssl.keystore.location: /nowhere.pem: it can't be read"),
        ({"ssl.keystore.location": str(FILES / "ca.pem")}, "Expected one private key, but found 0"),
        ({"listener.name.controller.ssl.keystore.location": "/own.pem"}, "/own.pem: it can't be read"),
    ],
)
def test_missing_files_are_named(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        tls("node.pem", **properties)


def test_a_controller_listener_needs_a_trust_store() -> None:
    config = BrokerConfig.from_properties(
        {"listener.security.protocol.map": "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT"}
    )
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location is needed"):
        controller_tls(config, config.controller_listener)


def test_a_login_stands_in_for_a_certificate() -> None:
    """SASL_SSL: a node that only calls needs no key, and callers show none, unless the listener asks for one."""
    properties = {
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(FILES / "ca.pem"),
        "ssl.client.auth": "required",
    }
    key = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(FILES / "node.pem")}
    asks = {"listener.name.controller.ssl.client.auth": "required"}
    broker = {"process.roles": "broker", "node.id": "9", "controller.quorum.voters": "1@127.0.0.1:9093"}

    def made(**changes: str) -> ControllerTls:
        config = BrokerConfig.from_properties({**properties, **changes})
        return controller_tls(config, config.controller_listener, config.controller_protocol)

    server = made(**key).server
    assert server is not None
    assert server.verify_mode == ssl.CERT_NONE
    assert made(**broker).server is None
    check_handshake(made(**broker).client, server)
    asking = made(**key, **asks).server
    assert asking is not None
    with pytest.raises(ConfigError):
        check_handshake(made(**broker).client, asking)
    with pytest.raises(ConfigError, match="has no key"):
        made()
