"""Leadership records as JSON files in one folder. A swap takes a lock, replaces the file and flushes it to disk.

Each file has a checksum: with a changed digit it would name another epoch, master or in-sync set.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path

from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_broker.store.sealed import fault_of, seal, unseal

from gantry_operator.registry.base import Entry, RegistryUnavailable
from gantry_operator.registry.disk_errors import DiskError, disk_error


class FileRegistry:
    """One file `<group>.json` per group in `folder`. Several processes may use the folder at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unsynced = False
        """The sync of the folder failed. A file name may not be on disk yet, so its content does not count."""

    async def read(self, group: str) -> Entry | None:
        return self.read_now(group)

    def read_now(self, group: str) -> Entry | None:
        """Like `read`, without an event loop. Reading a hundred bytes is faster than a task switch."""
        path = self._path(group)
        try:
            if self._unsynced:
                self._sync()
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RegistryUnavailable(f"{path}: {error.strerror}") from error
        try:
            return Entry(LeadershipRecord.from_json(json.loads(unseal(data))), data.decode())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RegistryUnavailable(
                f"{path} holds no leadership record ({fault_of(error)}); move it away, and it is recovered from the "
                "members"
            ) from error

    async def swap(self, group: str, expected: Entry | None, new: LeadershipRecord) -> bool:
        return self.swap_now(group, expected, new)

    def swap_now(self, group: str, expected: Entry | None, new: LeadershipRecord) -> bool:
        """Like `swap`. Blocks for one fsync, a few milliseconds, only when the leadership record changes."""
        path = self._path(group)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self.read_now(group) != expected:
                    return False
                self._unsynced = True
                write_whole(path, seal(json.dumps(new.to_json()).encode()).decode(), sync=True)
                self._sync()
        except DiskError as error:
            raise RegistryUnavailable(str(error)) from error
        except OSError as error:
            raise RegistryUnavailable(f"{path}: {error.strerror}") from error
        return True

    def _sync(self) -> None:
        sync_folder(self._folder)
        self._unsynced = False

    def _path(self, group: str) -> Path:
        return self._folder / f"{group}.json"


def write_durably(path: Path, text: str) -> None:
    """Replace a file atomically: after a crash it holds the old or the new text. Raises OSError."""
    write_whole(path, text, sync=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush the file names in it to the disk. Raises OSError."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_whole(path: Path, text: str, *, sync: bool = False) -> None:
    """Replace a file that only this user can read. Readers see the old or the new text. Raises OSError.

    Without a sync the file may be empty after a power loss. Use this for state that is useless after a restart of the
    machine. A sync waits for other disk work, which would delay a failover.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(error, path) from error
