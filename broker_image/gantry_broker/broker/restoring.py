"""An empty member fills its disk from an archive before it becomes a broker.

Meanwhile its HTTP port answers `/livez`, and every other path with 503 and the progress, which the operator shows. A
restore that fails is tried again; the member never starts with less than what its configuration names.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantry_broker.archive import restore
from gantry_broker.archive.errors import ArchiveError, Missing
from gantry_broker.archive.opening import open_archive
from gantry_broker.archive.restore import MARK, Target
from gantry_broker.archive.threads import in_daemon_thread
from gantry_broker.broker.site import load_site
from gantry_broker.config import ArchivePlace, RestoreConfig
from gantry_broker.http.interim import InterimServer
from gantry_broker.store.log.commit_log import segment_bases
from gantry_broker.store.recovery import lock_store

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig

log = logging.getLogger(__name__)

AGAIN_S: Final = 10.0
"""Seconds until a restore that failed is tried again."""
TIME_S: Final = 1.0
"""Seconds between two lines of the log about the progress."""


def is_wanted(config: BrokerConfig) -> bool:
    """Whether the disk is to be filled: it has no log, or one whose restore was broken off."""
    if source(config) is None:
        return False
    return (config.data_dir / MARK).exists() or not segment_bases(config.data_dir / "commitlog")


def source(config: BrokerConfig) -> RestoreConfig | None:
    """Return what an empty disk is filled with: the archive that a standby follows, or that of `restore`."""
    if not load_site(config.data_dir, follows=config.follow is not None).is_standby:
        return config.restore
    place = config.follow or config.archive
    if place is None:
        return None
    fields = {name: getattr(place, name) for name in ArchivePlace.model_fields}
    return RestoreConfig(**fields, group=config.own_group)


class Progress:
    """How far a restore is, for people."""

    def __init__(self) -> None:
        self.text = "restoring from the archive: reading its manifest"
        self.stopped = False
        self._logged_at = 0.0

    def fetched(self, done: int, total: int, now: float) -> None:
        """Note bytes. `now`: monotonic seconds. Raises ArchiveError when the process stops."""
        if self.stopped:
            raise ArchiveError("the process stops")
        self.text = f"restoring from the archive: {done >> 20} of {total >> 20} MiB fetched"
        if now - self._logged_at >= TIME_S:
            self._logged_at = now
            log.info("%s", self.text)


def as_written(config: BrokerConfig, file: Path | None) -> BrokerConfig:
    """Return the configuration as its file has it now: the address may have been corrected. The present one if
    the file cannot be read, or does not fill a disk.
    """
    if file is None:
        return config
    try:
        written = type(config).model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        return config
    return config if source(written) is None else written


async def restore_first(config: BrokerConfig, file: Path | None = None) -> None:
    """Fill the disk, and return once it is done. `file`: that of the configuration, which is read before each try.
    Raises OSError when the HTTP port is taken.
    """
    progress = Progress()
    server = InterimServer(config, lambda: progress.text)
    await server.start()
    try:
        while True:
            settings = source(as_written(config, file))
            assert settings is not None
            try:
                end = await in_daemon_thread(partial(fill, settings, config.data_dir, progress))
            except (ArchiveError, OSError) as error:
                progress.text = f"cannot restore from the archive: {error}"
                log.error("%s; tried again in %d s", progress.text, AGAIN_S)
                await asyncio.sleep(AGAIN_S)
                continue
            log.info(
                "the log was restored from %s up to %d; users and their keys are not in an archive",
                settings.url, end,
            )  # fmt: skip
            return
    finally:
        progress.stopped = True
        await server.close()


def fill(settings: RestoreConfig, data_dir: Path, progress: Progress) -> int:
    """Restore the log into a folder, and return its end. Raises ArchiveError, OSError."""
    archive = open_archive(settings)
    identity = archive.identity()
    if identity is None:
        raise Missing(f"{settings.url} has no archive: write the url that the archived cluster has in spec.archive")
    if settings.cluster is not None and identity.cluster != settings.cluster:
        raise Missing(f"{settings.url} is the archive of cluster {identity.cluster}, not of {settings.cluster}")
    group = archive.group(settings.group)
    state = group.load()
    if state.n == 0:
        names = ", ".join(archive.groups()) or "none"
        raise Missing(f"the archive has no group {settings.group}; its groups: {names}")
    target = Target(settings.offset, settings.time_ms)
    total = restore.outline(state, target).download
    data_dir.mkdir(parents=True, exist_ok=True)
    lock = lock_store(data_dir)
    try:
        return restore.restore(
            group,
            state,
            target,
            data_dir,
            source=settings.url,
            progress=lambda done: progress.fetched(done, total, time.monotonic()),
        )
    finally:
        os.close(lock)
