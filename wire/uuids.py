"""UUIDs: 16 bytes, and Kafka's text form of them. Kafka makes those whose text does not begin with a dash."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable


def uuid_to_string(uuid: bytes) -> str:
    """16 bytes to Kafka's text form: URL-safe base64 without padding (22 characters)."""
    return urlsafe_b64encode(uuid)[:22].decode("ascii")


def uuid_from_string(text: str) -> bytes:
    """The inverse of uuid_to_string. Raises ValueError on anything else."""
    if len(text) > 24:
        raise ValueError(f"{text!r} is too long for a base64 UUID")
    uuid = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(uuid) != 16:
        raise ValueError(f"{text!r} is {len(uuid)} bytes, not the 16 of a UUID")
    return uuid


def random_uuid(random_bytes: Callable[[int], bytes]) -> bytes:
    """A random UUID (version 4)."""
    while True:
        uuid = _version_4(random_bytes(16))
        if not uuid_to_string(uuid).startswith("-"):
            return uuid


def derived_uuid(seed: bytes) -> bytes:
    """A UUID (version 4) that is always the same for the same seed."""
    import hashlib  # late: a start needs none of it

    while True:
        seed = hashlib.blake2b(seed, digest_size=16).digest()
        uuid = _version_4(seed)
        if not uuid_to_string(uuid).startswith("-"):
            return uuid


def _version_4(random_bytes: bytes) -> bytes:
    value = bytearray(random_bytes)
    value[6] = value[6] & 0x0F | 0x40
    value[8] = value[8] & 0x3F | 0x80
    return bytes(value)
