"""TLS contexts with the same rules on every Python and for every listener and connection.

They are made from `ssl.SSLContext` itself: `ssl.create_default_context` is strict since Python 3.13 (VERIFY_X509_STRICT) and
refuses authorities without a key usage extension, which keytool and most guides make. As in Java, every certificate of a
truststore is an anchor, an intermediate one or a server's own too (VERIFY_X509_PARTIAL_CHAIN), and nothing renegotiates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def server_context() -> ssl.SSLContext:
    """For a listener; it asks for no certificate yet, and has none."""
    import ssl  # late: most brokers need none of it

    return _with_rules(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def client_context() -> ssl.SSLContext:
    """For calls: the server's certificate and its name are checked, against no anchors yet."""
    import ssl

    return _with_rules(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def _with_rules(context: ssl.SSLContext) -> ssl.SSLContext:
    import ssl

    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context
