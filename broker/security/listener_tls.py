"""TLS of the listeners: the contexts for new connections, the principals of clients' certificates, and renewed stores.

The stores of a listener are read again when its properties change (API 44 on this broker), with every other change of this broker's
configs, as in Kafka, and where their files have changed, which is looked at once a minute. New stores must fit: the certificate
keeps its name (ssl.allow.dn.changes) and alternative names (ssl.allow.san.changes), and nodes with the old ones and the new ones
can connect to each other. Open connections keep what they began with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.security.caller import ANONYMOUS, USER, Principal
from barnabas.broker.security.certificates import CertificateError, alternative_names, subject_name
from barnabas.broker.security.principal_mapping import PrincipalMapper
from barnabas.broker.security.ssl_config import SslConfig, prefix_of, read_ssl_config
from barnabas.broker.security.ssl_contexts import SslContexts, check_handshake, make_contexts
from barnabas.controller.config.validators import ConfigError

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.config.listeners import ListenerConfig
    from barnabas.broker.security.key_stores import Identity
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.security")

FILES_CHECK_S: Final = 60.0
SASL_SSL: Final = "SASL_SSL"


class _Present(msgspec.Struct, frozen=True):
    """What a listener uses. `files`: what the files of its stores looked like before they were read."""

    settings: SslConfig
    contexts: SslContexts
    files: tuple[tuple[int, int, int], ...]


class ListenerTls:
    """The settings of a listener."""

    def __init__(
        self, config: BrokerConfig, listener: str, security_protocol: str, *, is_between_nodes: bool
    ) -> None:
        """`is_between_nodes`: nodes connect to each other here. ConfigError."""
        self._config = config
        self.listener = listener
        self._is_sasl = security_protocol == SASL_SSL
        self._is_between_nodes = is_between_nodes
        settings = self.settings(config.stored_node)
        files = _look_of_files(settings)
        self._present = _Present(settings, make_contexts(settings, is_between_nodes=is_between_nodes), files)
        self._mapper = PrincipalMapper(settings.principal_mapping_rules)

    @property
    def server(self) -> ssl.SSLContext:
        """For a connection that is accepted now."""
        return self._present.contexts.server

    def client(self) -> ssl.SSLContext | None:
        """For a connection to another node that is opened now; None where nodes do not connect to each other."""
        return self._present.contexts.client

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

    def settings(self, stored: Mapping[str, str]) -> SslConfig:
        """Those with `stored` as the dynamic configs of this node. ConfigError."""
        return read_ssl_config(self._config, self.listener, is_sasl=self._is_sasl, stored=stored)

    def has_changed(self, settings: SslConfig) -> bool:
        """Whether the listener uses other settings, or the files of its stores have changed."""
        return settings != self._present.settings or _look_of_files(settings) != self._present.files

    def prepare(self, settings: SslConfig) -> _Present:
        """Read the stores and check that they may take the place of the present ones. Blocking, for threads. ConfigError."""
        present, files = self._present, _look_of_files(settings)
        for what in ("keystore", "truststore"):
            had, has = _has(present.settings, what), _has(settings, what)
            if had and not has:
                raise ConfigError(
                    f"Cannot remove the SSL {what} from an existing listener for which a {what} was configured."
                )
            if has and not had:
                raise ConfigError(
                    f"Cannot add SSL {what} to an existing listener for which no {what} was configured."
                )
        contexts = make_contexts(settings, is_between_nodes=self._is_between_nodes)
        _check_identities(present.contexts.stores.identities, contexts.stores.identities, settings)
        old, new = present.contexts, contexts
        if old.client is not None and new.client is not None:
            check_handshake(old.client, new.server)
            check_handshake(new.client, old.server)
        return _Present(settings, contexts, files)

    def apply(self, prepared: _Present) -> None:
        """Use it for the connections from now on."""
        self._present = prepared


class TlsListeners:
    """The listeners of one broker that use TLS. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, config: BrokerConfig, between_nodes: str | None) -> None:
        """`between_nodes`: the name of the listener where brokers connect to each other. ConfigError."""
        self._runtime = runtime
        self._config = config
        self._by_name = {
            each.name: _listener_tls(config, each, between_nodes) for each in config.tls_listeners
        }
        self._reading: set[str] = set()  # listeners whose stores a thread reads
        self._timer: Timer | None = None

    def get(self, listener: str) -> ListenerTls | None:
        return self._by_name.get(listener)

    def start(self) -> None:
        """Look at the files from time to time, until `stop`."""
        self._timer = self._runtime.call_later(FILES_CHECK_S, self._check_files)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_files(self) -> None:
        self.start()
        self.reload()

    def reload(self) -> None:
        """Take up changed settings and files: a thread reads them. What can't be used is logged, and the old stays."""
        for tls in self._by_name.values():
            if tls.listener in self._reading:
                continue
            try:
                settings = tls.settings(self._config.stored_node)
            except ConfigError as error:
                _log_failure(tls, error)
                continue
            if tls.has_changed(settings):
                self._reading.add(tls.listener)
                self._runtime.run_in_thread(partial(tls.prepare, settings), partial(self._prepared, tls))

    def reload_now(self) -> None:
        """As `reload`, at the start, when the loop serves nothing."""
        for tls in self._by_name.values():
            try:
                settings = tls.settings(self._config.stored_node)
                if tls.has_changed(settings):
                    tls.apply(tls.prepare(settings))
            except ConfigError as error:
                _log_failure(tls, error)

    def _prepared(self, tls: ListenerTls, found: _Present | None, error: BaseException | None) -> None:
        self._reading.discard(tls.listener)
        if found is None:
            assert error is not None
            _log_failure(tls, error)
            return
        tls.apply(found)
        log.info("listener %s uses new TLS stores for the connections from now on", tls.listener)
        try:
            settings = tls.settings(self._config.stored_node)
        except ConfigError:
            return
        if settings != found.settings:  # changed meanwhile
            self.reload()

    def check(
        self, stored: Mapping[str, str], names: set[str], done: Callable[[BaseException | None], object]
    ) -> None:
        """`done(None)` when the dynamic configs of this node may become `stored`, or `done(ConfigError)`; at once where none of the
        changed `names` concerns a listener's TLS."""
        wanted: list[tuple[ListenerTls, SslConfig]] = []
        for tls in self._by_name.values():
            prefix = f"{prefix_of(tls.listener)}ssl."
            if any(name.startswith(prefix) for name in names):
                try:
                    wanted.append((tls, tls.settings(stored)))
                except ConfigError as error:
                    done(error)
                    return
        if not wanted:
            done(None)
            return

        def prepare_all() -> None:
            for tls, settings in wanted:
                tls.prepare(settings)

        self._runtime.run_in_thread(prepare_all, lambda _result, error: done(error))


