"""What a node's listeners ask of their callers, and what it shows to other nodes: the cluster's secret, TLS, logins by SASL; and
who may do what. What is not configured is not loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.broker.config.listeners import SASL_PROTOCOLS
from barnabas.broker.security.authorizer import Authorizer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
    from barnabas.broker.cluster.link_sasl import ControllerSasl
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.network.connection import NewAuthenticator
    from barnabas.broker.security.delegation_tokens import DelegationTokens
    from barnabas.broker.security.listener_tls import TlsListeners
    from barnabas.broker.security.sasl_client import NewSaslClient
    from barnabas.broker.security.sasl_config import SaslListeners
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.controller.sessions.expired_tokens import ExpiredTokens
    from barnabas.runtime.interface import Runtime


class NodeSecurity:
    """`tls`: None where no listener uses it. `authenticators`: of the listeners whose clients log in, by name. `controller_sasl`:
    None where neither a listener of this node nor the controllers ask for logins."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        secret: bytes | None,
        image: Callable[[], MetadataImage],
        delegation_tokens: Callable[[], DelegationTokens | None],
        knows_users: Callable[[], bool],
    ) -> None:
        """`secret`: of the cluster's nodes, where no file has it. The others tell what the node knows by now; `knows_users`: whether
        the metadata's users are those of the cluster. ConfigError."""
        self._config = config
        self._runtime = runtime
        self.secret = self._secret_of(secret)
        self.tls = self._make_tls()
        self.authenticators: Mapping[str, NewAuthenticator] = {}
        self.controller_sasl: ControllerSasl | None = None
        self._sasl: SaslListeners | None = None
        self._login: NewSaslClient | None = None  # to other brokers
        self._expired_tokens: ExpiredTokens | None = None
        if config.sasl_listeners or config.controller_protocol in SASL_PROTOCOLS:
            self._make_sasl(image, delegation_tokens, knows_users)

    def _secret_of(self, secret: bytes | None) -> bytes | None:
        config = self._config
        if not config.controller_listeners and config.quorum.is_alone:
            return secret
        from barnabas.broker.cluster.controller_security import check_secret, own_secret, read_secret

        secret = read_secret(config.barnabas_controller_secret_file) or secret
        check_secret(config, secret)
        return secret or own_secret(config, self._runtime.random_bytes)

    def _make_tls(self) -> TlsListeners | None:
        config = self._config
        if not config.tls_listeners:
            return None
        from barnabas.broker.security.listener_tls import TlsListeners

        between_nodes = config.inter_broker_listener if config.may_have_followers else None
        return TlsListeners(self._runtime, config, between_nodes)

    def _make_sasl(
        self,
        image: Callable[[], MetadataImage],
        delegation_tokens: Callable[[], DelegationTokens | None],
        knows_users: Callable[[], bool],
    ) -> None:
        from barnabas.broker.cluster.link_sasl import controller_sasl
        from barnabas.broker.network.sasl_authenticator import authenticator
        from barnabas.broker.security.sasl_config import (
            Authority,
            SaslListeners,
            controller_login,
            inter_broker_login,
        )

        config, runtime = self._config, self._runtime
        if config.may_have_followers:
            self._login = inter_broker_login(config, runtime)
        self._sasl = SaslListeners(config, Authority(runtime, image, delegation_tokens, knows_users))
        listeners = dict(self._sasl.by_name)
        for_controllers = {
            each.name: listeners.pop(each.name)
            for each in config.controller_listeners
            if each.name in listeners
        }
        self.controller_sasl = controller_sasl(runtime, controller_login(config, runtime), for_controllers)
        self.authenticators = {name: authenticator(each) for name, each in listeners.items()}

    def begin(self) -> None:
        """The dynamic configs are known: use them, and look for changed files from now on."""
        if self.tls is not None:
            self.tls.reload_now()
            self.tls.start()
        if self._sasl is not None:
            self._sasl.reload()

    def reload(self) -> None:
        """Dynamic configs have changed."""
        if self.tls is not None:
            self.tls.reload()
        if self._sasl is not None:
            self._sasl.reload()

    def stop(self) -> None:
        if self.tls is not None:
            self.tls.stop()
        if self._expired_tokens is not None:
            self._expired_tokens.close()

    def client_tls(self) -> ssl.SSLContext | None:
        """Of connections to the inter-broker listeners of other brokers."""
        tls = None if self.tls is None else self.tls.get(self._config.inter_broker_listener)
        return None if tls is None else tls.client()

    def inter_broker_authentication(
        self, controller: Controller, cluster_id: str, broker_epoch: Callable[[], int]
    ) -> InterBrokerAuthentication | None:
        """None where there are no other brokers, or none may connect."""
        config = self._config
        if not config.controller_listeners and config.quorum.is_alone:
            return None
        from barnabas.broker.cluster.controller_security import inter_broker_secret
        from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication

        secret = inter_broker_secret(config, self.secret)
        if secret is None:
            return None
        return InterBrokerAuthentication(
            self._runtime,
            secret,
            cluster_id=cluster_id,
            broker_id=config.node_id,
            broker_epoch=broker_epoch,
            listener=config.inter_broker_listener,
            image=lambda: controller.image,
            login=self._login,
        )

    def authorizer(self, controller: Controller, has_loaded: Callable[[], bool]) -> Authorizer | None:
        """None where everyone may do everything. `has_loaded`: this node knows the ACLs."""
        if self._config.authorizer is None:
            return None
        authorizer = Authorizer(
            self._config.authorizer,
            lambda: controller.image,
            self._runtime.monotonic,
            lambda: has_loaded() or controller.is_active,
        )
        controller.add_acl_listener(authorizer.acls_changed)
        return authorizer

    def delegation_tokens(self, controller: Controller) -> DelegationTokens | None:
        """None where no secret key for them is configured."""
        config = self._config
        if not config.delegation_token_secret_key:
            return None
        from barnabas.broker.security.delegation_tokens import DelegationTokens
        from barnabas.controller.operations.delegation_tokens import TokenLifetimes
        from barnabas.controller.sessions.expired_tokens import ExpiredTokens

        self._expired_tokens = ExpiredTokens(
            controller, self._runtime, config.delegation_token_expiry_check_interval_ms
        )
        lifetimes = TokenLifetimes(
            config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms
        )
        return DelegationTokens(config.delegation_token_secret_key, lifetimes)
