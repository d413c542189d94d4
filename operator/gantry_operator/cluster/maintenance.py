"""When changes that are not urgent may begin: maintenance windows; upgrades of one cluster after the other. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gantry_operator.api import cron
from gantry_operator.api.base import parse_duration
from gantry_operator.api.maintenance import MaintenanceWindow


def is_open(window: MaintenanceWindow, now: datetime) -> bool:
    """Whether a window has begun and has not ended."""
    length = timedelta(seconds=parse_duration(window.duration))
    begun = cron.next_run(window.schedule, window.timeZone, now - length)
    return begun is not None and begun <= now.astimezone(UTC)


def wait_for(window: MaintenanceWindow | None, now: datetime) -> str:
    """Why a change waits; empty: it may begin."""
    if window is None or is_open(window, now):
        return ""
    opens = cron.next_run(window.schedule, window.timeZone, now)
    when = "" if opens is None else f" at {opens.strftime('%Y-%m-%dT%H:%M:%SZ')}"
    return f"waits for the maintenance window{when}"


class UpgradeQueue:
    """Clusters whose pods get another default image take turns: at most one at a time.

    A cluster that asks again and again keeps its place. One whose upgrade does not end keeps the others waiting: the
    new image may be a bad one.
    """

    def __init__(self, *, paused: bool = False) -> None:
        self._paused = paused
        self._turn: str | None = None

    def wait(self, cluster: str) -> str:
        """Why this cluster has to wait; empty: it is its turn, until `done`."""
        if self._paused:
            return "waits, since the operator's chart says upgrades: Paused"
        if self._turn is None:
            self._turn = cluster
        if self._turn == cluster:
            return ""
        # Who may see this cluster need not see others: a name is said within the same namespace only.
        namespace = self._turn.partition("/")[0]
        same = namespace == cluster.partition("/")[0]
        return f"waits until {self._turn if same else 'a cluster of another namespace'} is upgraded"

    def done(self, cluster: str) -> None:
        """Note that the cluster has nothing to upgrade, or is gone."""
        if self._turn == cluster:
            self._turn = None
