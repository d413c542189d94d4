"""The leader epochs of a log: which leadership wrote from which offset on, and the file that keeps them.

An epoch begins with its control record, which carries the epoch as a property. The log itself therefore has its
epochs; `config/epochs.json` keeps those whose records retention has removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.message import parse_properties
from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import NO_ROOM, atomic_write
from gantry_broker.store.log.record_reader import FILLER_MIN, Meta
from gantry_broker.store.sealed import fault_of, seal, unseal
from gantry_broker.store.warnings import RateLimitedWarnings

EPOCH_PROPERTY: Final = "GANTRY_EPOCH"
"""The property of an epoch's control record; its value is the epoch in decimal."""
MAX_SEGMENT: Final = 0x7FFFFFFF
"""Bytes: RocketMQ's setting is an int."""
_EPOCH: Final = EPOCH_PROPERTY.encode()
_CONTROL: Final = CONTROL_TOPIC.encode()


EPOCHS_REMEDY: Final = (
    "restore the file, or empty the member's disk, so that it copies the log of another member. Without another "
    "member, remove the file: the start reads the epochs from a log that begins at offset 0"
)


class EpochStart(NamedTuple):
    """A leadership: its epoch and the offset of its first (control) record."""

    epoch: int
    start: int


LeaderEpochs = tuple[EpochStart, ...]
"""Every epoch of a log, oldest first: epochs strictly rise, starts never fall."""

FOREIGN: Final[LeaderEpochs] = (EpochStart(0, 0),)
"""The epochs of a log that RocketMQ wrote."""


def check_epochs(epochs: Sequence[tuple[int, int]]) -> LeaderEpochs:
    """Return them as LeaderEpochs. Raises StoreError when epochs do not rise, starts fall, or a value is too large."""
    try:
        checked = tuple(
            EpochStart(plausible.epoch("epoch", epoch), plausible.offset("offset", start)) for epoch, start in epochs
        )
    except plausible.Implausible as error:
        raise StoreError(f"leader epochs: {error}") from error
    for before, after in pairwise(checked):
        if after.epoch <= before.epoch or after.start < before.start:
            raise StoreError(f"leader epochs are out of order: epoch {after.epoch} at {after.start} follows {before}")
    return checked


def extend_epochs(epochs: LeaderEpochs, in_log: Sequence[EpochStart]) -> LeaderEpochs:
    """`epochs` with those found in the log itself, some of which may be known. Raises StoreError as `check_epochs`."""
    listed = {entry.epoch for entry in epochs}
    return check_epochs(sorted([*epochs, *(entry for entry in in_log if entry.epoch not in listed)]))


def truncate_epochs(epochs: LeaderEpochs, end: int) -> LeaderEpochs:
    """Return the epochs whose first record lies below `end`. RocketMQ's epoch 0 has no control record and stays."""
    return tuple(entry for entry in epochs if entry.start < end or entry == FOREIGN[0])


def foreign_end(epochs: LeaderEpochs) -> int:
    """Return the offset up to which RocketMQ wrote the log; 0: nowhere."""
    if epochs[:1] != FOREIGN:
        return 0
    return epochs[1].start if len(epochs) > 1 else plausible.MAX_OFFSET


def epoch_of(meta: Meta) -> int | None:
    """Return the epoch that a record begins; None for every record but an epoch's control record."""
    if meta.topic != _CONTROL or _EPOCH not in meta.properties:
        return None
    value = parse_properties(meta.properties).get(EPOCH_PROPERTY, "")
    return whole_number(value)


class EpochFile(NamedTuple):
    """Content of `config/epochs.json`."""

    segment_size: int
    epochs: LeaderEpochs

    @classmethod
    def load(cls, path: Path) -> EpochFile | None:
        """Read the file; None when there is none. Raises StoreError for invalid content."""
        try:
            data = orjson.loads(unseal(path.read_bytes()))
            size = data["segmentSize"]
            if type(size) is not int or not FILLER_MIN < size <= MAX_SEGMENT:
                raise ValueError(f"segmentSize is {size!r}")
            return cls(size, check_epochs(data["epochs"]))
        except FileNotFoundError:
            return None
        except (StoreError, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path}: invalid leader epochs: {fault_of(error)}; {EPOCHS_REMEDY}") from error

    def save(self, path: Path) -> None:
        """Write the file durably. Raises OSError."""
        content = {"segmentSize": self.segment_size, "epochs": [list(e) for e in self.epochs]}
        atomic_write(path, seal(orjson.dumps(content)))


class EpochCache:
    """The leader epochs in memory, and their file."""

    def __init__(self, path: Path, segment_size: int, warnings: RateLimitedWarnings) -> None:
        self.path = path
        self.epochs: LeaderEpochs = ()
        self.persisted = True
        """The file holds the same epochs. A full disk may have refused them."""
        self._segment_size = segment_size
        self._warnings = warnings

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; 0 for an empty log."""
        return self.epochs[-1].epoch if self.epochs else 0

    def set(self, epochs: LeaderEpochs) -> None:
        """Write the epochs to the file, then take them over. Raises OSError; the epochs in memory then stay."""
        self.persisted = False  # A failed write may have replaced the file all the same.
        EpochFile(self._segment_size, epochs).save(self.path)
        self.epochs = epochs
        self.persisted = True

    def set_lazily(self, epochs: LeaderEpochs) -> None:
        """Take the epochs over at once; a full disk may delay the write. Raises OSError of other kinds.

        This is safe while recovery reads the same epochs from the log. The recovery point therefore must not move past
        them before the file is written (see `persist`).
        """
        self.epochs, self.persisted = epochs, False
        self.persist()

    def persist(self) -> bool:
        """Write epochs that a full disk has refused; False when the disk is still full.

        Raises OSError of other kinds.
        """
        if not self.persisted:
            try:
                self.set(self.epochs)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._warnings.warn(f"cannot write {self.path}", error)
        return self.persisted
