"""Checks the keys of objects; every store has the same rules."""

from __future__ import annotations

import re

from barnabas.storage.tier.object_store import StoreRefused

KEY_LENGTH_MAX = 900  # S3 and GCS take 1,024 bytes, of which the store's prefix needs some

_KEY = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]*")


def check_key(key: str) -> None:
    """StoreRefused for a key that some store can't have."""
    parts = key.split("/")
    if _KEY.fullmatch(key) is None or len(key) > KEY_LENGTH_MAX or "." in parts or ".." in parts:
        raise StoreRefused(f"{key[:1000]!r} can't be an object's key")


def check_prefix(prefix: str) -> None:
    """StoreRefused for what can't be the beginning of a key."""
    folders = prefix.split("/")[:-1]
    if _PREFIX.fullmatch(prefix) is None or not {"", ".", ".."}.isdisjoint(folders):
        raise StoreRefused(f"{prefix[:1000]!r} can't be the beginning of an object's key")