def _listener_tls(config: BrokerConfig, listener: ListenerConfig, between_nodes: str | None) -> ListenerTls:
    return ListenerTls(
        config,
        listener.name,
        listener.security_protocol,
        is_between_nodes=listener.name == between_nodes,
    )


def _log_failure(tls: ListenerTls, error: BaseException) -> None:
    log.warning("listener %s keeps its TLS stores; the new ones can't be used: %s", tls.listener, error)


def _has(settings: SslConfig, what: str) -> bool:
    if what == "keystore":
        return bool(settings.keystore_location) or settings.keystore_key is not None
    return bool(settings.truststore_location) or settings.truststore_certificates is not None


def _look_of_files(settings: SslConfig) -> tuple[tuple[int, int, int], ...]:
    """(time of the last change, size, inode) of each file; zeros for one that is missing."""
    found = []
    for path in (settings.keystore_location, settings.truststore_location):
        try:
            stat = os.stat(path)
        except (OSError, ValueError):
            found.append((0, 0, 0))
        else:
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


def _check_identities(existing: tuple[Identity, ...], new: tuple[Identity, ...], settings: SslConfig) -> None:
    """ConfigError, with Kafka's texts, unless clients know the new certificates by the names of the old ones."""
    if len(existing) != len(new):
        raise ConfigError(
            f"Keystore entries do not match, existing store contains {len(existing)} entries, new store contains {len(new)} "
            f"entries"
        )
    for one, other in zip(existing, new, strict=True):
        if not settings.allow_dn_changes:
            was, becomes = _name(one), _name(other)
            if was.lower() != becomes.lower():
                raise ConfigError(
                    f"Keystore DistinguishedName does not match:  existing={{alias={one.alias}, DN={was}}}, "
                    f"new={{alias={other.alias}, DN={becomes}}}"
                )
        if not settings.allow_san_changes:
            had, has = _alternative_names(one), _alternative_names(other)
            if not had <= has:
                raise ConfigError(
                    f"Keystore SubjectAltNames do not match:  existing={{alias={one.alias}, SAN={sorted(had)}}}, "
                    f"new={{alias={other.alias}, SAN={sorted(has)}}}"
                )


def _name(identity: Identity) -> str:
    try:
        return subject_name(identity.chain[0])
    except CertificateError as error:
        raise ConfigError(f"the certificate of {identity.alias} can't be read: {error}") from None


def _alternative_names(identity: Identity) -> frozenset[str]:
    try:
        return alternative_names(identity.chain[0])
    except CertificateError as error:
        raise ConfigError(f"the certificate of {identity.alias} can't be read: {error}") from None
