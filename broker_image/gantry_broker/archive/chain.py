"""The archive of a cluster: its identity, and the manifest of each group, over an object store. All calls block.

identity/00000001.json                     who owns the archive; the highest number counts
groups/a/manifest/000000000001.json        entries of the manifest of group a
groups/a/parts/START-END-EPOCH-RANDOM.gar  ranges of its log
groups/a/clock/RANDOM                      exists for a moment: its time shows the store's clock
groups/a/verified/NUMBER.json              what a verification found; the highest number counts

An object with another name was put there by a person or another program. It is ignored, and nothing removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gantry_broker.archive import manifest
from gantry_broker.archive.errors import ArchiveError, Damaged, Fenced, Missing, Overtaken, Unavailable
from gantry_broker.archive.manifest import MAX_ENTRY, WHOLE_EVERY, Change, Owner, Part, State
from gantry_broker.archive.numbers import read_json, write_json
from gantry_broker.archive.objects import ListedObject, Objects
from gantry_broker.archive.sealing import SEALED, Plain, Sealer
from gantry_broker.archive.segment import Directory, RangeReader
from gantry_broker.archive.verified import MAX_SIZE, Verification
from gantry_broker.protocol import plausible
from gantry_broker.protocol.digits import whole_number
from gantry_broker.store.log.epochs import EpochStart

log = logging.getLogger(__name__)

VERSION: Final = 1
IDENTITY: Final = "identity/"
GROUPS: Final = "groups/"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PART: Final = re.compile(r"[0-9]{20}-[0-9]{20}-[0-9]{16}-[0-9a-f]{12}\.gar")
_CLOCK: Final = re.compile(r"[0-9a-f]{12}")
MAX_STRANGERS: Final = 100
"""Names of other objects that are remembered, so that the log has each of them once."""
MAX_PROBES: Final = 10_000
"""Entries behind those in the listing that are looked for one by one."""
MAX_IDENTITY_TEXT: Final = 1_024
"""Characters of a text of an identity."""
MAX_IDENTITY_BYTES: Final = 64 << 10
"""Bytes of an identity."""
MAX_IDENTITY: Final = 99_999_999
"""The highest number of an identity: its name has eight digits."""
VERIFICATIONS: Final = 10
"""Results of verifications that are kept."""
FORMER_OWNERS: Final = 100
"""Identities before the newest one among which a cluster looks for its own."""
TRIES: Final = 20
"""Entries that the former owner may write while another cluster takes the archive over."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who owns the archive. `number` rises with each change of the owner."""

    number: int
    uid: str
    """The cluster's unique id."""
    cluster: str
    """The cluster's name, for people."""
    at_ms: int
    reason: str = "created"
    token: str = ""
    """The token of the hand-over from the former owner; "" for none."""
    key_id: str = ""
    """Of the encryption key; "" without encryption."""

    def to_json(self) -> bytes:
        return write_json(
            {
                "version": VERSION,
                "number": self.number,
                "uid": self.uid,
                "cluster": self.cluster,
                "atMs": self.at_ms,
                "reason": self.reason,
                "token": self.token,
                "keyId": self.key_id,
            }
        )

    @classmethod
    def from_json(cls, name: str, data: bytes) -> Identity:
        """Read an identity. Raises Damaged, ArchiveError."""
        try:
            value = read_json(name, data, MAX_IDENTITY_BYTES)
            version = value["version"]
            if version != VERSION:
                raise ArchiveError(f"{name}: it has format version {version!r}, this program reads version {VERSION}")
            number, at_ms = value["number"], value["atMs"]
            if type(number) is not int or not 1 <= number <= MAX_IDENTITY or name != _identity_name(number):
                raise ValueError(f"number {plausible.shown(number)}")
            plausible.offset("atMs", at_ms)
            texts = {field: value[field] for field in ("uid", "cluster", "reason", "token", "keyId")}
            for field, text in texts.items():
                plausible.text(field, text, MAX_IDENTITY_TEXT)
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{name}: the identity is invalid: {error!r}") from None
        return cls(number, texts["uid"], texts["cluster"], at_ms, texts["reason"], texts["token"], texts["keyId"])


