"""A TLS 1.3 client's records with KeyUpdate messages, which no library lets one send (RFC 8446, 4.6.3, 5.2 and 7.2)."""

from __future__ import annotations

import hashlib
import hmac
import struct
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_CIPHERS: Final = {"TLS_AES_256_GCM_SHA384": ("sha384", 32), "TLS_AES_128_GCM_SHA256": ("sha256", 16)}
_HANDSHAKE, _APPLICATION_DATA = b"\x16", b"\x17"
_TAG_BYTES: Final = 16


class Sender:
    """Encrypts in place of a client that has done its handshake and sent nothing since."""

    def __init__(self, key_log: Path, cipher: str) -> None:
        """`key_log`: where the client's context has written the secrets of this one connection."""
        self._digest, self._key_bytes = _CIPHERS[cipher]
        lines = [line.split() for line in key_log.read_text().splitlines()]
        (secret,) = [line[2] for line in lines if line and line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self._use(bytes.fromhex(secret))

    def update(self, *, asks: bool = True) -> bytes:
        """A KeyUpdate. `asks`: for one in return."""
        record = self._record(bytes([24, 0, 0, 1, asks]), _HANDSHAKE)
        self._use(self._expand("traffic upd", hashlib.new(self._digest).digest_size))
        return record

    def data(self, plaintext: bytes) -> bytes:
        return self._record(plaintext, _APPLICATION_DATA)

    def _use(self, secret: bytes) -> None:
        self._secret, self._number = secret, 0
        self._key, self._iv = self._expand("key", self._key_bytes), self._expand("iv", 12)

    def _record(self, content: bytes, kind: bytes) -> bytes:
        head = struct.pack(">BHH", 23, 0x0303, len(content) + 1 + _TAG_BYTES)
        nonce = int.from_bytes(self._iv, "big") ^ self._number
        self._number += 1
        return head + AESGCM(self._key).encrypt(nonce.to_bytes(12, "big"), content + kind, head)

    def _expand(self, label: str, length: int) -> bytes:
        """HKDF-Expand-Label with an empty context, of at most one block."""
        name = f"tls13 {label}".encode()
        info = struct.pack(">HB", length, len(name)) + name + b"\0\x01"
        return hmac.digest(self._secret, info, self._digest)[:length]
