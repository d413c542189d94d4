"""Looks at a migration from RocketMQ again and again, for the cluster's status and its events."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from gantry_operator.api.status import MigrationStatus
from gantry_operator.cluster.copies import follows
from gantry_operator.cluster.observed import ObservedMigration
from gantry_operator.migration import progress
from gantry_operator.migration.cutover_edge import FAILURES
from gantry_operator.migration.cutover_steps import Phase, Refused
from gantry_operator.migration.source_config import CONFIG_S, NotYet
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.requests.migration_request import (
    MIGRATE,
    MIGRATION,
    ROLLBACK,
    read_record,
    read_rollback,
)

LOOK_S: Final = 5.0
Copies = Callable[[bool], Awaitable[Mapping[str, Mapping[str, Any] | None] | None]]
"""Gives by group what its member says of the copy, or without a question when the argument is False. None: the spec has
no source, or it is not known yet.
"""


class MigrationWatch:
    """The migration of one cluster. `seen`: as it was seen last; None: there is none, or it is not known yet."""

    def __init__(
        self,
        resource: ClusterResource,
        copies: Copies,
        waits: Callable[[], str],
        event: Callable[[str, str, str], None],
        changed: Callable[[], None],
        copy_config: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Look at nothing yet. `waits`: what the present step of a cutover waits for. `copy_config` gives the cluster's
        NameServers the source's key-value configuration; None: nothing does.
        """
        self.seen: ObservedMigration | None = None
        self._resource, self._copies, self._waits = resource, copies, waits
        self._event, self._changed = event, changed
        self._copy_config = copy_config
        self._copied_at = -math.inf
        self._not_copied = ""

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once."""
        try:
            record = read_record(self._resource.annotation(MIGRATION))
            rolled = read_rollback(self._resource.annotation(ROLLBACK))
        except Refused as error:
            name = ROLLBACK if ROLLBACK in str(error) else MIGRATION
            unreadable = MigrationStatus(phase="unknown", message=str(error), next=f"repair the annotation {name}")
            self._take(None if await self._copies(False) is None else unreadable)
            return
        copies = await self._copies(record.phase is not Phase.DONE)
        if copies is None:
            self._take(None)
            return
        self._take(progress.status_of(record, copies, self._resource.annotation(MIGRATE), self._waits(), rolled))
        if record.phase is Phase.FOLLOWING and all(map(follows, copies.values())):
            await self._keep_config()

    async def _keep_config(self) -> None:
        """Copy the source's key-value configuration now and then."""
        if self._copy_config is None or time.monotonic() - self._copied_at < CONFIG_S:
            return
        problem = ""
        try:
            await self._copy_config()
        except NotYet:
            pass  # The end of the cutover copies it.
        except (Refused, ApiError, ApiUnavailable, *FAILURES) as error:
            problem = f"the key-value configuration of the source is not copied: {error}"
        self._copied_at = time.monotonic()
        if problem and problem != self._not_copied:
            self._event("Warning", "Migration", problem[:900])
        self._not_copied = problem

    def _take(self, status: MigrationStatus | None) -> None:
        before = None if self.seen is None else self.seen.status
        if status is not None:
            for kind, text in progress.news(before, status):
                self._event(kind, "Migration", text[:900])
        self.seen = None if status is None else ObservedMigration(status, *progress.condition_of(status))
        if status != before:
            self._changed()
