"""Runs of the report, and of tables, as SparkApplications: the port to Apache's Spark operator.

That operator has no schedule, so ours starts the runs. It asks for the objects every few seconds in place of a watch:
on a cluster without their definition a watch fails for ever, and the other kinds would wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gantry_operator.api import cron
from gantry_operator.api.analytics import Analytics
from gantry_operator.api.annotations import GROUP
from gantry_operator.platforms.kubernetes.api.client import SPARK_APPLICATION, ApiError, KubeApi, Object
from gantry_operator.platforms.kubernetes.manifests import spark_application

SCHEDULED: Final = f"{GROUP}/scheduled"
"""Annotation of a run of the schedule: the time at which it was due."""
STARTING_DEADLINE_S: Final = 3600.0
"""A run that is due for longer is left out, as with a CronJob."""
UNSEEN_S: Final = 60.0
"""Seconds after which a run that Spark's operator has not looked at is a problem."""
MAX_DRIVERS: Final = 8
"""Drivers' pods that are remembered."""
NO_OPERATOR: Final = "NoSparkOperator"


class ActiveRun(Exception):
    """A run is active. The text is its name."""


def due(spec: Analytics, since: datetime, last: datetime | None, now: datetime) -> datetime | None:
    """Return the time at which a run was due that has not begun yet; None: there is none.

    `since`: `spec.analytics` exists since then. `last`: the start of the last run.
    """
    if spec.suspend:
        return None
    after = max(since, last or since, now - timedelta(seconds=STARTING_DEADLINE_S))
    planned = cron.next_run(spec.schedule, spec.timeZone, after)
    return planned if planned is not None and planned <= now else None


def begun(app: Object) -> datetime | None:
    """Return when a run began, or was due if that is later: clocks differ."""
    meta = app["metadata"]
    times = [time_of(meta.get("creationTimestamp")), time_of((meta.get("annotations") or {}).get(SCHEDULED))]
    return max((t for t in times if t is not None), default=None)


def time_of(text: Any) -> datetime | None:
    """Return a time of the API server; None: it is none."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class Applications:
    """The runs of one kind of one cluster."""

    def __init__(self, api: KubeApi, namespace: str, label: str, spec: str) -> None:
        """`label`: that the runs have, and no other SparkApplication. `spec`: the field with their `engine`."""
        self._api = api
        self._namespace = namespace
        self._label = label
        self._spec = spec
        self.apps: list[Object] = []
        """As `look` has found them."""
        self.problem: str | None = None
        self.reason = ""
        self._drivers: dict[str, Object] = {}

    async def look(self) -> bool:
        """Read the runs. False: there is no Spark operator that this one can reach; `problem` says why.

        Raises ApiError, ApiUnavailable.
        """
        try:
            self.apps, _ = await self._api.list(SPARK_APPLICATION, self._namespace, self._label)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            self.apps, self.reason = [], NO_OPERATOR
            self.problem = (
                f"{self._spec}.engine is SparkApplication, and this Kubernetes has no "
                f"{SPARK_APPLICATION.plural}.{SPARK_APPLICATION.group}: install Apache's Spark operator, or write "
                "engine: Job"
                if error.status == 404
                else f"the operator may not read SparkApplications: install its chart again ({error})"
            )
            return False
        self.problem, self.reason = self._unseen(datetime.now(UTC)), ""
        if self.problem is not None:
            self.reason = NO_OPERATOR
        return True

    def _unseen(self, now: datetime) -> str | None:
        for app in self.apps:
            created = time_of(app["metadata"].get("creationTimestamp"))
            if (
                spark_application.state_of(app) == ""
                and created is not None
                and (now - created).total_seconds() > UNSEEN_S
            ):
                return (
                    f"Apache's Spark operator has not taken SparkApplication {app['metadata']['name']}: see that it "
                    f"runs and watches namespace {self._namespace}"
                )
        return None

    def saw(self, pod: Object) -> None:
        """Remember a driver that has ended: Spark's operator removes its pod, with what it said."""
        of_app = (
            any(o.get("kind") == spark_application.KIND for o in pod["metadata"].get("ownerReferences") or [])
            and (pod["metadata"].get("labels") or {}).get(spark_application.ROLE_LABEL) == "driver"
        )
        if of_app and (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self._drivers[pod["metadata"]["uid"]] = pod
            while len(self._drivers) > MAX_DRIVERS:
                del self._drivers[next(iter(self._drivers))]

    def runs(self) -> tuple[list[Object], list[Object]]:
        """Return the runs in the form of Jobs, and their drivers' pods."""
        runs = [spark_application.as_job(app, list(self._drivers.values())) for app in self.apps]
        return [job for job, _ in runs], [pod for _, pods in runs for pod in pods]

    def last(self) -> datetime | None:
        """Return when the last run that is still there began."""
        return max((t for t in map(begun, self.apps) if t is not None), default=None)

    async def start(self, app: Object, scheduled: datetime | None = None) -> Object | None:
        """Make a run; None: the former one has to go first, so ask again. `scheduled`: when it was due.

        The name lets the API server itself refuse a second one. Spark's operator holds a deleted object until its
        driver is gone. Raises ActiveRun, ApiError, ApiUnavailable.
        """
        if not await self.look() or not await self._gone(self.apps):
            return None
        meta = dict(app["metadata"])
        if scheduled is not None:
            meta["annotations"] = {**meta.get("annotations", {}), SCHEDULED: scheduled.isoformat(timespec="seconds")}
        try:
            started = await self._api.create({**app, "metadata": meta})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return None
        self.apps = [started]
        return started

    async def _gone(self, apps: Sequence[Object]) -> bool:
        for app in apps:
            if not spark_application.ended(app):
                raise ActiveRun(app["metadata"]["name"])
        return not await self._delete(apps)

    async def remove(self) -> bool:
        """Delete all runs, also one that is active. False: they are not gone yet. Raises ApiError, ApiUnavailable."""
        try:
            left, _ = await self._api.list(SPARK_APPLICATION, self._namespace, self._label)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return True
        self.apps = []
        return not await self._delete(left)

    async def _delete(self, apps: Sequence[Object]) -> bool:
        """Whether there was one."""
        for app in apps:
            meta = app["metadata"]
            if not meta.get("deletionTimestamp"):
                await self._api.delete(SPARK_APPLICATION, self._namespace, meta["name"], uid=meta["uid"])
        return bool(apps)
