"""The archive is read back on a schedule (`spec.archive.verify`), by a process beside those of the cluster.

What it finds is written into the archive, where the brokers read it. The folder has the time of the last start: a run
that was due while nothing ran starts afterwards.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from gantry_operator.api import cron
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.process_config import ArchiveFiles
from gantry_operator.platforms.local.events import EventLog
from gantry_operator.platforms.local.folder import ClusterFolder, read_json, secret_folder
from gantry_operator.platforms.local.process import load_record, reap, save_record, start
from gantry_operator.registry.file import write_durably

MODULE: Final = "gantry_broker.archive.verifying"
PROCESS: Final = "verify"
"""The name of the process in the folder."""
LOOK_S: Final = 5.0


class LocalVerification:
    """The schedule of one cluster."""

    def __init__(
        self,
        folder: ClusterFolder,
        cluster: Callable[[], BrokerCluster],
        events: EventLog,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._events = events
        self._now = now
        self._problem = ""

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                await asyncio.to_thread(self.look)
                self._problem = ""
            except (OSError, cron.ScheduleError) as error:
                if str(error) != self._problem:
                    text = f"the archive is not verified: {error}"
                    self._events.add("Warning", "VerificationNotStarted", text, self._cluster().name)
                self._problem = str(error)
            await asyncio.sleep(LOOK_S)

    def look(self) -> bool:
        """Start a run if one is due, and none is active. Returns whether it did. Raises OSError, ScheduleError."""
        cluster, path, now = self._cluster(), self._folder.root / "verify.json", self._now()
        archive = cluster.spec.archive
        if archive is None or archive.verify is None or cluster.spec.hibernate:
            return False
        last = _started(read_json(path))
        if last is None or last > now:  # Nothing was missed before the schedule was there.
            write_durably(path, json.dumps({"started": now.isoformat()}))
            return False
        due = cron.next_run(archive.verify.schedule, archive.verify.timeZone, last)
        if due is None or due > now or self._runs():
            return False
        write_durably(path, json.dumps({"started": now.isoformat()}))
        order = ArchiveFiles(self._folder.uid, lambda use, secret: secret_folder(secret)).verify(archive)
        argv = [sys.executable, "-P", "-m", MODULE, "--order", order.model_dump_json(exclude_defaults=True)]
        record = start(PROCESS, argv, config="", log=self._folder.log(PROCESS), cwd=self._folder.root)
        save_record(self._folder.process(PROCESS), record)
        return True

    def _runs(self) -> bool:
        path = self._folder.process(PROCESS)
        written = read_json(path)
        if isinstance(written, dict) and isinstance(written.get("pid"), int):
            reap(written["pid"])
        return load_record(path) is not None


def _started(value: object) -> datetime | None:
    """Return the time of the last start; None: it is not known."""
    try:
        started = datetime.fromisoformat(str(value["started"]))  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return None
    return started if started.tzinfo is not None else None
