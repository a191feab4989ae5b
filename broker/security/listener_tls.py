"""TLS of one listener: the contexts for new connections, and the principals of clients' certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.broker.security.caller import ANONYMOUS, USER, Principal
from barnabas.broker.security.certificates import CertificateError, subject_name
from barnabas.broker.security.principal_mapping import PrincipalMapper
from barnabas.broker.security.ssl_config import read_ssl_config
from barnabas.broker.security.ssl_contexts import SslContexts, make_contexts

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.config.broker_config import BrokerConfig

SASL_SSL = "SASL_SSL"


class ListenerTls:
    """The present settings of a listener. Open connections keep those that they began with."""

    def __init__(
        self, config: BrokerConfig, listener: str, security_protocol: str, *, is_between_nodes: bool
    ) -> None:
        """`is_between_nodes`: nodes connect to each other here. ConfigError."""
        self._config = config
        self.listener = listener
        self._is_sasl = security_protocol == SASL_SSL
        self._is_between_nodes = is_between_nodes
        self._settings = read_ssl_config(config, listener, is_sasl=self._is_sasl)
        self._contexts: SslContexts = make_contexts(self._settings, is_between_nodes=is_between_nodes)
        self._mapper = PrincipalMapper(self._settings.principal_mapping_rules)

    @property
    def server(self) -> ssl.SSLContext:
        """For a connection that is accepted now."""
        return self._contexts.server

    def client(self) -> ssl.SSLContext | None:
        """For a connection to another node that is opened now; None where nodes do not connect to each other."""
        return self._contexts.client

    def principal(self, certificate: bytes | None) -> Principal | None:
        """The principal of a client that has presented a certificate (DER), or none; None when no rule names it. On SASL_SSL a
        certificate is never the principal."""
        if certificate is None or self._is_sasl:
            return ANONYMOUS
        try:
            name = self._mapper.name_of(subject_name(certificate))
        except CertificateError:
            return None
        return None if name is None else Principal(USER, name)
