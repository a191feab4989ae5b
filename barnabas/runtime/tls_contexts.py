"""TLS contexts with the same rules on every Python and for every listener and connection.

They are created from `ssl.SSLContext` itself: `ssl.create_default_context` is strict since Python 3.13 (VERIFY_X509_STRICT) and
refuses authorities without a key usage extension, such as those of keytool and of most guides. As in Java, every certificate
of a truststore is a trust anchor, also an intermediate one or a server's own (VERIFY_X509_PARTIAL_CHAIN), and there is no
renegotiation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def server_context() -> ssl.SSLContext:
    """The context of a listener, without a certificate yet; it asks clients for none."""
    import ssl  # imported late: most brokers do not use TLS

    return _with_rules(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def client_context() -> ssl.SSLContext:
    """The context of a client, without trust anchors yet; it checks the server's certificate and name."""
    import ssl

    return _with_rules(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def _with_rules(context: ssl.SSLContext) -> ssl.SSLContext:
    import ssl

    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context
