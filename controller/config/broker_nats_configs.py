"""Broker properties of NATS, one a line (config_def.py explains the columns): where it is and who we are there.

`nats.servers` and those beside it are the connection without a name. Further ones have names: what is `nats.user` here is
`nats.connection.NAME.user` there. All of them are read when the broker starts, and then no more.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from barnabas.controller.config.config_def import ConfigDef, ConfigKey

NATS_TABLE: Final = """
nats.servers list "" list medium
nats.user string "" * medium
nats.password password - * medium
nats.token password - * medium
nats.nkey.seed.file string "" * medium
nats.credentials.file string "" * medium
nats.tls.ca.file string "" * medium
nats.tls.certificate.file string "" * medium
nats.tls.key.file string "" * medium
nats.tls.handshake.first boolean false * low
nats.jetstream.domain string "" * medium
nats.connect.timeout.ms int 5000 [100,...] low
nats.ping.interval.ms int 20000 [1000,...] low
"""

NAMED_PREFIX: Final = "nats.connection."
SERVERS: Final = "nats.servers"

# Compiled with their first use: most brokers have no NATS.
_NAMED: Final = r"nats\.connection\.([a-zA-Z0-9_-]{1,128})\.(.+)"
_USER_INFO: Final = r"(^|,)(\s*(?:[a-z]+://)?)[^,]*@"


_KEYS: Final = ConfigDef(NATS_TABLE)


def named_connection_key(name: str) -> ConfigKey | None:
    """The key of a property `nats.connection.NAME.*`; None when it is none."""
    found = re.fullmatch(_NAMED, name)
    key = _KEYS.get(f"nats.{found[2]}") if found else None
    return None if key is None else msgspec.structs.replace(key, name=name)


def split_connection(name: str) -> tuple[str, str] | None:
    """The connection ("" for the one without a name) and the property (`nats.user`) that `name` says; None for others."""
    found = re.fullmatch(_NAMED, name)
    if found is not None:
        return found[1], f"nats.{found[2]}"
    return ("", name) if name in _KEYS else None


def shown_servers(name: str, text: str | None) -> str | None:
    """A property's value as it may be shown: addresses of NATS servers without the user, password or token in them."""
    if text is None or not name.startswith("nats.") or not name.endswith(".servers"):
        return text
    return re.sub(_USER_INFO, r"\1\2[hidden]@", text)
