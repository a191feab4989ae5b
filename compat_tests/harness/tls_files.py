"""Key stores and trust stores of a test's brokers and clients, in PEM, and the clients' settings for them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from compat_tests.harness.certificates import Authority


class TlsFiles:
    """One authority, a broker's certificate, and those of clients by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority()
        self.anchors = self.authority.write_anchors(directory / "ca.pem")
        self.broker = self.authority.sign("broker").write(directory / "broker.pem")

    def client(self, name: str) -> Path:
        """The key store of the client `name`."""
        path = self.directory / f"{name}.pem"
        return path if path.exists() else self.authority.sign(name).write(path)

    def properties(self, client_auth: str = "none") -> dict[str, str]:
        """Of a broker."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.anchors),
            "ssl.client.auth": client_auth,
        }

    def confluent(self, name: str | None = None) -> dict[str, str]:
        """Of librdkafka."""
        own = {} if name is None else {each: str(self.client(name)) for each in ("ssl.certificate.location", "ssl.key.location")}  # fmt: skip
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.anchors), **own}

    def kafka_python(self, name: str | None = None) -> dict[str, Any]:
        own = (
            {} if name is None else {each: str(self.client(name)) for each in ("ssl_certfile", "ssl_keyfile")}
        )
        return {"security_protocol": "SSL", "ssl_cafile": str(self.anchors), **own}

    def aiokafka(self, name: str | None = None) -> dict[str, Any]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.anchors)
        if name is not None:
            context.load_cert_chain(self.client(name))
        return {"security_protocol": "SSL", "ssl_context": context}

    def java(self, name: str | None = None) -> Path:
        """The file for --command-config of Kafka's tools."""
        path = self.directory / f"{name or 'plain'}.properties"
        lines = [
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.anchors}",
        ]
        if name is not None:
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={self.client(name)}"]
        path.write_text("\n".join(lines) + "\n")
        return path
