"""What proves who we are by a signature: an NKEY's seed, or a credentials file (a user's JWT and its seed)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.errors import NatsSettingsError
from barnabas.nats.client.nkeys import decode_seed, public_key, signature

if TYPE_CHECKING:
    from barnabas.nats.client.connection_settings import ConnectionSettings

FILE_BYTES_MAX: Final = 256 * 1024
# -----BEGIN NATS USER JWT-----, its lines, ------END NATS USER JWT------; the number of dashes differs among tools
_SECTION = re.compile(r"-{3,}\s*BEGIN ([A-Z ]+?)\s*-{3,}\s*(\S+)\s*-{3,}\s*END \1\s*-{3,}")


def signed_credentials(settings: ConnectionSettings, nonce: str) -> dict[str, str]:
    """CONNECT's fields for the settings' credentials file or seed file. NatsSettingsError names the one that can't be used."""
    if settings.credentials_file:
        name, path = "nats.credentials.file", settings.credentials_file
        jwt, seed_text = _sections(_read(name, path), name, path)
    else:
        name, path = "nats.nkey.seed.file", settings.nkey_seed_file
        jwt, seed_text = "", _seed_line(_read(name, path))
    if not nonce:
        raise NatsSettingsError(
            f"{name}: the server asks for no signature: set up NKEYs there, or remove it here"
        )
    try:
        seed = decode_seed(seed_text)
    except NatsSettingsError as error:
        raise NatsSettingsError(f"{name}: {path}: {error}") from None
    identity = {"jwt": jwt} if jwt else {"nkey": public_key(seed)}
    return {**identity, "sig": signature(seed, nonce)}


def _read(name: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise NatsSettingsError(f"{name}: {path} can't be read: {reason}") from None


def _sections(text: str, name: str, path: str) -> tuple[str, str]:
    sections = dict(_SECTION.findall(text))
    jwt, seed = sections.get("NATS USER JWT"), sections.get("USER NKEY SEED")
    if jwt is None or seed is None:
        raise NatsSettingsError(
            f"{name}: {path} must hold NATS USER JWT and USER NKEY SEED, as nsc writes them"
        )
    return jwt, seed


def _seed_line(text: str) -> str:
    """The first line that is not a comment; a file with sections is understood too."""
    sections = dict(_SECTION.findall(text))
    if "USER NKEY SEED" in sections:
        return str(sections["USER NKEY SEED"])
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")
