"""The properties of the authorizer: authorizer.class.name, super.users and allow.everyone.if.no.acl.found.

The last two are those of Kafka's own authorizer, and in none of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from barnabas.controller.config.validators import ConfigError

CLASS: Final = "authorizer.class.name"
PRINCIPAL_BUILDER: Final = "principal.builder.class"
DEFAULT_PRINCIPAL_BUILDERS: Final = (
    "",
    "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
)
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
PROPERTIES: Final = (SUPER_USERS, ALLOW_EVERYONE)
AUDIT_LOGGER: Final = "kafka.authorizer.logger"  # gets the decisions (security/authorizer.py)
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class AuthorizerConfig(msgspec.Struct, frozen=True):
    """`super_users`: principals as TYPE:NAME."""

    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False


def authorizer_config(given: Mapping[str, str]) -> AuthorizerConfig | None:
    """None where no authorizer is set. ConfigError for a class that this version does not have: it never runs without the
    authorizer that was asked for, nor decides about other principals."""
    name = given.get(CLASS, "").strip()
    if not name:
        return None
    if name != STANDARD_AUTHORIZER:
        raise ConfigError(
            f"{CLASS}: this version has no {name}, only Kafka's {STANDARD_AUTHORIZER}, whose ACLs are in the metadata"
        )
    builder = given.get(PRINCIPAL_BUILDER, "").strip()
    if builder not in DEFAULT_PRINCIPAL_BUILDERS:
        raise ConfigError.invalid(PRINCIPAL_BUILDER, builder, "this version runs no Java classes")
    users = frozenset(user.strip() for user in given.get(SUPER_USERS, "").split(";") if user.strip())
    for user in users:
        if ":" not in user:
            raise ConfigError(
                f"{SUPER_USERS}: expected a string in format principalType:principalName but got {user}"
            )
    return AuthorizerConfig(users, given.get(ALLOW_EVERYONE, "").strip().lower() == "true")
