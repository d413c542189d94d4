"""`gantry down`: ends the supervisor first, so that no process is restarted; then all processes, cleanly."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import IO

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.migrate_local import RECORD, held_source, lacking_brokers
from gantry_operator.cli.output import note, say
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import find_local
from gantry_operator.platforms.local import control
from gantry_operator.platforms.local.folder import ClusterFolder, ClusterNotFound, find_stopped, known_clusters
from gantry_operator.platforms.local.process import end, load_record, start_mark, started_with
from gantry_operator.platforms.local.process_plan import MODULES
from gantry_operator.platforms.local.supervisor_lock import AlreadySupervised, take_lock

SUPERVISOR_S = 10.0
PROCESSES_S = 15.0


def down(directory: Path | None, name: str | None, delete_data: bool) -> None:
    """Stop the cluster. With `delete_data` also one that is stopped already. Raises CliError."""
    folder = _stopped(name) if delete_data and directory is None else None
    folder = find_local(directory, name) if folder is None else folder
    held = held_source(folder)
    if held and delete_data:
        raise CliError(f"{held}. When the source is gone for good, delete {folder.root / RECORD}, then try again")
    lacking = lacking_brokers(folder, deleted=delete_data)
    with Progress("stopping"), _without_supervisor(folder):
        outcome = _end_all(folder, delete_data)
    say(outcome)
    for hint in filter(None, (held, lacking)):
        note(hint)


def _stopped(name: str | None) -> ClusterFolder | None:
    """Return the stopped cluster that is meant; None: a running one is, or there is none."""
    if any(name in (None, running) for running, _ in known_clusters()):
        return None
    try:
        return find_stopped(name)
    except ClusterNotFound as error:
        raise CliError(str(error), Exit.NO_CLUSTER) from None


def _end_all(folder: ClusterFolder, delete_data: bool) -> str:
    """Return a sentence about the result."""
    records = [r for r in map(load_record, sorted((folder.root / "run").glob("*.json"))) if r is not None]
    recorded = {r.pid for r in records}
    # A process without a record would go on with deleted files, and hold their locks against the next start.
    records += [r for r in started_with(folder.configs, MODULES) if r.pid not in recorded]
    killed = end(records, PROCESSES_S)
    for path in (folder.root / "run").glob("*.json"):
        path.unlink()
    folder.supervisor.unlink(missing_ok=True)
    folder.forget()
    had_to_kill = f", {', '.join(killed)} had to be killed" if killed else ""
    if delete_data:
        try:
            shutil.rmtree(folder.root)
        except OSError as error:
            why = f"{error.filename or folder.root} cannot be deleted: {error.strerror or error}"
            raise CliError(
                f"{len(records)} processes stopped{had_to_kill}, but {why}; delete the rest yourself"
            ) from None
        return f"{len(records)} processes stopped{had_to_kill}; {folder.root} is deleted"
    return f"{len(records)} processes stopped{had_to_kill}; the messages are kept in {folder.root}"


def _without_supervisor(folder: ClusterFolder) -> IO[str]:
    """Take the supervisor's lock once it is free. A starting supervisor has processes before it accepts requests."""
    deadline = time.monotonic() + SUPERVISOR_S
    while True:
        try:
            return take_lock(folder)
        except AlreadySupervised:
            _stop_supervisor(folder, deadline)


def _stop_supervisor(folder: ClusterFolder, deadline: float) -> None:
    record = control.supervisor_of(folder)
    if record is None:
        if time.monotonic() > deadline:
            raise CliError("a `gantry up` that is just starting, or another command, does not end; try again")
        time.sleep(0.02)
        return
    started = start_mark(record.pid)
    try:
        asyncio.run(control.ask(folder, "stop", 5))
    except control.ControlError as error:
        if control.supervisor_of(folder) is None:
            return  # It has ended meanwhile.
        raise CliError(f"{error}; end process {record.pid} yourself and try again") from None
    while start_mark(record.pid) == started and started is not None:
        if time.monotonic() > deadline:
            raise CliError(f"`gantry up` (process {record.pid}) does not end; end it yourself and try again")
        time.sleep(0.02)