class _Folder:
    """A folder of an archive: it lists those of its objects that have a name of the archive's own."""

    def __init__(self, objects: Objects, strangers: set[str], prefix: str) -> None:
        """`strangers`: names of other objects that the log has named."""
        self._objects = objects
        self._strangers = strangers
        self._prefix = prefix

    def numbered(self, digits: int, after: str = "") -> Iterator[tuple[int, ListedObject]]:
        """Yield the objects whose names are numbers of so many digits, in any order. Raises ArchiveError."""
        for item in self._objects.list(self._prefix, after):
            number = whole_number(item.name.removeprefix(self._prefix).removesuffix(".json"), 1)
            if number is not None and item.name == f"{self._prefix}{number:0{digits}d}.json":
                yield number, item
            else:
                self._note(item.name)

    def named(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, ListedObject]]:
        """Yield the objects whose names below the folder match, in any order. Raises ArchiveError."""
        for item in self._objects.list(self._prefix):
            name = item.name.removeprefix(self._prefix)
            if pattern.fullmatch(name):
                yield name, item
            else:
                self._note(item.name)

    def _note(self, name: str) -> None:
        if name not in self._strangers and len(self._strangers) < MAX_STRANGERS:
            self._strangers.add(name)
            log.warning("the archive: %s is none of its objects, and is ignored", repr(name))


class Archive:
    """An archive behind an object store."""

    def __init__(self, objects: Objects, sealer: Sealer | None = None) -> None:
        self.objects = objects
        self.sealer: Sealer = sealer or Plain()
        self._strangers: set[str] = set()

    def folder(self, prefix: str) -> _Folder:
        return _Folder(self.objects, self._strangers, prefix)

    # Identity

    def identity(self) -> Identity | None:
        """Return the newest identity; None: the archive is new. Raises ArchiveError."""
        number = max((n for n, _ in self.folder(IDENTITY).numbered(8)), default=0)
        identity = self._identity(_identity_name(number)) if number else None
        # A newer owner that the listing lacks must not be overlooked: two clusters would write.
        for _ in range(MAX_PROBES):  # The listing may lag behind.
            number += 1
            name = _identity_name(number)
            try:
                identity = self._identity(name)
            except Missing:
                return identity
        raise ArchiveError(f"the archive has over {MAX_PROBES} identities that no listing has")

    def _identity(self, name: str) -> Identity:
        return Identity.from_json(name, self.objects.get(name, MAX_IDENTITY_BYTES))

    def claim(self, uid: str, cluster: str, now_ms: int) -> Identity:
        """Return the identity of this cluster; make it when the archive is new. Raises Fenced for another owner,
        ArchiveError.
        """
        identity = self.identity()
        if identity is None:
            mine = Identity(1, uid, cluster, now_ms, key_id=self.sealer.key_id)
            created = self.objects.create(_identity_name(1), mine.to_json())
            identity = mine if created else self.identity()
        if identity is None:
            raise Unavailable("the object store neither keeps nor returns the archive's identity")
        if identity.uid != uid:
            raise Fenced(
                f"the archive belongs to cluster {identity.cluster} ({identity.uid}), this is cluster {cluster} "
                f"({uid}): write another spec.archive.url"
            )
        # The name is taken, so the store has to refuse. With one that overwrites, two members could replace each
        # other's entries, and acknowledged records would leave the archive.
        if self.objects.create(_identity_name(identity.number), identity.to_json()):
            raise Unavailable(
                "the object store writes an object that is there already, or says so, though it was asked to write a "
                "new one only: two members could overwrite each other's work. Use one that takes If-None-Match"
            )
        if identity.key_id != self.sealer.key_id:
            raise ArchiveError(
                "the archive was begun "
                + (f"with encryption key {identity.key_id}" if identity.key_id else "without encryption")
                + ": write the same in spec.archive.encryption, or another spec.archive.url"
            )
        return identity

    def hand_over(self, former: Identity, uid: str, cluster: str, now_ms: int, reason: str, token: str) -> Identity:
        """Make this cluster the owner after `former`. Raises Fenced when another one was faster."""
        mine = Identity(former.number + 1, uid, cluster, now_ms, reason, token, former.key_id)
        if not self.objects.create(_identity_name(mine.number), mine.to_json()):
            newest = self.identity()
            if newest is None or newest.uid != uid:
                name = "another cluster" if newest is None else newest.cluster
                raise Fenced(f"{name} became the archive's owner at the same time: look at its status first")
            return newest
        return mine

    def was_owner(self, uid: str, newest: Identity) -> bool:
        """Return whether a cluster owned the archive before the newest owner, as one of the last `FORMER_OWNERS`.
        Raises ArchiveError.
        """
        before = newest.number - 1
        for number in range(before, max(before - FORMER_OWNERS, 0), -1):
            name = _identity_name(number)
            with contextlib.suppress(Missing):
                if self._identity(name).uid == uid:
                    return True
        return False

    # Groups

    def groups(self) -> list[str]:
        """Return the names of the groups. Raises ArchiveError."""
        paths = (item.name.split("/") for item in self.objects.list(GROUPS))
        names = {p[1] for p in paths if len(p) == 4 and p[2] in ("manifest", "parts")}
        return sorted(name for name in names if _NAME.fullmatch(name))

    def group(self, name: str) -> GroupArchive:
        """Return the archive of a group. Raises ArchiveError for an impossible name."""
        if not _NAME.fullmatch(name):
            raise ArchiveError(f"group {name!r}: the name cannot be that of a group")
        return GroupArchive(self, name)


