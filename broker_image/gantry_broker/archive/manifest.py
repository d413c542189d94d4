"""The manifest of one group's archive: a chain of numbered entries, each written once. Pure.

Entry n is an object that is created only if it does not exist, so of two writers one fails, reads on, and decides
again. An entry says what changed; every `WHOLE_EVERY`-th has the whole state as well, so a reader begins there. A state
describes one log: a run of objects without holes, except for the gaps that it names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from gantry_broker.archive.errors import ArchiveError, Damaged
from gantry_broker.archive.numbers import natural, read_json, write_json
from gantry_broker.protocol import plausible
from gantry_broker.store.errors import StoreError
from gantry_broker.store.log.epochs import MAX_SEGMENT, EpochStart, LeaderEpochs, check_epochs
from gantry_broker.store.log.record_reader import FILLER_MIN

VERSION: Final = 1
WHOLE_EVERY: Final = 32
MAX_ENTRY: Final = 64 << 20
"""Bytes of an entry: larger ones are refused."""
MAX_PART: Final = 512 << 20
"""Bytes of an object with records: 32 MiB of the log and its index, or one of the largest records."""
_PART: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


class Part(NamedTuple):
    """An object with [start, end) of the log. `epoch`: of its last record; `first_ms`, `last_ms`: of its records."""

    name: str
    start: int
    end: int
    epoch: int
    size: int
    """Bytes of the object."""
    sha256: str
    records: int
    first_ms: int
    last_ms: int


class Gap(NamedTuple):
    """A range of the log that the archive lacks, and why."""

    start: int
    end: int
    reason: str


class Owner(NamedTuple):
    """Which cluster writes: the number of the identity object that says so, and the cluster's unique id."""

    number: int
    uid: str


class Change(NamedTuple):
    """What one entry changes, in this order: cut, base, gap, added, removed, start, damaged."""

    cut: int | None = None
    """The log was truncated here by an unclean promotion: parts above go, one across it is named in `removed`."""
    base: tuple[int, LeaderEpochs] | None = None
    """The archive begins at this offset, the first of a segment; the leader epochs that began before it."""
    gap: Gap | None = None
    added: tuple[Part, ...] = ()
    removed: tuple[str, ...] = ()
    start: int | None = None
    """Retention: everything below this offset leaves the archive."""
    closed: str = ""
    """The owner hands over: nothing follows from it. The text is the token that the next owner names."""
    damaged: tuple[str, ...] | None = None
    """The parts that cannot be read back, all of them; None: no change."""


