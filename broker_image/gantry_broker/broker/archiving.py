"""The archive of a broker's group: what the archiver needs of the broker, and what it keeps retention from removing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantry_broker.archive import upload
from gantry_broker.archive.archiver import Archiver, Report
from gantry_broker.archive.opening import open_archive
from gantry_broker.archive.segment import LEVEL
from gantry_broker.archive.upload import PART, PLAIN_PART, Settings, View
from gantry_broker.contracts.models import ArchiveStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantry_broker.archive.manifest import State
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.site import Site
    from gantry_broker.config import BrokerConfig
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore


class NoArchive(Exception):
    """The configuration names no archive."""


LEVELS: Final = {"Zstd": LEVEL, "None": -(1 << 17)}
"""Levels of zstd; the lowest one copies nearly all bytes."""
PARTS: Final = {"Zstd": PART, "None": PLAIN_PART}
"""Bytes of the log in one part."""


class Archiving:
    """One member's part in the archive of its group; without `config.archive` it does nothing."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        delays: Sequence[int],
        *,
        replication: ReplicationService,
        events: Events,
        clock: Clock,
        site: Callable[[], Site],
    ) -> None:
        """`site`: the part of this cluster in a pair of sites; a standby uploads nothing.

        Raises ArchiveError for an archive that cannot be.
        """
        self._store = store
        self._replication = replication
        self._number = config.member
        self._archiver: Archiver | None = None
        self.on_superseded: Callable[[str], None] = lambda why: None
        """Called when another site has taken the archive over, with the reason; "": it is this cluster's again."""
        archive = None if site().is_standby else config.archive
        self._uid = "" if archive is None else archive.uid
        self._max_lag = 0 if archive is None else archive.max_local_lag_bytes
        if archive is None:
            return
        settings = self._settings = Settings(
            interval_ms=int(archive.interval_s * 1000),
            retention_ms=None if archive.retention_s is None else int(archive.retention_s * 1000),
            part=PARTS[archive.compression],
        )
        self._archiver = Archiver(
            open_archive(archive),
            group=config.own_group,
            uid=archive.uid,
            cluster=config.own_cluster,
            log_dir=config.data_dir / "commitlog",
            view=self._view,
            turn=self._is_my_turn,
            settings=lambda: settings,
            delays=delays,
            level=LEVELS[archive.compression],
            rate=lambda: archive.rate_bytes,
            clock_ms=clock.unix_ms,
            on_superseded=lambda why: self.on_superseded(why),
        )
        events.role_changed.subscribe(self._role_changed)

    @property
    def report(self) -> Report | None:
        """What is known of the archive; None: there is none."""
        return None if self._archiver is None else self._archiver.report

    @property
    def state(self) -> State | None:
        """The newest state of the manifest that is known; None: none, or the archive was never this cluster's."""
        archiver = self._archiver
        state = None if archiver is None else archiver.state
        if archiver is None or state is None or state.owner is None:
            return state
        return state if state.owner.uid == self._uid or archiver.report.superseded else None

    def finish(self, token: str, end: int) -> None:
        """Archive everything up to `end`, and close the archive with this token. Raises NoArchive."""
        if self._archiver is None:
            raise NoArchive("this cluster has no archive: write spec.archive")
        self._archiver.finish(token, end)

    def start(self) -> None:
        if self._archiver is not None:
            self._archiver.start()

    async def close(self) -> None:
        if self._archiver is not None:
            await self._archiver.close()

    def needed_from(self) -> int | None:
        """Return the first offset that retention keeps for the archive; None: it need not wait.

        Beyond `max_local_lag_bytes` it waits no longer: a store that is away for long must not fill the disk. An
        archive that was not read since the start holds retention back by the same rule, from the log's first byte on.
        """
        archiver, store = self._archiver, self._store
        if archiver is None:
            return None
        # What the manifest of another cluster has, or another history of this one, is no copy of this log.
        start, state = store.log.start, self.state
        if state is None or state.owner is None:
            needed = start
        else:
            needed = max(upload.shared_to(state, store.epoch_cache.epochs, start), start)
        return None if store.state.confirmed - needed > self._max_lag else needed

    def _role_changed(self, leads: bool) -> None:
        if self._archiver is not None:
            if not leads:
                # Another one leads, and may have taken more: closed here, the archive would end before its last record.
                self._archiver.finish_no_more()
            self._archiver.soon()

    def _view(self) -> View | None:
        store = self._store
        # A disk that failed may give other bytes than were confirmed: none of them may reach the archive.
        if store.state.failed is not None or not store.epoch_cache.epochs:
            return None
        return View(store.log.start, store.state.confirmed, store.log.segment_size, store.epoch_cache.epochs)

    def _is_my_turn(self) -> bool:
        assert self._archiver is not None
        leadership, behind_ms = self._replication.leadership, self._archiver.report.behind_ms
        return upload.has_turn(leadership, self._number, behind_ms, self._settings.interval_ms)


def archive_status(report: Report | None, reads: ArchiveReads) -> ArchiveStatus | None:
    """Return the report as the HTTP interface shows it, and what was read for clients."""
    if report is None:
        return None
    checked = report.verification
    return ArchiveStatus(
        known=report.known,
        uploads=report.uploads,
        recoverable_from_ms=report.recoverable_from_ms,
        archived_ms=report.archived_ms,
        start=report.start,
        end=report.end,
        behind_bytes=report.behind_bytes,
        behind_ms=report.behind_ms,
        size_bytes=report.size,
        objects=report.parts,
        gaps=report.gaps,
        error=report.error,
        error_ms=report.error_ms,
        fenced=report.fenced,
        closed=report.closed,
        verified_ms=0 if checked is None else checked.at_ms,
        verified_until_ms=0 if checked is None else checked.until_ms,
        verified_end=0 if checked is None else checked.end,
        faults=report.faults,
        fault=report.fault,
        reads_to=reads.tiered.view.complete_to if reads.tiered is not None else 0,
        read_messages=reads.served.messages,
        read_bytes=reads.served.bytes,
        read_cache_bytes=reads.tiered.cache_bytes if reads.tiered is not None else 0,
        read_error=reads.error,
        read_error_ms=reads.error_ms,
    )
