"""What verifications of an archive found: an object in it for each, so that every member and every tool can read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import orjson

from gantry_broker.archive.errors import ArchiveError, Damaged
from gantry_broker.archive.numbers import read_json
from gantry_broker.protocol import plausible

VERSION: Final = 1
MAX_FAULTS: Final = 20
"""Faults that are named; all of them are counted."""
MAX_FAULT: Final = 500
"""Characters of a fault's text."""
MAX_SIZE: Final = 1 << 20
"""Bytes of an object: a larger one is refused."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Every object of a group's archive was read back. Times are Unix ms."""

    at_ms: int
    """When it ended, by the verifier's clock."""
    end: int
    """The offset of the log up to which the archive was read."""
    until_ms: int
    """The store time of the last record there."""
    objects: int
    size: int
    """Bytes of them."""
    records: int
    faults: int
    """Objects that are damaged or missing."""
    first_faults: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        return orjson.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, name: str, data: bytes) -> Verification:
        """Read what `to_json` wrote. Raises Damaged, ArchiveError."""
        try:
            value = read_json(name, data, MAX_SIZE)
            version = value["version"]
            if version != VERSION:
                raise ArchiveError(f"{name}: it has format version {version!r}, this program reads version {VERSION}")
            numbers = {
                part: plausible.offset(part, value[part])
                for part in ("at_ms", "end", "until_ms", "objects", "size", "records", "faults")
            }
            faults = value["first_faults"]
            if not isinstance(faults, list) or not all(isinstance(fault, str) for fault in faults):
                raise ValueError("first_faults")
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{name}: the result of a verification is invalid: {error!r}") from None
        return cls(**numbers, first_faults=shortened(faults))


def shortened(faults: Sequence[str]) -> tuple[str, ...]:
    """Return the first faults, each of a bounded length."""
    return tuple(fault[:MAX_FAULT] for fault in faults[:MAX_FAULTS])
