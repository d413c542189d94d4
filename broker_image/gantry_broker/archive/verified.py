"""What verifications of an archive found: an object in it for each, so that every member and every tool can read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from gantry_broker.archive.errors import ArchiveError, Damaged
from gantry_broker.archive.manifest import State
from gantry_broker.archive.numbers import read_json, write_json
from gantry_broker.protocol import plausible

VERSION: Final = 1
MAX_FAULTS: Final = 20
"""Faults that are named; all of them are counted."""
MAX_FAULT: Final = 500
"""Characters of a fault's text."""
MAX_DAMAGED: Final = 1_000
"""Objects whose names are kept."""
MAX_NAME: Final = 255
"""Characters of such a name."""
MAX_SIZE: Final = 1 << 20
"""Bytes of an object: a larger one is refused."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Every object of a group's archive was read back. Times are Unix ms."""

    at_ms: int
    """When it ended, by the object store's clock: the verifier's own may be wrong."""
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
    damaged: tuple[str, ...] = ()
    """Their names, `MAX_DAMAGED` of them at most."""
    number: int = 0
    """Its place in the order of all results, which no clock decides; 0: it is not in the archive."""

    def to_json(self) -> bytes:
        fields = asdict(self)
        del fields["number"]
        return write_json({"version": VERSION, **fields})

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
            names = value.get("damaged", [])
            for field, texts in (("first_faults", faults), ("damaged", names)):
                if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                    raise ValueError(field)
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{name}: the result of a verification is invalid: {error!r}") from None
        damaged = tuple(name[:MAX_NAME] for name in names[:MAX_DAMAGED])
        return cls(**numbers, first_faults=shortened(faults), damaged=damaged)


def shortened(faults: Sequence[str]) -> tuple[str, ...]:
    """Return the first faults, each of a bounded length."""
    return tuple(fault[:MAX_FAULT] for fault in faults[:MAX_FAULTS])


def faults_left(result: Verification | None, state: State) -> tuple[int, str]:
    """Return how many objects of the archive are damaged or missing, and a text about one of them: those that the
    manifest names, and those that a verification found and that are still in the archive.
    """
    parts = {part.name for part in state.parts}
    damaged = () if result is None else result.damaged
    left = [name for name in damaged if name in parts]
    more = sorted(state.damaged.difference(left))
    unnamed = 0 if result is None else max(result.faults - len(damaged), 0)
    texts = () if result is None else result.first_faults
    fault = next((fault for fault in texts if not damaged or any(name in fault for name in left)), "")
    if not fault and (left or more):
        fault = f"{(left or more)[0]} cannot be read back"
    count = len(left) + len(more) + unnamed
    return count, fault if count else ""
