"""The identity of this member after a start: the same incarnation of its disk, or a new one (rule 16).

The disk proves what it acknowledged when the flush is synchronous, when the last stop was clean, or when the machine
has not booted since (the kernel still had what was written). In all other cases the member is a new incarnation: its
disk is empty, or it used ASYNC_FLUSH and lost power.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.replication.state import HardState
from gantry_broker.store.files import ReservedFile, atomic_write
from gantry_broker.store.recovery_point import boot_id
from gantry_broker.store.sealed import fault_of, seal, unseal


class StateError(Exception):
    """A file of config/ (replica.json or members.json) is damaged, or belongs to another member or mode. The text
    names the file and the reason.
    """


class Started(NamedTuple):
    state: HardState
    log_trusted: bool
    """False when a disk that held records could not prove that it holds all that it acknowledged."""


class ReplicaFile:
    """config/replica.json: the `HardState`, the boot in which it was written, and whether the process stopped
    cleanly.
    """

    def __init__(self, path: Path, mode: str = "MasterSlave") -> None:
        """`mode` is the group's; a disk keeps it for life."""
        self.path = path
        self._file = ReservedFile(path)
        """A master with a full disk must be able to take the assignment of its successor."""
        self._mode = mode
        self._boot = boot_id()
        self._state: HardState | None = None
        self._held = False
        self._sync = False
        """Whether acknowledgements of this incarnation count bytes on disk."""

    def start(self, member: int, *, sync_flush: bool, log_is_empty: bool, damaged: bool = False) -> Started:
        """Read the file, decide on the incarnation, and write it. Raises StateError, OSError.

        `damaged`: recovery truncated the log below what had been flushed or confirmed.
        """
        self._held, self._sync = not log_is_empty, sync_flush
        data = self._read()
        if data is None:
            # The set may still name the former disk of this number. Under its name an empty log would count as its
            # copy.
            return self._begin(HardState(MemberId(member, _new_incarnation())), log_trusted=True)
        try:
            state, boot, clean = HardState.from_json(data), str(data["boot"]), bool(data["clean"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{self.path}: {fault_of(error)}; restore the file, or empty the member's disk") from error
        if state.me.member != member:
            raise StateError(f"{self.path} is of member {state.me.member}, this is member {member}")
        self._refuse_other_mode(data, state, log_is_empty=log_is_empty)
        # A log that had records and is empty now was removed: this is not the same disk.
        lost = log_is_empty and bool(data.get("held"))
        # The flush mode of the last run counts: the configuration may have changed since.
        was_sync = data.get("sync") is True
        if not lost and not damaged and (was_sync or clean or (boot == self._boot and boot != "")):
            return self._begin(state, log_trusted=True)
        return self._begin(replace(state, me=MemberId(member, _new_incarnation())), log_trusted=False)

    def _refuse_other_mode(self, data: dict[str, Any], state: HardState, *, log_is_empty: bool) -> None:
        """Refuse a disk of the other mode: an election does not know assignments and sets, an operator does not know
        votes.
        """
        was = data.get("mode")
        if was is None:  # Files of older versions have no mode.
            was = "Raft" if state.first_members or state.vote is not None else self._mode
        if was != self._mode and not (log_is_empty and state.leadership.epoch == 0):
            raise StateError(
                f"{self.path} is of a group in mode {was}, this member was started in mode {self._mode}: "
                f"a group keeps its mode for life; write mode: {was}, or begin with empty disks"
            )

    def _begin(self, state: HardState, *, log_trusted: bool) -> Started:
        self.save(state)
        return Started(state, log_trusted)

    def save(self, state: HardState) -> None:
        """Write the state; it is durable on return. The mark of a clean stop is gone from then on."""
        self._state = state
        self._write(state, clean=False)

    def invalidate_boot_id(self) -> None:
        """Note that the disk failed: the present boot of the machine proves nothing from then on. Raises OSError."""
        self._boot = ""
        if self._state is None:
            return
        try:
            self._write(self._state, clean=False)
        except OSError:
            # A process that starts before the next boot also reads bytes that are not on disk.
            self._write(self._state, clean=False, durable=False)

    def holds_records(self) -> None:
        """Note that the log has records; the next save writes it."""
        self._held = True

    def mark_clean(self) -> None:
        """Mark a clean stop. Call it last, when the log is closed and on disk."""
        # Earlier, bytes written after the mark could be lost, and the next start would trust the log all the same.
        if self._state is not None:
            self._write(self._state, clean=True)

    def _read(self) -> dict[str, Any] | None:
        try:
            data = orjson.loads(unseal(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StateError(f"{self.path}: {error}; restore the file, or empty the member's disk") from error
        if not isinstance(data, dict):
            raise StateError(f"{self.path}: is not a JSON object; restore the file, or empty the member's disk")
        return data

    def _write(self, state: HardState, *, clean: bool, durable: bool = True) -> None:
        data = orjson.dumps(
            {
                **state.to_json(),
                "mode": self._mode,
                "boot": self._boot,
                "clean": clean,
                "held": self._held,
                "sync": self._sync,
            },
            option=orjson.OPT_INDENT_2,
        )
        if durable:
            self._file.write(seal(data))
        else:
            atomic_write(self.path, seal(data), durable=False)


def _new_incarnation() -> str:
    return uuid.uuid4().hex[:12]
