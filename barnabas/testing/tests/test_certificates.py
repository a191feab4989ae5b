"""Certificates of the test broker: a handshake with them, and what a client refuses."""

from __future__ import annotations

import ssl
import stat
import tempfile
from pathlib import Path

import pytest

from barnabas.runtime.tls_contexts import client_context, server_context
from barnabas.testing import Broker, Security
from barnabas.testing.certificates import Authority, Certificate

LOCALHOST = ("localhost", "127.0.0.1")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """The server's side of a connection. ssl.SSLError."""
    inbound, outbound = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(inbound, outbound, server_hostname=host),
        server.wrap_bio(outbound, inbound, server_side=True),
    ]
    waiting = list(sides)
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    return sides[1]


def load(context: ssl.SSLContext, certificate: Certificate) -> ssl.SSLContext:
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(certificate.key + certificate.pem)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def contexts(authority: Authority, server: Certificate) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    client = client_context()
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as ssl.create_default_context has it since Python 3.13
    client.load_verify_locations(cadata=authority.pem)
    return load(server_context(), server), client


@pytest.mark.parametrize("host", LOCALHOST)
def test_a_strict_client_accepts_the_servers_certificate(host: str) -> None:
    authority = Authority()
    server, client = contexts(authority, authority.sign("localhost", LOCALHOST))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=authority.pem)
    load(client, authority.sign("alice"))
    found = shake_hands(server, client, host).getpeercert()
    assert found is not None
    assert found["subject"] == ((("commonName", "alice"),),)


def test_a_client_refuses_other_hosts_other_authorities_and_what_has_expired() -> None:
    authority = Authority()
    refused = [
        (authority.sign("localhost", ["other"]), "Hostname mismatch"),
        (Authority("another").sign("localhost", LOCALHOST), "unable to get local issuer"),
        (authority.sign("localhost", LOCALHOST, is_expired=True), "has expired"),
    ]
    for certificate, reason in refused:
        server, client = contexts(authority, certificate)
        with pytest.raises(ssl.SSLCertVerificationError, match=reason):
            shake_hands(server, client, "localhost")


def test_files_are_readable_by_this_user_alone_and_go_with_the_broker() -> None:
    broker = Broker(security=Security(protocol="SSL"))
    paths = [Path(broker.security.ca_file), *map(Path, broker.security.certificate_files("alice"))]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600] * 3
    assert stat.S_IMODE(paths[0].parent.stat().st_mode) == 0o700
    assert paths[1].read_text() == broker.security.certificate("alice").pem
    broker.stop()
    assert not paths[0].parent.exists()


def test_a_certificate_does_not_show_its_key() -> None:
    certificate = Authority().sign("alice")
    assert repr(certificate) == "Certificate(alice)"
