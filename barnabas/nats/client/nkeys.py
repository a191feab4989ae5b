"""NKEYs: Ed25519 keys as NATS writes them, of which a client needs the seed to sign the server's nonce.

A seed is base32 of two bytes of prefix, 32 bytes of seed and a CRC-16 (XMODEM, little end first); the prefix holds
S for seed, then the kind of the key, U for a user (NATS's nkeys and its ADR-14). Signing is PyNaCl's, which is installed
with barnabas[nkeys] and imported when it is needed.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.errors import NatsSettingsError

if TYPE_CHECKING:
    from nacl.signing import SigningKey

SEED_BYTES: Final = 32
_PREFIX_SEED: Final = 18 << 3  # writes S
_PREFIX_USER: Final = 20 << 3  # writes U


def decode_seed(text: str) -> bytes:
    """The 32 bytes of a user's seed, SU... NatsSettingsError, without the text, when it is none."""
    try:
        raw = base64.b32decode(text.strip().encode() + b"=" * (-len(text.strip()) % 8))
    except (ValueError, UnicodeError):
        raise NatsSettingsError("the NKEY seed is not base32: it must begin with SU") from None
    if len(raw) != 2 + SEED_BYTES + 2:
        raise NatsSettingsError(f"the NKEY seed has {len(raw)} bytes, {2 + SEED_BYTES + 2} are right")
    body, checksum = raw[:-2], int.from_bytes(raw[-2:], "little")
    if binascii.crc_hqx(body, 0) != checksum:
        raise NatsSettingsError("the NKEY seed has a wrong checksum: it was not copied whole")
    kind = (body[0] & 7) << 5 | body[1] >> 3
    if body[0] & 0xF8 != _PREFIX_SEED or kind != _PREFIX_USER:
        raise NatsSettingsError("the NKEY is not the seed of a user: it must begin with SU")
    return body[2:]


def public_key(seed: bytes) -> str:
    """The user's public key, U..."""
    body = bytes([_PREFIX_USER]) + bytes(_signing_key(seed).verify_key)
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def signature(seed: bytes, nonce: str) -> str:
    """Of the server's nonce, as CONNECT wants it: base64 for URLs, without padding."""
    signed = _signing_key(seed).sign(nonce.encode()).signature
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def _signing_key(seed: bytes) -> SigningKey:
    try:
        from nacl.signing import SigningKey
    except ImportError:
        raise NatsSettingsError(
            "NKEYs and credentials files need PyNaCl, which is not installed: pip install 'barnabas[nkeys]'"
        ) from None
    return SigningKey(seed)
