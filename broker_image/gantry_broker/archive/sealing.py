"""Encryption of what leaves the cluster: AES-256-GCM by `cryptography`, with a key that the store never sees."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from typing import Final, Protocol

from gantry_broker.archive.errors import ArchiveError, Damaged

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
SEALED: Final = NONCE_BYTES + TAG_BYTES
"""Bytes that encryption adds."""


class Sealer(Protocol):
    """Turns bytes into those that are stored, and back."""

    @property
    def key_id(self) -> str:
        """Which key it uses: in every object, so that a wrong key is named; "" without encryption."""
        ...

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Return what is stored. `context`: where it lies; opening it elsewhere fails."""
        ...

    def open(self, data: bytes, context: bytes) -> bytes:
        """Return what was sealed. Raises Damaged."""
        ...


class Plain:
    """No encryption."""

    key_id = ""

    def seal(self, data: bytes, context: bytes) -> bytes:
        return data

    def open(self, data: bytes, context: bytes) -> bytes:
        return data


class Encrypted:
    """AES-256-GCM: a random nonce of 12 bytes, the encrypted bytes, a tag of 16 bytes."""

    def __init__(self, key: bytes) -> None:
        """Keep the key. Raises ArchiveError for a key that does not have 32 bytes."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # Slow to import, and seldom needed.

        if len(key) != KEY_BYTES:
            raise ArchiveError(f"the encryption key has {len(key)} bytes: write {KEY_BYTES} bytes, in Base64")
        self._cipher = AESGCM(key)
        self.key_id = hashlib.sha256(b"gantry archive key\0" + key).hexdigest()[:16]

    def seal(self, data: bytes, context: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, context)

    def open(self, data: bytes, context: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        if len(data) < SEALED:
            raise Damaged(f"{len(data)} bytes are too few for encrypted ones")
        try:
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], context)
        except InvalidTag:
            raise Damaged("its bytes are damaged, or were encrypted with another key") from None


def sealer(key_text: str | None) -> Sealer:
    """Return the sealer for a key in Base64; None: no encryption. Raises ArchiveError."""
    if key_text is None:
        return Plain()
    try:
        key = base64.b64decode(key_text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ArchiveError(f"the encryption key is not Base64: write {KEY_BYTES} bytes, in Base64") from None
    return Encrypted(key)
