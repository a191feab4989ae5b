"""The secret that the nodes of a cluster share, from the file that `barnabas.controller.secret.file` names.

Whoever can read it can call himself a node, so a file that others can read is warned about, as that of a private key is.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Final

from barnabas.controller.config_validators import ConfigError

NAME: Final = "barnabas.controller.secret.file"
SECRET_BYTES_MIN: Final = 16
MAKE_ONE: Final = "make one, the same on all nodes: (umask 077; openssl rand -base64 48 > {path})"

log = logging.getLogger("barnabas.member")


def read_secret(path: str | None) -> bytes | None:
    """None where none is configured. ConfigError says what is wrong with the file."""
    if path is None:
        return None
    if not path.strip():
        raise ConfigError(f"{NAME} is set to nothing: name the file, or take the line out")
    try:
        secret = Path(path).read_bytes().strip()
    except FileNotFoundError:
        raise ConfigError(f"{NAME}: {path} does not exist; {MAKE_ONE.format(path=path)}") from None
    except OSError as error:
        raise ConfigError(f"{NAME}: {path} can't be read: {error.strerror}") from error
    if not secret:
        raise ConfigError(f"{NAME}: {path} is empty; {MAKE_ONE.format(path=path)}")
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"{NAME}: {path} holds {len(secret)} bytes, and a secret has at least {SECRET_BYTES_MIN}; "
            f"{MAKE_ONE.format(path=path)}"
        )
    warn_of_readers(NAME, path)
    return secret


def warn_of_readers(name: str, path: str) -> None:
    """Where a file with a secret, which property `name` names, is open to everybody. Who reads it as a member of its
    group has been let in on purpose."""
    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
    except OSError:
        return
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        what = "be read" if mode & stat.S_IROTH else "be changed"
        log.warning("%s: %s can %s by others (mode %04o); run: chmod 600 %s", name, path, what, mode, path)
