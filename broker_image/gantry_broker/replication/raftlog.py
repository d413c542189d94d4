"""The log port in Raft mode: the store's log, and the changes of members that it holds (rule 27).

A change is a control record of its own kind. config/members.json lists the changes of the log, so that nobody has to
read the whole log at a start; the list is written after a record is appended and before the change is acted upon, and
a start looks through the unconfirmed end of the log for one that was not listed yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.protocol.message import format_properties, pack_host
from gantry_broker.replication import epochs
from gantry_broker.replication.members import MemberChange, Members, members_from_json, members_to_json
from gantry_broker.replication.storelog import StoreLog, StoreLogHooks
from gantry_broker.replication.types import History
from gantry_broker.store.files import atomic_write
from gantry_broker.store.types import Put

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

_KIND: Final = "members"
_MARK: Final = b"GANTRY_MEMBERS"
"""A property of the record, so that a batch without one is told from its bytes alone."""


class RaftStoreLog(StoreLog):
    """See `ports.RaftLog`. Raises what the store raises, and ValueError for a members.json that is none."""

    def __init__(self, store: MessageStore, path: Path, hooks: StoreLogHooks) -> None:
        super().__init__(store, hooks)
        self._path = path
        self._changes = tuple(c for c in self._load() if c.end <= store.end)
        self._learn(max(store.confirmed, store.start))

    @property
    def member_changes(self) -> tuple[MemberChange, ...]:
        return self._changes

    def append_members(self, members: Members, now_ms: int) -> None:
        unix_ms = self._hooks.unix_ms()
        stored = self._store.put(
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
        # Whatever lies before was learned when it was appended: a walk through the whole log would stop the loop.
        self._learn(stored[0].phys_offset)

    def append_raw(self, at: int, data: bytes) -> None:
        super().append_raw(at, data)
        if _MARK in data:
            self._learn(at)

    def cut(self, to: int) -> None:
        super().cut(to)
        self._keep(tuple(c for c in self._changes if c.end <= to))

    def reset_state(self) -> bytes:
        below = [c for c in self._changes if c.end <= self._store.start]
        return orjson.dumps({**self._queue_starts(), "members": [_to_json(c) for c in below[-1:]]})

    def reset(self, to: int, history: History, state: bytes) -> None:
        super().reset(to, epochs.cut(history, to), state)
        self._keep(tuple(_from_json(c) for c in orjson.loads(state or b"{}").get("members", [])))

    def _learn(self, start: int) -> None:
        """Add the changes that lie in [start, end) of the log."""
        found = list(self._changes)
        known = found[-1].end if found else 0
        for record in self._store.walk(max(start, self._store.start), self._store.end):
            if record.topic == CONTROL_TOPIC and record.phys_offset >= known and _MARK in record.properties:
                members = members_from_json(orjson.loads(record.body)["members"])
                found.append(MemberChange(record.phys_offset, record.phys_offset + record.size, members))
        self._keep(tuple(found))

    def _keep(self, changes: tuple[MemberChange, ...]) -> None:
        """On disk before it is acted upon."""
        if changes != self._changes:
            atomic_write(self._path, orjson.dumps([_to_json(c) for c in changes]))
            self._changes = changes

    def _load(self) -> tuple[MemberChange, ...]:
        try:
            return tuple(_from_json(c) for c in orjson.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return ()
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path}: {error!r}; restore the file, or empty the member's disk") from error


def _to_json(change: MemberChange) -> dict[str, Any]:
    return {"at": change.at, "end": change.end, "members": members_to_json(change.members)}


def _from_json(data: dict[str, Any]) -> MemberChange:
    return MemberChange(int(data["at"]), int(data["end"]), members_from_json(data["members"]))
