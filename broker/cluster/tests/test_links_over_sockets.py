"""Links between nodes over real sockets, on both event loops, in the open, with a secret and under TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.controller.link.connection import LinkSettings
from barnabas.controller.link.links import Links
from barnabas.controller.link.messages import BROKER, CONTROLLER, Identity
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.runtime.tls_contexts import client_context, server_context

pytestmark = pytest.mark.sockets

SECRET = b"a secret that all nodes have"


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def runtime(request: pytest.FixtureRequest) -> Iterator[AsyncioRuntime]:
    runtime = AsyncioRuntime(prefer_uvloop=request.param)
    yield runtime
    runtime.close()


def run_until(runtime: AsyncioRuntime, reached: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = runtime.monotonic() + seconds

    def look() -> None:
        if reached() or runtime.monotonic() > deadline:
            runtime.stop()
        else:
            runtime.call_later(0.002, look)

    runtime.call_soon(look)
    runtime.run()
    assert reached(), "it did not come to be"


def node(
    runtime: AsyncioRuntime, node_id: int, secret: bytes | None = SECRET, tls: ssl.SSLContext | None = None
) -> Links:
    roles = [BROKER, CONTROLLER] if node_id < 4 else [BROKER]
    identity = Identity(
        "cluster", node_id, roles, b"directory %6d" % node_id, runtime.random_bytes(16), [1, 2, 3], []
    )
    settings = LinkSettings(hello_timeout_s=0.5)
    links = Links(runtime, identity, secret=secret, tls=tls, settings=settings)
    links.serve(lambda sender, payload, reply: reply(b"%d:" % sender + payload))
    return links


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "open"])
def test_requests_of_any_size(runtime: AsyncioRuntime, secret: bytes | None) -> None:
    one, two, broker = node(runtime, 1, secret), node(runtime, 2, secret), node(runtime, 9, secret)
    ports = [one.listen("127.0.0.1", 0), two.listen("127.0.0.1", 0)]
    for links in (one, two, broker):
        links.call([("127.0.0.1", port, node_id) for node_id, port in enumerate(ports, 1)])
    run_until(runtime, lambda: len(broker.peers()) == 2 and len(one.peers()) == 2 == len(two.peers()))
    answers: list[bytes | None] = []
    sent = [b"", b"small", bytes(300_000), b"x" * 20_000_000, *(b"%d" % n for n in range(500))]
    for payload in sent:
        broker.request(1, payload, answers.append)
    run_until(runtime, lambda: len(answers) == len(sent))
    assert answers == [b"9:" + payload for payload in sent]
    two.close()
    run_until(runtime, lambda: not broker.is_linked(2) and not one.is_linked(2))
    one.close()
    broker.close()
    run_until(runtime, lambda: not broker.peers())


def test_a_node_comes_back(runtime: AsyncioRuntime) -> None:
    one, broker = node(runtime, 1), node(runtime, 9)
    port = one.listen("127.0.0.1", 0)
    broker.call([("127.0.0.1", port, 1)])
    (calls,) = broker.dialers()
    run_until(runtime, lambda: broker.is_linked(1))
    one.close()
    run_until(runtime, lambda: not broker.is_linked(1) and calls.failures > 0)
    assert isinstance(calls.error, ConnectionRefusedError)
    again = node(runtime, 1)
    again.listen("127.0.0.1", port)
    run_until(runtime, lambda: broker.is_linked(1))
    again.close()
    broker.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One authority and a node's certificate of it; another authority with another node's."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("certificates")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ours", "theirs"):
        authority = ["-subj", f"/CN={name}", "-keyout", f"{name}-ca.key", "-out", f"{name}-ca.pem"]
        wanted = ["-subj", "/CN=node", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
        signed = ["-CA", f"{name}-ca.pem", "-CAkey", f"{name}-ca.key", "-CAcreateserial"]
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        for command in (
            ["req", "-x509", *new_key, *authority],
            ["req", *new_key, *wanted],
            ["x509", "-req", "-in", f"{name}.csr", *signed, "-extfile", "names", "-out", f"{name}.pem"],
        ):
            subprocess.run([openssl, *command], cwd=folder, check=True, capture_output=True)
    return folder


def context(certificates: Path, name: str, made: ssl.SSLContext, trusted: str = "ours") -> ssl.SSLContext:
    made.load_verify_locations(certificates / f"{trusted}-ca.pem")
    made.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def test_mutual_tls(runtime: AsyncioRuntime, certificates: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = node(runtime, 1, None)
    port = one.listen("127.0.0.1", 0, tls=context(certificates, "ours", server_context()))
    broker = node(runtime, 9, None, context(certificates, "ours", client_context()))
    broker.call([("127.0.0.1", port, 1)])
    run_until(runtime, lambda: broker.is_linked(1))
    answers: list[bytes | None] = []
    broker.request(1, b"y" * 3_000_000, answers.append)
    run_until(runtime, lambda: bool(answers))
    assert answers == [b"9:" + b"y" * 3_000_000]
    assert "asks nobody for a proof" not in caplog.text

    stranger = node(runtime, 8, None, context(certificates, "theirs", client_context()))
    plain = node(runtime, 7, None)
    for links in (stranger, plain):
        links.call([("127.0.0.1", port, 1)])
    run_until(runtime, lambda: sum(d.failures for links in (stranger, plain) for d in links.dialers()) >= 6)
    assert not stranger.peers()
    assert not plain.peers()
    assert [peer.node_id for peer in one.peers()] == [9]
    # The listener has heard nothing that it could answer; it says so when their time is up, and has room for others.
    run_until(runtime, lambda: "no TLS within 0.5 s" in caplog.text)
    for links in (stranger, plain, broker, one):
        links.close()


def test_a_caller_under_tls_at_a_plain_listener(
    runtime: AsyncioRuntime, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = node(runtime, 1)
    port = one.listen("127.0.0.1", 0)
    broker = node(runtime, 9, SECRET, context(certificates, "ours", client_context()))
    broker.call([("127.0.0.1", port, 1)])
    reason = "begins with a TLS handshake, and this listener speaks plain text"
    run_until(runtime, lambda: reason in caplog.text)
    broker.close()
    one.close()
