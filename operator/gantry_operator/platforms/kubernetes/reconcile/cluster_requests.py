"""All requests of people in annotations of a cluster: a switchover, its part in a pair of sites, a migration."""

from __future__ import annotations

from collections.abc import Callable

from gantry_operator.cluster.control import ClusterControl
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.reconcile.cluster_platform import ClusterPlatform
from gantry_operator.platforms.kubernetes.requests.migration_requests import MigrationRequests
from gantry_operator.platforms.kubernetes.requests.site_requests import SiteRequests
from gantry_operator.platforms.kubernetes.requests.switchover_requests import SwitchoverRequests


class ClusterRequests:
    """The requests of one cluster. `look` at each pass; `on_end` begins the next pass."""

    def __init__(
        self, resource: ClusterResource, control: ClusterControl, platform: ClusterPlatform, on_end: Callable[[], None]
    ) -> None:
        def why_not() -> str | None:
            """Why the groups are not known; empty: they are known; None: the spec was not looked at yet."""
            return "" if control.plan is not None else control.refused or None

        self._switchovers = SwitchoverRequests(resource, control, platform.events, on_end)
        self._sites = SiteRequests(resource, control.sites, on_end, why_not)
        self._migrations = MigrationRequests(
            resource,
            platform.migration,
            platform.rollback_steps,
            platform.events.record,
            on_end,
            why_not,
            platform.copy_kv,
            platform.check_cutover,
        )

    def look(self) -> None:
        """Start to carry out what the resource asks for, or go on with it."""
        self._switchovers.look()
        self._sites.look()
        self._migrations.look()

    def migration_waits(self) -> str:
        """Return what the present step of a cutover waits for, for people."""
        return self._migrations.waits

    async def close(self) -> None:
        """End the work under way. The next operator goes on with it."""
        await self._switchovers.close()
        await self._sites.close()
        await self._migrations.close()

    async def give_back(self) -> None:
        """End what the resource had begun at other systems."""
        await self._migrations.give_back()
