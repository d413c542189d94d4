"""The epochs of a log: which leadership wrote from which offset on, and the file that keeps it.

An epoch begins with its control record, which carries the epoch as a property, so that the history can always be told
from the log itself; `config/epochs.json` keeps what retention has taken from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import atomic_write

EPOCH_PROPERTY: Final = "GANTRY_EPOCH"
"""The property of an epoch's control record; its value is the epoch in decimal."""


class EpochStart(NamedTuple):
    """One leadership as the log tells it: its epoch and the offset of its first (control) record."""

    epoch: int
    start: int


LeaderEpochs = tuple[EpochStart, ...]
"""Every epoch of a log, oldest first: epochs strictly rise, starts never fall."""

FOREIGN: Final[LeaderEpochs] = (EpochStart(0, 0),)
"""The history of a log that RocketMQ wrote."""


def check_epochs(epochs: Sequence[tuple[int, int]]) -> LeaderEpochs:
    """The same as a History. Raises StoreError when epochs do not rise or starts fall."""
    checked = tuple(EpochStart(int(epoch), int(start)) for epoch, start in epochs)
    for before, after in pairwise(checked):
        if after.epoch <= before.epoch or after.start < before.start:
            raise StoreError(f"history is out of order: epoch {after.epoch} at {after.start} follows {before}")
    return checked


def extend_epochs(epochs: LeaderEpochs, found: Sequence[EpochStart]) -> LeaderEpochs:
    """`history` with the epochs that were found in the log itself, which may be known already."""
    known = {entry.epoch for entry in epochs}
    return check_epochs(sorted([*epochs, *(entry for entry in found if entry.epoch not in known)]))


def truncate_epochs(epochs: LeaderEpochs, end: int) -> LeaderEpochs:
    """The epochs whose first record lies below `end`. RocketMQ's epoch 0 has no control record and stays."""
    return tuple(entry for entry in epochs if entry.start < end or entry == FOREIGN[0])


class EpochFile(NamedTuple):
    """Content of `config/epochs.json`."""

    segment_size: int
    epochs: LeaderEpochs

    @classmethod
    def load(cls, path: Path) -> EpochFile | None:
        """None when there is no such file. Raises StoreError when it cannot be understood."""
        try:
            data = orjson.loads(path.read_bytes())
            return cls(int(data["segmentSize"]), check_epochs(data["epochs"]))
        except FileNotFoundError:
            return None
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path}: not a history of epochs: {error!r}") from error

    def save(self, path: Path) -> None:
        """Durable when it returns. Raises OSError."""
        atomic_write(path, orjson.dumps({"segmentSize": self.segment_size, "epochs": [list(h) for h in self.epochs]}))
