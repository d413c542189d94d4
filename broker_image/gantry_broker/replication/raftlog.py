"""The log port in Raft mode: the store's log, and the member changes in it (rule 27).

A change is a control record of its own kind. config/members.json lists the changes of the log, so that a start need not
read the whole log. A start uses it like this:

- The list counts for confirmed offsets. For the unconfirmed end the log itself counts. So a start finds a change that
  was appended and not listed yet, and drops one that a truncation or a power failure removed with the end.
- The start rewrites the list if it differs, and so does each append: other records would take the place of a lost
  change, and the list would bring it back once they are confirmed.

A record whose change cannot be listed is not appended: it would be confirmed, and forgotten at the next start.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.protocol.message import format_properties, pack_host
from gantry_broker.replication import epochs
from gantry_broker.replication.identity import StateError
from gantry_broker.replication.members import MemberChange, Members, members_from_json, members_to_json
from gantry_broker.replication.storelog import StoreLog, StoreLogHooks, queue_starts, reset_fields
from gantry_broker.store.errors import StoreFull
from gantry_broker.store.files import NO_DESCRIPTORS, NO_ROOM, atomic_write
from gantry_broker.store.log.epochs import LeaderEpochs
from gantry_broker.store.restored import restored
from gantry_broker.store.sealed import fault_of, seal, unseal
from gantry_broker.store.types import Put

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

_log = logging.getLogger(__name__)
_KIND: Final = "members"
_MARK: Final = b"GANTRY_MEMBERS"
"""A property of the record. A batch without it is recognised from its bytes alone."""


class RaftStoreLog(StoreLog):
    """See `ports.RaftLog`. Raises what the store raises, and StateError for a damaged members.json."""

    def __init__(self, store: MessageStore, path: Path, hooks: StoreLogHooks) -> None:
        super().__init__(store, hooks)
        self._path = path
        origin = restored(store.config.path)
        self.restored_end, self.restored_epoch = origin.end, origin.epoch
        listed = self._load()
        self._listed: tuple[MemberChange, ...] | None = listed
        """The content of members.json; None: a write failed, and the file has the old or the new content."""
        # Above it a listed change may have gone with the end of the log: only the log shows what is left.
        certain = max(store.state.confirmed, store.log.start)
        self._changes = tuple(c for c in listed if c.end <= certain)
        self._learn(certain)
        try:
            self._list()
        except StoreFull as error:
            if not set(self._changes) <= set(listed):
                raise  # It would be confirmed before the list has it.
            _log.warning("the next append tries it again: %s", error)

    @property
    def member_changes(self) -> tuple[MemberChange, ...]:
        return self._changes

    def begin_epoch(self, epoch: int, now_ms: int) -> None:
        self._list()
        super().begin_epoch(epoch, now_ms)

    def append_members(self, members: Members, now_ms: int) -> None:
        self._list()
        end = self._store.log.end
        unix_ms = self._hooks.unix_ms()
        stored = self._store.appender.put(
            [
                Put(
                    topic=CONTROL_TOPIC,
                    queue_id=0,
                    flag=0,
                    sys_flag=0,
                    born_ms=unix_ms,
                    born_host=pack_host("127.0.0.1", 0),
                    body=orjson.dumps({"kind": _KIND, "members": members_to_json(members)}),
                    properties=format_properties({_MARK.decode(): "1"}),
                )
            ],
            unix_ms,
        )
        # Changes further back were read when they were appended: a walk through the whole log would hold the loop.
        self._learn_or_undo(stored[0].phys_offset, end)

    def append_raw(self, at: int, data: bytes) -> None:
        self._list()
        super().append_raw(at, data)
        # In force from here on, confirmed or not: with the former list this member could count a majority that is none.
        if _MARK in data:
            self._learn_or_undo(at, at)

    def truncate(self, to: int) -> None:
        super().truncate(to)
        self._changes = tuple(c for c in self._changes if c.end <= to)
        self._list_later()

    def reset_state(self) -> bytes:
        below = [c for c in self._changes if c.end <= self._store.log.start]
        return orjson.dumps({**self._queue_starts(), "members": [_to_json(c) for c in below[-1:]]})

    def reset(self, to: int, leader_epochs: LeaderEpochs, state: bytes) -> None:
        queue_starts(state)  # Impossible values are found before anything is written.
        changes = _changes_in(state)
        # The list is written before the reset, since this change leaves the log with it. It uses the present confirmed
        # offset: after a crash in between, a start finds the old log and takes from the list only changes that this log
        # has confirmed.
        confirmed = {c for c in self._changes if c.end <= self._store.state.confirmed}
        self._write(tuple(sorted({*confirmed, *changes})))
        super().reset(to, epochs.truncate(leader_epochs, to), state)
        self._changes = changes
        self._list_later()

    def _learn_or_undo(self, start: int, end: int) -> None:
        """List the changes from `start` on, or truncate the log to `end`."""
        try:
            self._learn(start)
            self._list()
        except BaseException:
            self.truncate(end)
            raise

    def _learn(self, start: int) -> None:
        """Add the changes that lie in [start, end) of the log."""
        changes = list(self._changes)
        listed_until = changes[-1].end if changes else 0
        start = max(start, self.restored_end, self._store.log.start)
        for record in self._store.reader.walk(start, self._store.log.end):
            if record.topic == CONTROL_TOPIC and record.phys_offset >= listed_until and _MARK in record.properties:
                members = members_from_json(orjson.loads(record.body)["members"])
                changes.append(MemberChange(record.phys_offset, record.phys_offset + record.size, members))
        self._changes = tuple(changes)

    def _list(self) -> None:
        if self._changes != self._listed:
            self._write(self._changes)

    def _list_later(self) -> None:
        """Write the list of changes later: a full disk must not keep a follower from a truncation, and nothing is
        appended before the list is right.
        """
        try:
            self._list()
        except StoreFull as error:
            _log.warning("the next append tries it again: %s", error)

    def _write(self, changes: tuple[MemberChange, ...]) -> None:
        """Write the list; durable on return. Raises StoreFull, or OSError; after an OSError the log takes nothing more,
        unless only descriptors ran out.
        """
        self._listed = None
        try:
            atomic_write(self._path, seal(orjson.dumps([_to_json(c) for c in changes])))
        except OSError as error:
            if error.errno in NO_ROOM:
                raise StoreFull(f"no room for {self._path}: {error.strerror}") from error
            if error.errno not in NO_DESCRIPTORS:
                self._store.checkpointer.mark_failed(error)
            raise
        self._listed = changes

    def _load(self) -> tuple[MemberChange, ...]:
        try:
            listed = orjson.loads(unseal(self._path.read_bytes()))
            if not isinstance(listed, list):
                raise TypeError("is not a JSON array")
            return tuple(_from_json(c) for c in listed)
        except FileNotFoundError:
            return ()
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{self._path}: {fault_of(error)}; restore the file, or empty the member's disk"
            ) from error


def _changes_in(state: bytes) -> tuple[MemberChange, ...]:
    """Return the member change in a leader's `reset_state`. Raises Implausible."""
    listed = plausible.items("members", reset_fields(state).get("members", []), 1)
    try:
        return tuple(_from_json(c) for c in listed)
    except plausible.Implausible:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise plausible.Implausible(f"members: {error!r}", "malformed") from error


def _to_json(change: MemberChange) -> dict[str, Any]:
    return {"at": change.at, "end": change.end, "members": members_to_json(change.members)}


def _from_json(data: dict[str, Any]) -> MemberChange:
    """Read one change. Raises KeyError, TypeError or ValueError when `data` is not what `_to_json` writes."""
    at, end = plausible.offset("at", data["at"]), plausible.offset("end", data["end"])
    return MemberChange(at, end, members_from_json(data["members"]))