class GroupArchive:
    """The archive of one group: its manifest and its parts."""

    def __init__(self, archive: Archive, name: str) -> None:
        self.name = name
        self._objects = archive.objects
        self.sealer = archive.sealer
        self._prefix = prefix = f"{GROUPS}{name}/"
        self._manifest = archive.folder(f"{prefix}manifest/")
        self._parts = archive.folder(f"{prefix}parts/")
        self._clocks = archive.folder(f"{prefix}clock/")
        self._results = archive.folder(f"{prefix}verified/")

    # Manifest

    def load(self, former: State | None = None, *, checked: bool = True) -> State:
        """Return the newest state, from `former` on if it is given. An archive without entries gives `State()`.

        Without `checked` it may be an old one where `former` is older than what `forget_entries` keeps: for a writer,
        whose `append` finds that out. Raises ArchiveError.
        """
        state = former
        if state is None or state.n == 0 or (checked and self._is_forgotten(state.n)):
            state = self._load_from_listing()
        for _ in range(MAX_PROBES):
            try:
                data = self._objects.get(self._entry(state.n + 1), MAX_ENTRY)
            except Missing:
                # An answer of an earlier moment. As the newest state it would give a number that was used to the next
                # entry.
                if former is not None and state.n < former.n:
                    raise Unavailable(
                        f"group {self.name}: the object store answers entry {state.n} of the manifest as the newest "
                        f"one, and has answered {former.n} before"
                    ) from None
                return state
            state = manifest.follow(state, data)
        raise ArchiveError(f"group {self.name}: its manifest has over {MAX_PROBES} entries that no listing has")

    def _load_from_listing(self) -> State:
        newest = max((n for n, _ in self._manifest.numbered(12)), default=0)
        if newest == 0:
            return State()
        begin = newest - newest % WHOLE_EVERY or 1
        state: State | None = None
        for n in range(begin, newest + 1):
            try:
                data = self._objects.get(self._entry(n), MAX_ENTRY)
            except Missing:
                # Without one entry the rest gives another state, in which replaced parts count again.
                raise Damaged(f"group {self.name}: entry {n} of the manifest is missing") from None
            state = manifest.follow(state, data)
        assert state is not None
        return state

    def _is_forgotten(self, n: int) -> bool:
        """Whether there are entries behind `n`. If entry `n + 1` is not one of them, `forget_entries` has removed it: a
        member that knew `n` last has slept since, and must not write at a number that was used.
        """
        return any(number > n for number, _ in self._manifest.numbered(12, after=self._entry(n)))

    def append(self, state: State, change: Change, epochs: Sequence[EpochStart]) -> None:
        """Write the entry that leads to `state`. Raises Overtaken when another entry has its number, or had it until it
        was removed, ArchiveError.

        It reads the entry back: a store that only says that it has written it is found out.
        """
        data = manifest.encode(state, change, epochs)
        if len(data) > MAX_ENTRY:  # No reader would take it, nor any entry behind it.
            raise ArchiveError(
                f"group {self.name}: its manifest would have {len(data)} bytes for {len(state.parts)} objects, the "
                f"limit is {MAX_ENTRY}: remove old ones with `gantry archive prune --older-than`"
            )
        name = self._entry(state.n)
        # Whether it was new is not asked: an answer may be lost and the call repeated. The read below shows whose it
        # is.
        self._objects.create(name, data)
        try:
            written = self._objects.get(name, MAX_ENTRY)
        except Missing:
            raise Unavailable(f"group {self.name}: the object store lost entry {state.n} of the manifest") from None
        if written != data:
            raise Overtaken(f"group {self.name}: another member wrote entry {state.n} of the manifest")
        # The number had an entry once: another one there would begin a second history.
        if self._is_forgotten(state.n):
            raise Overtaken(f"group {self.name}: others wrote entries behind {state.n} of the manifest")

    def _entry(self, n: int) -> str:
        return f"{self._prefix}manifest/{n:012d}.json"

    def forget_entries(self, before_ms: int) -> int:
        """Remove entries that no reader needs: those before the newest one that has the whole state and was written
        before `before_ms` of the store's clock. A list that lags by less shows entries from which all are there.
        Returns how many. Raises ArchiveError.
        """
        entries = list(self._manifest.numbered(12))
        keep = max((n for n, item in entries if n % WHOLE_EVERY == 0 and item.modified_ms < before_ms), default=0)
        forgotten = [item.name for n, item in entries if n < keep]
        for name in forgotten:
            self._objects.delete(name)
        return len(forgotten)

    # Parts

    def put_part(self, data: bytes, directory: Directory, epoch: int) -> Part:
        """Write an object and return its part, which no manifest has yet. Raises ArchiveError."""
        # At random, because two members may upload the same range: neither may replace an object that a manifest names.
        name = f"{directory.start:020d}-{directory.end:020d}-{epoch:016d}-{secrets.token_hex(6)}.gar"
        self._objects.create(self._part(name), data)  # False: an answer was lost, and the call was repeated.
        if self.size_of(name) != len(data):
            raise Unavailable(f"group {self.name}: the object store did not keep {name} as it was written")
        return Part(
            name,
            directory.start,
            directory.end,
            epoch,
            len(data),
            hashlib.sha256(data).hexdigest(),
            directory.records,
            directory.first_ms,
            directory.last_ms,
        )

    def size_of(self, name: str) -> int:
        """Bytes of a part's object. Raises Unavailable when it is not there."""
        try:
            return self._objects.size(self._part(name))
        except Missing:
            raise Unavailable(f"group {self.name}: the object store lost {name}") from None

    def reader(self, part: Part) -> RangeReader:
        """Return a reader of a part. Its calls raise ArchiveError."""
        path = self._part(part.name)
        return RangeReader(path, part.size, lambda at, size: self._objects.get_range(path, at, size), self.sealer)

    def directory_of(self, part: Part) -> Directory:
        """Read the directory of a part. Raises Damaged for that of another object, ArchiveError."""
        directory = self.reader(part).directory()
        if (directory.start, directory.end) != (part.start, part.end):
            raise Damaged(f"{part.name}: it has {directory.start} to {directory.end} of the log")
        return directory

    def range_of(self, name: str, at: int, size: int) -> bytes:
        """Return bytes of a part's object, fewer at its end. Raises ArchiveError."""
        return self._objects.get_range(self._part(name), at, size)

    def whole(self, part: Part) -> RangeReader:
        """Read a part at once, check its SHA-256, and return a reader of these bytes. Raises ArchiveError."""
        path = self._part(part.name)
        data = self._objects.get(path, part.size)
        if len(data) != part.size or hashlib.sha256(data).hexdigest() != part.sha256:
            raise Damaged(f"{path}: it does not match the SHA-256 in the manifest")
        return RangeReader(path, part.size, lambda at, size: data[at : at + size], self.sealer)

    def remove_parts(self, names: Sequence[str]) -> None:
        """Remove objects that no manifest needs. Raises ArchiveError."""
        for name in names:
            self._objects.delete(self._part(name))

    def orphans(self, state: State, before_ms: int) -> list[str]:
        """Return names of objects that the manifest does not have and that were written before `before_ms` of the
        store's clock: uploads that were broken off, and parts that were replaced. Raises ArchiveError.
        """
        in_manifest = {p.name for p in state.parts}
        # The entry that names a young object may be about to be written.
        listed = self._parts.named(_PART)
        return [name for name, item in listed if name not in in_manifest and item.modified_ms < before_ms]

    def clock_ms(self) -> int:
        """Return the store's time, Unix ms: what is removed because of its age is removed by this clock, since a
        member's own may be wrong. Raises ArchiveError.
        """
        name = f"{self._prefix}clock/{secrets.token_hex(6)}"
        self._objects.create(name, b"")
        try:
            return self._objects.modified_ms(name)
        except Missing:
            raise Unavailable(f"group {self.name}: the object store lost {name}") from None
        finally:
            self._objects.delete(name)

    def forget_clocks(self, before_ms: int) -> None:
        """Remove what `clock_ms` wrote before this time and could not remove. Raises ArchiveError."""
        for name in [item.name for _, item in self._clocks.named(_CLOCK) if item.modified_ms < before_ms]:
            self._objects.delete(name)

    # Verifications

    def note_verification(self, result: Verification) -> None:
        """Write what a verification found behind all other results, and remove the oldest ones. Raises ArchiveError."""
        numbers = self._verifications()
        first = numbers[-1] + 1 if numbers else 1
        for number in range(first, first + MAX_PROBES):  # Another run may end now, and the listing may lag behind.
            name = self._verification(number)
            if self._objects.create(name, self.sealer.seal(result.to_json(), name.encode())):
                break
        else:
            raise ArchiveError(f"group {self.name}: it has over {MAX_PROBES} verifications that no listing has")
        for old in numbers[: max(len(numbers) + 1 - VERIFICATIONS, 0)]:
            self._objects.delete(self._verification(old))

    def last_verification(self, last_read: Verification | None = None) -> Verification | None:
        """Return what the last verification found; None: there was none. `last_read` is not read again. Raises
        ArchiveError.
        """
        numbers = self._verifications()
        if not numbers:
            return None
        number = numbers[-1]
        if last_read is not None and last_read.number == number:
            return last_read
        name = self._verification(number)
        data = self.sealer.open(self._objects.get(name, MAX_SIZE + SEALED), name.encode())
        return replace(Verification.from_json(name, data), number=number)

    def _verifications(self) -> list[int]:
        """Return the numbers of the results that the listing has, in order."""
        return sorted(n for n, _ in self._results.numbered(16))

    def _verification(self, number: int) -> str:
        return f"{self._prefix}verified/{number:016d}.json"

    def _part(self, name: str) -> str:
        return f"{self._prefix}parts/{name}"


