"""This member in a cluster at two sites: what the control plane asks of it, and what it says (`site.py`)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gantry_broker.archive.errors import ArchiveError
from gantry_broker.broker.archiving import NoArchive
from gantry_broker.broker.following import Following
from gantry_broker.broker.site import Site, next_site, save_site
from gantry_broker.contracts.models import (
    CloseAnswer,
    SiteLook,
    SiteRequest,
    SiteStatus,
    TakeAnswer,
    TakeRequest,
)

if TYPE_CHECKING:
    from gantry_broker.archive.archiver import Report
    from gantry_broker.archive.manifest import State
    from gantry_broker.broker.archiving import Archiving
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)


class NotStandby(Exception):
    """The request is for a standby, or needs an archive that this cluster does not have."""


class Sites:
    """One member's part; owned by the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        *,
        replication: ReplicationService,
        role: RoleState,
        health: MemberHealth,
        archiving: Archiving,
        changes: MetadataChanges,
        events: Events,
        clock: Clock,
    ) -> None:
        """Raise ArchiveError for an archive that cannot be."""
        self.must_restart = asyncio.Event()
        """The process must begin once more: as a standby, as an active member, or to fill its disk."""
        self._config = config
        self._store = store
        self._replication = replication
        self._role = role
        self._health = health
        self._archiving = archiving
        self._changes = changes
        self._status_changed = events.status_changed
        self._following: Following | None = None
        place = config.follow or config.archive
        if role.site.is_standby and place is not None:
            self._following = Following(
                config, place, store, replication.log, clock, changed=events.status_changed, restart=self._restart,
                before_truncation=lambda to: replication.before_truncation(to),
            )  # fmt: skip
        archiving.on_superseded = self._superseded

    @property
    def report(self) -> Report | None:
        """What a standby knows of the archive; None: it is none."""
        return None if self._following is None else self._following.report

    @property
    def state(self) -> State | None:
        """The newest state of the manifest that a standby knows; None: it is none."""
        return None if self._following is None else self._following.state

    @property
    def reason(self) -> str:
        """What a standby waits for, or that it follows."""
        following = self._following
        if following is None:
            return "a standby without an archive to follow: write spec.bootstrap.follow or spec.archive"
        return following.report.error or following.reason or "follows the archive of another cluster"

    def start(self) -> None:
        if self._following is not None:
            self._following.start()

    async def close(self) -> None:
        if self._following is not None:
            await self._following.close()

    def status(self) -> SiteStatus:
        site, store = self._role.site, self._store
        following = self._following
        return SiteStatus(
            role=site.role,
            generation=site.generation,
            token=site.token,
            origin=site.origin,
            origin_end=site.origin_end,
            follows=following is not None and following.ready,
            superseded=site.superseded,
            idle=site.role == "Sealed" and self._role.leading and store.state.confirmed == store.log.end,
        )

    def put(self, request: SiteRequest) -> SiteStatus:
        """Take what the control plane says; it is durable on return. Raises OSError."""
        held = self._role.site
        site = next_site(
            held, Site(request.role, request.generation, request.token, request.origin, request.origin_end)
        )
        if site != held and not self.must_restart.is_set():
            if site.role == "Sealed" and self._role.may_append:
                self._changes.flush_offsets()  # The other site continues at the consumers' offsets.
            save_site(self._config.data_dir, site)
            log.info("this cluster's part is %s (generation %d), was %s", site.role, site.generation, held.role)
            if site.is_standby != held.is_standby:
                self._restart()
            else:
                self._role.take_site(site)
        return self.status().model_copy(update={"role": site.role, "generation": site.generation})

    def _restart(self) -> None:
        self._health.stopping = True
        self.must_restart.set()

    def _superseded(self, why: str) -> None:
        """Another site was promoted while this one was away or cut off: what it takes now would be in no archive."""
        held = self._role.site
        if held.role != "Active" or held.superseded == why or self.must_restart.is_set():
            return
        site = Site(held.role, held.generation, held.token, held.origin, held.origin_end, why)
        (log.error if why else log.info)("%s", why or "this cluster owns its archive again")
        try:
            save_site(self._config.data_dir, site)
        except OSError as error:
            log.error("the part of this cluster cannot be written: %s", error)
        self._role.take_site(site)

    # ---- the archive

    def close_archive(self, token: str) -> CloseAnswer:
        """Archive the last byte of a sealed group, and close the manifest. Ask again until it is closed."""
        store, site = self._store, self._role.site
        report = self._archiving.report
        archived = 0 if report is None or not report.known else report.end
        why = ""
        if site.role != "Sealed" or site.token != token:
            why = "the group is not sealed for this hand-over"
        elif not self._role.leading:
            why = "it does not lead"
        # Closed before its last records are confirmed, the archive would hand over less than was acknowledged.
        elif store.state.confirmed < store.log.end:
            why = f"its log is confirmed up to {store.state.confirmed} of {store.log.end}"
        else:
            try:
                self._archiving.finish(token, store.log.end)
            except NoArchive as error:
                why = str(error)
        closed = not why and report is not None and report.closed == token and report.end == store.log.end
        if not why and not closed:
            why = (
                report.error if report is not None and report.error else f"archived up to {archived} of {store.log.end}"
            )
        return CloseAnswer(closed=closed, end=store.log.end, archived=archived, reason="" if closed else why)

    async def look(self) -> SiteLook:
        """Look at the archive. Raises NotStandby, ArchiveError."""
        archive = await self._follows().look()
        owner = archive.owner
        return SiteLook(
            owner_uid=owner.uid,
            owner_cluster=owner.cluster,
            number=owner.number,
            closed=archive.closed,
            handed_over=list(archive.handed_over),
            groups=list(archive.groups),
            archived_end=archive.archived_end,
            archived_ms=archive.archived_ms,
            end=archive.end,
        )

    async def take(self, request: TakeRequest) -> TakeAnswer:
        """Take the archive over. Raises NotStandby, Fenced, ArchiveError."""
        following, archive = self._follows(), self._config.archive
        if archive is None:
            raise NotStandby("this cluster has no archive of its own: write spec.archive with the url that it follows")
        if self._config.follow is not None and archive.url != self._config.follow.url:
            raise ArchiveError(f"spec.archive.url is {archive.url}, the standby follows {self._config.follow.url}")
        end = await following.take_over(
            archive.uid, self._config.own_cluster, request.token, accept_loss=request.accept_loss
        )
        return TakeAnswer(archived_end=end, end=self._store.state.confirmed)

    def _follows(self) -> Following:
        if self._following is None:
            raise NotStandby("this member is no standby that follows an archive")
        return self._following
