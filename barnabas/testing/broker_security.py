"""`broker.security`: hands out what clients need, and changes users, ACLs and certificates while the broker runs.

    with Broker(security=Security(users={"alice": "secret"})) as broker:
        producer = KafkaProducer(**broker.security.client("kafka-python", user="alice"))

Everything is made in memory; files are written when they are asked for, readable by this user alone, and removed when the broker
stops.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from barnabas.testing import steering
from barnabas.testing.broker_node import HOST
from barnabas.testing.security import (
    OAUTHBEARER,
    PLAIN,
    SCRAM,
    Acl,
    Library,
    Security,
    check,
    check_user,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from barnabas.testing.broker_loop import BrokerLoop
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.certificates import Authority, Certificate
    from barnabas.testing.operations import Done

SERVER_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_MODULES: Final = {PLAIN: "plain.Plain", OAUTHBEARER: "oauthbearer.OAuthBearer"}


class BrokerSecurity:
    """`broker.security`. What changes it may be called as the broker's own methods: it is done on return, or in the running loop
    once it has been awaited."""

    def __init__(self, wanted: Security, nodes: Sequence[BrokerNode], loop: BrokerLoop) -> None:
        self.wanted = wanted
        self._nodes = nodes
        self._loop = loop
        self.is_new = True  # it has not been started
        self._token_key = os.urandom(32).hex()
        self._users = dict(wanted.users)
        self._certificates: dict[tuple[str, bool, bool], Certificate] = {}
        self._authority: Authority | None = None
        self._other_authority: Authority | None = None  # which the broker does not trust
        self._server: Certificate | None = None
        self._directory: TemporaryDirectory[str] | None = None

    # -- what clients need

    @overload
    def client(
        self,
        library: Literal["java"],
        user: str | None = None,
        *,
        password: str | None = None,
        mechanism: str | None = None,
        certificate: str | Certificate | None = None,
    ) -> str: ...

    @overload
    def client(
        self,
        library: Literal["kafka-python", "aiokafka", "confluent-kafka"],
        user: str | None = None,
        *,
        password: str | None = None,
        mechanism: str | None = None,
        certificate: str | Certificate | None = None,
    ) -> dict[str, Any]: ...

    def client(
        self,
        library: Library,
        user: str | None = None,
        *,
        password: str | None = None,
        mechanism: str | None = None,
        certificate: str | Certificate | None = None,
    ) -> dict[str, Any] | str:
        """The settings of a client, its bootstrap servers among them: arguments of kafka-python's and aiokafka's classes,
        the dict of confluent-kafka's, or for Java the text of a properties file. `password`: another one than the user's.
        `certificate`: the name in it, or one that `certificate` has made. ValueError."""
        from barnabas.testing import client_settings

        login = None
        if self.wanted.uses_sasl:
            login = self._login(user, password, mechanism)
        elif user is not None:
            raise ValueError(f"a user has a password with SASL, and {self.wanted.protocol} is without")
        if isinstance(certificate, str):
            certificate = self.certificate(certificate)
        if certificate is None and self.wanted.client_auth == "required":
            raise ValueError("clients need a certificate here: certificate='alice' makes one for alice")
        if certificate is not None and not self.wanted.uses_tls:
            raise ValueError(f"clients have certificates with TLS, and {self.wanted.protocol} is without")
        identity = client_settings.ClientIdentity(
            bootstrap_servers=",".join(f"{HOST}:{node.port}" for node in self._nodes),
            protocol=self.wanted.protocol,
            authority=self.authority.pem if self.wanted.uses_tls else None,
            certificate=certificate,
            login=login,
        )
        return client_settings.settings_of(library, identity, self._write)

    def _login(self, user: str | None, password: str | None, mechanism: str | None) -> Any:
        from barnabas.testing.client_settings import Login

        if user is None:
            raise ValueError(f"{self.wanted.protocol} needs a user")
        chosen = mechanism or self.wanted.mechanisms[0]
        check("mechanism", chosen, tuple(self.wanted.mechanisms))
        if password is None and chosen != OAUTHBEARER:
            if user not in self._users:
                raise ValueError(f"there is no user {user}; there are {', '.join(self._users) or 'none'}")
            password = self._users[user]
        return Login(chosen, user, password or "")

    @property
    def users(self) -> list[str]:
        """Their names."""
        return list(self._users)

    def add_user(self, name: str, password: str) -> Awaitable[None]:
        """Let a user in, or give one that there is another password. RequestFailed, ValueError."""
        check_user(name, self.wanted.mechanisms)
        self._users[name] = password
        return self._loop.perform(
            lambda done: self._put_users({name: password}, lambda error: self._users_changed(error, done))
        )

    def remove_user(self, name: str) -> Awaitable[None]:
        """Let a user in no more; connections that are open stay, as with Kafka. LookupError, RequestFailed."""
        if self._users.pop(name, None) is None:
            raise LookupError(f"there is no user {name}")
        return self._loop.perform(
            lambda done: self._remove_user(name, lambda error: self._users_changed(error, done))
        )

    def add_acls(self, *acls: Acl) -> Awaitable[None]:
        """RequestFailed, ValueError."""
        return self._loop.perform(lambda done: steering.security.add_acls(self._nodes, acls, done))

    def remove_acls(self, *acls: Acl) -> Awaitable[None]:
        """Those that do not exist are left out. RequestFailed, ValueError."""
        return self._loop.perform(lambda done: steering.security.remove_acls(self._nodes, acls, done))

    # -- its state

    def begin(self, done: Done) -> None:
        """Enter what was asked for; `done` when it is in force. RequestFailed, ValueError."""

        def users_put(error: Exception | None) -> None:
            if error is not None or not self.wanted.acls:
                self.is_new = error is not None
                done(error)
            else:
                steering.security.add_acls(self._nodes, self.wanted.acls, acls_added)

        def acls_added(error: Exception | None) -> None:
            self.is_new = error is not None
            done(error)

        self._put_users(self._users, users_put)

    def forget_changes(self) -> None:
        """The users are those that were asked for, once the nodes, which do not run, are started."""
        self._users = dict(self.wanted.users)
        for node in self._nodes:
            node.properties |= self.user_properties()

    def _users_changed(self, error: Exception | None, done: Done) -> None:
        configs = self.user_properties()
        if error is not None or not configs:
            done(error)
        else:
            steering.security.alter_broker_configs(self._nodes, configs, done)

    def _put_users(self, users: Mapping[str, str], done: Done) -> None:
        if users and self._scram_mechanisms:
            steering.security.put_scram_users(self._nodes, users, self._scram_mechanisms, done)
        else:
            done(None)

    def _remove_user(self, name: str, done: Done) -> None:
        if self._scram_mechanisms:
            steering.security.remove_scram_user(self._nodes, name, self._scram_mechanisms, done)
        else:
            done(None)

    @property
    def _scram_mechanisms(self) -> list[str]:
        return [each for each in self.wanted.mechanisms if each in SCRAM] if self.wanted.uses_sasl else []

    # -- certificates

    @property
    def authority(self) -> Authority:
        """It has signed the server's certificate, and signs those of clients. ImportError without `cryptography`."""
        if self._authority is None:
            self._authority = _new_authority("Barnabas test authority")
        return self._authority

    @property
    def ca_file(self) -> str:
        """The path of the authority's certificate, PEM."""
        return str(self._write("ca.pem", self.authority.pem))

    def certificate(self, name: str, *, is_expired: bool = False, is_foreign: bool = False) -> Certificate:
        """A client's certificate for CN=name, with its key: the same one each time. `is_foreign`: of another authority, which the
        broker does not trust."""
        key = (name, is_expired, is_foreign)
        if key not in self._certificates:
            self._certificates[key] = self._signer(is_foreign=is_foreign).sign(name, is_expired=is_expired)
        return self._certificates[key]

    def certificate_files(self, name: str) -> tuple[str, str]:
        """The paths of a client's certificate and of its key, PEM."""
        found = self.certificate(name)
        return str(self._write(f"{name}.pem", found.pem)), str(self._write(f"{name}.key", found.key))

    def rotate_certificate(self, *, is_expired: bool = False, is_foreign: bool = False) -> Awaitable[None]:
        """Give the server another certificate, for connections that come from now on; open ones stay. RequestFailed, ValueError."""
        if not self.wanted.uses_tls:
            raise ValueError(f"servers have certificates with TLS, and {self.wanted.protocol} is without")
        signer = self._signer(is_foreign=is_foreign)
        server = signer.sign("localhost", SERVER_HOSTS, is_expired=is_expired)
        configs = {f"{self._prefix}{name}": value for name, value in _key_store(server).items()}
        return self._loop.perform(
            lambda done: steering.security.alter_broker_configs(self._nodes, configs, done)
        )

    def _signer(self, *, is_foreign: bool) -> Authority:
        if not is_foreign:
            return self.authority
        if self._other_authority is None:
            self._other_authority = _new_authority("Another test authority")
        return self._other_authority

    def _write(self, name: str, text: str) -> Path:
        """A file that only this user can read."""
        import tempfile
        from pathlib import Path

        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="barnabas-security-")  # mode 0700
        path = Path(self._directory.name, name.replace("/", "_"))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        return path

    def remove_files(self) -> None:
        """The paths that were given out are gone; new ones come when they are asked for."""
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    # -- what the broker needs

    def properties(self, nodes: int) -> dict[str, str]:
        """Those of each of so many nodes."""
        wanted = self.wanted
        properties: dict[str, str] = {}
        if wanted.uses_tls:
            properties |= self._tls_properties()
        if wanted.uses_sasl:
            properties["sasl.enabled.mechanisms"] = ",".join(wanted.mechanisms)
            properties["delegation.token.secret.key"] = self._token_key
            for mechanism in wanted.mechanisms:
                properties[self._jaas_name(mechanism)] = self._jaas(mechanism)
        if wanted.enforces_acls:
            properties["authorizer.class.name"] = AUTHORIZER
            properties["super.users"] = ";".join(wanted.super_users)
        if nodes > 1 and wanted.protocol != "PLAINTEXT":
            properties["inter.broker.listener.name"] = "INTERNAL"
            properties["listener.security.protocol.map"] = (
                f"{wanted.protocol}:{wanted.protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
            )
        return properties

    def user_properties(self) -> dict[str, str]:
        """Those of `properties` that name the users, who may have changed."""
        if not self.wanted.uses_sasl or PLAIN not in self.wanted.mechanisms:
            return {}
        return {self._jaas_name(PLAIN): self._jaas(PLAIN)}

    def _tls_properties(self) -> dict[str, str]:
        if self._server is None:
            self._server = self.authority.sign("localhost", SERVER_HOSTS)
        return {
            **_key_store(self._server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": self.authority.pem,
            f"{self._prefix}ssl.client.auth": self.wanted.client_auth,  # without the prefix it does not count with SASL
        }

    def _jaas_name(self, mechanism: str) -> str:
        return f"{self._prefix}{mechanism.lower()}.sasl.jaas.config"

    @property
    def _prefix(self) -> str:
        """Of the properties of the listener for clients."""
        return f"listener.name.{self.wanted.protocol.lower()}."

    def _jaas(self, mechanism: str) -> str:
        options = ""
        if mechanism == PLAIN:
            options = "".join(f' user_{user}="{quoted(text)}"' for user, text in self._users.items())
        elif mechanism == OAUTHBEARER:
            options = ' unsecuredValidatorPrincipalClaimName="sub"'
        module = _MODULES.get(mechanism, "scram.Scram")
        return f"org.apache.kafka.common.security.{module}LoginModule required{options};"


def _key_store(certificate: Certificate) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": certificate.key,
        "ssl.keystore.certificate.chain": certificate.pem,
    }


def _new_authority(name: str) -> Authority:
    from barnabas.testing.certificates import Authority  # late: loads cryptography

    return Authority(name)
