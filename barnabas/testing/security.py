"""What a test broker asks of its clients: `Broker(security=Security(users={"alice": "secret"}))` (docs/security.md, "In a test
suite"). Its properties are Kafka's own, and those that the broker is given besides win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    pass

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (PLAIN, *SCRAM, OAUTHBEARER)
CLIENT_AUTH: Final = ("none", "requested", "required")
LIBRARIES: Final = ("kafka-python", "aiokafka", "confluent-kafka", "java")

Library = Literal["kafka-python", "aiokafka", "confluent-kafka", "java"]


class Acl(msgspec.Struct, frozen=True):
    """One ACL: what a principal may do with one of `topic`, `group`, `transactional_id`, `cluster`. `*` names all topics (groups,
    ids); `prefixed`: all that begin with the name. Operations and permissions have Kafka's names."""

    principal: str  # TYPE:NAME, such as User:alice, or User:* for everyone
    operation: str  # such as READ, WRITE or ALL
    topic: str | None = None
    group: str | None = None
    transactional_id: str | None = None
    cluster: bool = False
    prefixed: bool = False
    permission: str = "ALLOW"
    host: str = "*"


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """What a test broker asks of its clients. `users` are names with passwords; they and the ACLs are there from the first start on,
    and again after a reset. ACLs are enforced once there are `acls` (an empty list, too) or `super_users`, whose entries are
    TYPE:NAME. The principal of a client certificate is `User:CN=alice`, as in Kafka. OAUTHBEARER is for unsecured tokens."""

    protocol: str = "SASL_SSL"
    users: Mapping[str, str] = {}
    mechanisms: Sequence[str] = (PLAIN, *SCRAM)  # the first one is what `client` takes unless told
    acls: Sequence[Acl] | None = None
    super_users: Sequence[str] = ()
    client_auth: str = "none"

    def __post_init__(self) -> None:
        check("protocol", self.protocol, PROTOCOLS)
        check("client_auth", self.client_auth, CLIENT_AUTH)
        for mechanism in self.mechanisms:
            check("mechanisms", mechanism, MECHANISMS)
        if self.uses_sasl and not self.mechanisms:
            raise ValueError(f"{self.protocol} needs one of the mechanisms {', '.join(MECHANISMS)}")
        if self.users and not self.uses_sasl:
            raise ValueError(f"users have passwords with SASL, and {self.protocol} is without")
        if self.client_auth != "none" and not self.uses_tls:
            raise ValueError(f"clients have certificates with TLS, and {self.protocol} is without")
        for user in self.users:
            check_user(user, self.mechanisms)

    def __repr__(self) -> str:
        return f"Security(protocol={self.protocol!r}, users={list(self.users)})"  # without the passwords

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def enforces_acls(self) -> bool:
        return self.acls is not None or bool(self.super_users)


def quoted(text: str) -> str:
    """As it stands between the quotes of a JAAS entry. ValueError for what can't stand there."""
    if "\n" in text or "\r" in text:
        raise ValueError("a password has no line breaks")
    return text.replace("\\", "\\\\").replace('"', '\\"')


def check(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{what}: {value} is none of {', '.join(allowed)}")


def check_user(user: str, mechanisms: Sequence[str]) -> None:
    """The name of a PLAIN user is part of a word in the JAAS entry."""
    if not user or (PLAIN in mechanisms and not all(each.isalnum() or each in "._-$" for each in user)):
        raise ValueError(f"users of {PLAIN} have names of letters, digits, and . _ - $, and not {user!r}")
