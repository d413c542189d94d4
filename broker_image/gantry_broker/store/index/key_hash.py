"""The hash under which the index files a key: Java's `abs("topic#key".hashCode())`, made cheap.

Unique keys that a producer makes within one millisecond differ only in their last four characters, which are
hexadecimal. The hasher therefore caches the hash of topic and prefix; the last four characters cost two look-ups.
"""

from __future__ import annotations

from operator import mul
from typing import Final

from gantry_broker.protocol.message import java_hash

_MASK: Final = 0xFFFFFFFF
_CHUNK: Final = 64
_POWERS: Final[tuple[int, ...]] = tuple(pow(31, n, 1 << 32) for n in range(_CHUNK + 1))
_WEIGHTS: Final[tuple[tuple[int, ...], ...]] = tuple(tuple(reversed(_POWERS[:n])) for n in range(_CHUNK + 1))
_PAIRS: Final = {f"{n:02X}": java_hash(f"{n:02X}") for n in range(256)}
_TAIL: Final = 4
_POWER_OF_TAIL: Final = 31 * 31 * 31 * 31
_POWER_OF_PAIR: Final = 31 * 31
_MAX_PREFIXES: Final = 1024


class KeyHasher:
    """Hashes the keys of one topic."""

    __slots__ = ("_prefixes", "_seed", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._seed = java_hash(topic + "#") & _MASK
        self._prefixes: dict[str, int] = {}

    def hash(self, key: str) -> int:
        """Return the hash of a key, 0 or more; 0 without an absolute value in 31 bits. Source: `indexKeyHashMethod`."""
        high, low = _PAIRS.get(key[-4:-2]), _PAIRS.get(key[-2:])
        if high is None or low is None:
            return _absolute(self._extended(key))
        prefix = key[:-_TAIL]
        known = self._prefixes.get(prefix)
        if known is None:
            if len(self._prefixes) >= _MAX_PREFIXES:
                self._prefixes.clear()
            known = self._prefixes[prefix] = self._extended(prefix)
        value = (known * _POWER_OF_TAIL + high * _POWER_OF_PAIR + low) & _MASK
        return _absolute(value) if value & 0x80000000 else value

    def _extended(self, text: str) -> int:
        """Return the hash of "topic#text" as an unsigned number."""
        if not text.isascii():
            return java_hash(f"{self._topic}#{text}") & _MASK
        value = self._seed
        rest = text.encode()
        while len(rest) > _CHUNK:
            value = (value * _POWERS[_CHUNK] + sum(map(mul, rest[:_CHUNK], _WEIGHTS[_CHUNK]))) & _MASK
            rest = rest[_CHUNK:]
        last: int = sum(map(mul, rest, _WEIGHTS[len(rest)]))
        return (value * _POWERS[len(rest)] + last) & _MASK


def _absolute(value: int) -> int:
    if value & 0x80000000:
        value = 0x1_0000_0000 - value
        return 0 if value == 0x80000000 else value
    return value