def write(
    group: GroupArchive,
    state: State,
    change: Change,
    *,
    owner: Owner,
    segment_size: int,
    epochs: Sequence[EpochStart],
    now_ms: int,
    check: Callable[[], None] = lambda: None,
) -> State:
    """Append one entry and return the new state. `check` runs just before the write. Raises ArchiveError, Overtaken."""
    new = state.next(change, owner=owner, segment_size=segment_size, epochs=epochs, at_ms=now_ms)
    # Directly before the write: the role may have ended while the entry was made.
    check()
    group.append(new, change, epochs)
    return new


def take_over(
    archive: Archive, group: GroupArchive, uid: str, cluster: str, token: str, *, accept_loss: bool, now_ms: int
) -> int:
    """Make a cluster the owner of the archive and of a group in it, and return where the former owner's log ends there.

    The token is demanded for each group: one that is not closed may lack what its owner took last. It may be called
    again. Raises Fenced, ArchiveError.
    """
    identity = archive.identity()
    if identity is None:
        raise Missing("the archive has no identity: it is empty")
    state = group.load()
    if state.n == 0:
        raise Missing(f"the archive has nothing of group {group.name}")
    # The owner's own way back leaves the hand-over behind as well: a closed manifest needs a new owner number.
    mine = identity.uid == uid and not (state.closed and state.owner == (identity.number, uid))
    # An archive that is not closed has no token, and an empty one must not match it.
    closed = state.closed != "" and state.closed == token
    if not (closed or accept_loss or (mine and state.owner == (identity.number, uid))):
        raise Fenced(
            f"group {group.name}: the archive was not handed over with this token; --accept-loss does without what it "
            "lacks"
        )
    if not mine:
        reason = "handed over" if closed else "promoted without a hand-over"
        identity = archive.hand_over(identity, uid, cluster, now_ms, reason, token)
    owner = Owner(identity.number, identity.uid)
    for _ in range(TRIES):
        if state.owner is not None and state.owner.number > owner.number:
            raise Fenced(f"group {group.name}: another cluster took the archive over meanwhile")
        if state.owner == owner:
            return state.end
        try:
            # An entry although nothing changes: the former owner's next one has the same number, and loses.
            state = write(
                group, state, Change(), owner=owner, segment_size=state.segment_size, epochs=(), now_ms=now_ms
            )
        except Overtaken:
            state = group.load()
    raise Fenced(f"group {group.name}: the former owner does not stop writing to the archive")


def _identity_name(number: int) -> str:
    return f"{IDENTITY}{number:08d}.json"
