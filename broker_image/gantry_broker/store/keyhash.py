"""The hash under which the index files a key: Java's `abs("topic#key".hashCode())`, made cheap.

Unique keys of one producer share their first characters (address, process, class loader), so the hash of topic and
prefix is remembered and only the rest is computed, as one sum of products.
"""

from __future__ import annotations

from operator import mul
from typing import Final

from gantry_broker.protocol.message import java_hash

_MASK: Final = 0xFFFFFFFF
_CHUNK: Final = 64
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_CHUNK + 1))
_WEIGHTS: Final = tuple(tuple(reversed(_POWERS[:n])) for n in range(_CHUNK + 1))
PREFIX: Final = 20
_MAX_PREFIXES: Final = 1024


class KeyHasher:
    """Hashes the keys of one topic."""

    __slots__ = ("_prefixes", "_seed", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._seed = java_hash(topic + "#") & _MASK
        self._prefixes: dict[str, int] = {}

    def hash(self, key: str) -> int:
        """Never negative: what has no absolute value in 31 bits counts as 0 (`IndexFile.indexKeyHashMethod`)."""
        value = self._seed
        if not key.isascii():
            return _absolute(java_hash(f"{self._topic}#{key}") & _MASK)
        size = len(key)
        if size > PREFIX:
            prefix = key[:PREFIX]
            known = self._prefixes.get(prefix)
            if known is None:
                if len(self._prefixes) >= _MAX_PREFIXES:
                    self._prefixes.clear()
                known = (value * _POWERS[PREFIX] + sum(map(mul, prefix.encode(), _WEIGHTS[PREFIX]))) & _MASK
                self._prefixes[prefix] = known
            value = known
            rest = key[PREFIX:].encode()
            size -= PREFIX
            while size > _CHUNK:
                value = (value * _POWERS[_CHUNK] + sum(map(mul, rest[:_CHUNK], _WEIGHTS[_CHUNK]))) & _MASK
                rest = rest[_CHUNK:]
                size -= _CHUNK
        else:
            rest = key.encode()
        value = (value * _POWERS[size] + sum(map(mul, rest, _WEIGHTS[size]))) & _MASK
        return _absolute(value) if value & 0x80000000 else value


def _absolute(value: int) -> int:
    if value & 0x80000000:
        value = 0x1_0000_0000 - value
        return 0 if value == 0x80000000 else value
    return value