@dataclass(frozen=True, slots=True)
class State:
    """The archive of a group after entry `n`. `n` is 0 before the first entry."""

    n: int = 0
    owner: Owner | None = None
    segment_size: int = 0
    epochs: LeaderEpochs = ()
    """The leader epochs of the log up to `end`."""
    base: int = 0
    """Where the archive began: the first offset of a segment."""
    parts: tuple[Part, ...] = ()
    """By offset."""
    gaps: tuple[Gap, ...] = ()
    at_ms: int = 0
    """When entry `n` was written, by its writer's clock."""
    closed: str = ""
    damaged: frozenset[str] = frozenset()
    """Names of the parts that cannot be read back. Writers leave them as they are."""

    @property
    def start(self) -> int:
        """The first offset of the log that can be read."""
        return self.parts[0].start if self.parts else self.base

    @property
    def end(self) -> int:
        """The offset behind the last archived record."""
        last = self.parts[-1].end if self.parts else self.base
        return max([last, *(g.end for g in self.gaps[-1:])])

    @property
    def first_ms(self) -> int:
        return self.parts[0].first_ms if self.parts else 0

    @property
    def last_ms(self) -> int:
        return max((p.last_ms for p in self.parts[-8:]), default=0)

    @property
    def size(self) -> int:
        """Bytes of all objects with records."""
        return sum(p.size for p in self.parts)

    @property
    def readable_from(self) -> int:
        """The first offset from which the log has no gap up to `end`."""
        return max([self.start, *(g.end for g in self.gaps)])

    def part_at(self, offset: int) -> Part | None:
        """Return the part that has this offset of the log; None: none has."""
        low, high = 0, len(self.parts)
        while low < high:
            middle = (low + high) // 2
            if self.parts[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        if low < len(self.parts) and self.parts[low].start <= offset:
            return self.parts[low]
        return None

    def next(
        self, change: Change, *, owner: Owner, segment_size: int, epochs: Sequence[EpochStart], at_ms: int
    ) -> State:
        """Return the state after a change. `epochs`: those that begin in the added parts. Raises ArchiveError when the
        change does not continue this state.
        """
        if self.owner is not None and owner.number < self.owner.number:
            raise ArchiveError(f"owner {owner.number} wrote after owner {self.owner.number}")
        if self.segment_size and segment_size != self.segment_size:
            raise ArchiveError(f"segments of {segment_size} bytes after segments of {self.segment_size}")
        if self.closed and self.owner is not None and owner.number == self.owner.number:
            raise ArchiveError("its owner has handed the archive over")
        state = replace(self, n=self.n + 1, owner=owner, segment_size=segment_size, at_ms=at_ms, closed=change.closed)
        removed = set(change.removed)
        parts = list(self.parts)
        all_epochs = list(self.epochs)
        gaps = list(self.gaps)
        if change.cut is not None:
            cut = change.cut
            if cut > self.end or (cut < self.start and change.base is None):
                raise ArchiveError(f"a cut at {cut} is outside of the archive, {self.start} to {self.end}")
            if any(p.start < cut < p.end and p.name not in removed for p in parts):
                raise ArchiveError(f"the part across the cut at {cut} stays")
            parts = [p for p in parts if p.end <= cut]
            gaps = [g._replace(end=min(g.end, cut)) for g in gaps if g.start < cut]
            all_epochs = [e for e in all_epochs if e.start < cut]
        if change.base is not None:
            base, before = change.base
            if parts or (self.n and change.cut is None and base < self.end):
                raise ArchiveError(f"the archive has parts up to {self.end} and cannot begin at {base}")
            state = replace(state, base=base)
            all_epochs = list(before)
            gaps = []
        present = {p.name for p in parts}
        if absent := removed - present - {p.name for p in self.parts}:
            raise ArchiveError(f"{min(absent)} is removed, but the archive does not have it")
        parts = [p for p in parts if p.name not in removed]
        if change.gap is not None:
            gaps.append(change.gap)
        parts = sorted([*parts, *change.added], key=lambda p: p.start)
        fresh = [e for e in epochs if not all_epochs or e.epoch > all_epochs[-1].epoch]
        try:
            all_epochs = list(check_epochs([*all_epochs, *fresh]))
        except StoreError as error:
            raise ArchiveError(str(error)) from None
        if change.start is not None:
            parts = [p for p in parts if p.end > change.start]
            gaps = [g for g in gaps if g.end > change.start]
        damaged = self.damaged if change.damaged is None else frozenset(change.damaged)
        damaged &= {p.name for p in parts}
        state = replace(state, parts=tuple(parts), gaps=tuple(gaps), epochs=tuple(all_epochs), damaged=damaged)
        state.check_invariants()
        return state

    def check_invariants(self) -> None:
        """Raise ArchiveError unless parts and gaps follow each other without a hole."""
        covered = sorted([*((p.start, p.end) for p in self.parts), *((g.start, g.end) for g in self.gaps)])
        at = None
        for start, end in covered:
            if end <= start:
                raise ArchiveError(f"a part or gap from {start} to {end}")
            if at is not None and start != at:
                raise ArchiveError(f"the archive has a hole or two copies between {at} and {start}")
            at = end


def follow(state: State | None, data: bytes) -> State:
    """Return the state after one more entry. None: nothing is known, so the entry is the first or has the whole state.

    Raises Damaged for an entry that is not valid, ArchiveError for one that does not continue the others.
    """
    value = _load(data)
    n = int(value["n"])
    if state is None and n > 1:
        if value.get("whole") is None:
            raise ArchiveError(f"entry {n} has not the whole state, and those before it are missing")
        whole = _state(value["whole"])
        if whole.n != n:
            raise Damaged(f"entry {n} has the state of {whole.n}")
        return whole
    state = state or State()
    if n != state.n + 1:
        raise ArchiveError(f"entry {n} follows entry {state.n}")
    change, owner, segment_size, epochs, at_ms = _change(value)
    return state.next(change, owner=owner, segment_size=segment_size, epochs=epochs, at_ms=at_ms)


def encode(state: State, change: Change, epochs: Sequence[EpochStart]) -> bytes:
    """Return entry `state.n`, which leads to `state`."""
    assert state.owner is not None
    return write_json(
        {
            "version": VERSION,
            "n": state.n,
            "atMs": state.at_ms,
            "owner": list(state.owner),
            "segmentSize": state.segment_size,
            "epochs": [list(e) for e in epochs],
            "cut": change.cut,
            "base": None
            if change.base is None
            else {"at": change.base[0], "epochs": [list(e) for e in change.base[1]]},
            "gap": None if change.gap is None else list(change.gap),
            "added": [list(p) for p in change.added],
            "removed": list(change.removed),
            "start": change.start,
            "closed": change.closed,
            "damaged": None if change.damaged is None else list(change.damaged),
            "whole": _whole(state) if state.n % WHOLE_EVERY == 0 else None,
        }
    )


def _whole(state: State) -> dict[str, Any]:
    return {
        "n": state.n,
        "owner": None if state.owner is None else list(state.owner),
        "segmentSize": state.segment_size,
        "epochs": [list(e) for e in state.epochs],
        "base": state.base,
        "parts": [list(p) for p in state.parts],
        "gaps": [list(g) for g in state.gaps],
        "atMs": state.at_ms,
        "closed": state.closed,
        "damaged": sorted(state.damaged),
    }


def _load(data: bytes) -> dict[str, Any]:
    value = read_json("an entry of the manifest", data, MAX_ENTRY)
    try:
        version, n = value["version"], value["n"]
        if type(version) is not int or type(n) is not int or n < 1:
            raise ValueError(f"version {version!r}, entry {n!r}")
    except (KeyError, ValueError) as error:
        raise Damaged(f"an entry of the manifest is invalid: {error!r}") from None
    if version != VERSION:
        raise ArchiveError(f"the manifest has format version {version}, this program reads version {VERSION}")
    return value


def _change(value: dict[str, Any]) -> tuple[Change, Owner, int, list[EpochStart], int]:
    try:
        base = value["base"]
        change = Change(
            None if value["cut"] is None else plausible.offset("cut", value["cut"]),
            None if base is None else (plausible.offset("base", base["at"]), _epochs(base["epochs"])),
            None if value["gap"] is None else _gap(value["gap"]),
            tuple(_part(p) for p in value["added"]),
            tuple(_name(name) for name in value["removed"]),
            None if value["start"] is None else plausible.offset("start", value["start"]),
            _text(value["closed"]),
            None if value.get("damaged") is None else tuple(_name(name) for name in value["damaged"]),
        )
        owner = _owner(value["owner"])
        epochs = list(_epochs(value["epochs"]))
        return change, owner, _segment_size(value["segmentSize"]), epochs, natural(value["atMs"])
    except (KeyError, TypeError, ValueError, StoreError) as error:
        raise Damaged(f"entry {value['n']} is invalid: {error!r}") from None


def _state(value: dict[str, Any]) -> State:
    try:
        state = State(
            natural(value["n"]),
            None if value["owner"] is None else _owner(value["owner"]),
            _segment_size(value["segmentSize"]),
            _epochs(value["epochs"]),
            plausible.offset("base", value["base"]),
            tuple(_part(p) for p in value["parts"]),
            tuple(_gap(g) for g in value["gaps"]),
            natural(value["atMs"]),
            _text(value["closed"]),
            frozenset(_name(name) for name in value.get("damaged") or ()),
        )
    except (KeyError, TypeError, ValueError, StoreError) as error:
        raise Damaged(f"the whole state in an entry is invalid: {error!r}") from None
    state.check_invariants()
    return state


def _epochs(value: Any) -> LeaderEpochs:
    return check_epochs([(epoch, start) for epoch, start in value])


def _part(value: Any) -> Part:
    name, start, end, epoch, size, sha256, records, first_ms, last_ms = value
    for number in (start, end, epoch, size, records, first_ms, last_ms):
        natural(number)
    plausible.number("size", size, 0, MAX_PART)
    return Part(_name(name), start, end, epoch, size, _text(sha256), records, first_ms, last_ms)


def _name(value: Any) -> str:
    if not isinstance(value, str) or _PART.fullmatch(value) is None:
        raise ValueError(f"part {plausible.shown(value)}")
    return value


def _text(value: Any) -> str:
    return plausible.text("text", value, plausible.MAX_TEXT)


def _segment_size(value: Any) -> int:
    return plausible.number("segmentSize", value, FILLER_MIN + 1, MAX_SEGMENT)


def _gap(value: Any) -> Gap:
    start, end, reason = value
    return Gap(natural(start), natural(end), _text(reason))


def _owner(value: Any) -> Owner:
    number, uid = value
    return Owner(natural(number), _text(uid))
