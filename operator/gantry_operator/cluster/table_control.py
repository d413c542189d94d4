"""Keeps the tables of one cluster up with their topics: starts runs, one at a time, and follows them.

A run is a process of its own (`platform.TableRuns`). The tables themselves say where they end, so a run that dies, or
one that was started by another operator, costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from gantry_broker.contracts.table_runs import TableOrder, TableReport
from gantry_broker.tasks import set_within

from gantry_operator.api.status import TableRow
from gantry_operator.api.table import DEFAULT_EVERY, Tables, TableStatus
from gantry_operator.cluster.platform import TableRun, TableRuns, TopicStore
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.tables.outcome import GOOD, after_run, condition, utc
from gantry_operator.tables.schedule import (
    CONTINUOUS_S,
    MAX_TABLES,
    WantedTable,
    choose,
    maintenance_due,
    next_run,
    retry_s,
    run_name,
    wait_s,
)
from gantry_operator.topics.common import first_of_each
from gantry_operator.topics.model import Note, State, WantedTopic

log = logging.getLogger(__name__)

BUSY_S: Final = 1.0
"""Seconds between two looks while a run is active."""
IDLE_S: Final = 30.0
AGAIN_S: Final = 5.0
"""Seconds after a look that the platform could not answer."""
SHORT_S: Final = 1.0
"""The shortest pause, also between runs that follow each other."""
MAX_ROWS: Final = 200
"""Tables in the cluster's status."""


@dataclass(frozen=True, slots=True)
class TableCluster:
    """What the decisions need to know of the cluster."""

    name: str
    tables: Tables
    held: str = ""
    """Why no run starts; empty: runs start."""
    stop: bool = False
    """End the run that is active."""


class TableControl:
    """Runs from `run` until cancelled. `wake` after a change of resources, or of the spec."""

    def __init__(
        self,
        runs: TableRuns,
        topics: TopicStore,
        cluster: Callable[[], TableCluster | None],
        changed: Callable[[], None],
        news: Callable[[], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Set up for one cluster. `changed`: the status of a BrokerTopic has changed. `news`: the status of the cluster
        has.
        """
        self.problem = ""
        """Why runs cannot be followed."""
        self._runs = runs
        self._topics = topics
        self._cluster = cluster
        self._changed = changed
        self._news = news
        self._now = now
        self._wanted: dict[str, WantedTable] = {}
        """By resource."""
        self._states: dict[str, TableStatus] = {}
        self._known = False
        self._taken = ""
        """The run whose report is in the states."""
        self._shown: dict[str, State] = {}
        self._dropping: dict[str, str] = {}
        """By resource that is being deleted: the topic whose table is to be dropped."""
        self._dropped: set[str] = set()
        self._drop_problem: dict[str, str] = {}
        self._drop_failures = 0
        self._drop_after: datetime | None = None
        """Time from which a drop that failed is tried again."""
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    # ---- what others ask

    def state_of(self, topic: WantedTopic) -> tuple[TableStatus, State] | None:
        """Return the table of a topic for its status; None: it has none."""
        mine = self._wanted.get(topic.resource)
        if topic.table is None or mine is None:
            return None
        return self._state(mine), self._condition(mine)

    def keeps(self, topic: WantedTopic) -> str | None:
        """Return why a resource may not go yet, its table being there; None: nothing holds it."""
        if topic.table is None or topic.table.deletionPolicy != "Delete":
            return None
        if not topic.deleting:
            return ""
        if topic.resource in self._dropped:
            return None
        cluster = self._cluster()
        why = self._drop_problem.get(topic.resource, "") or self.problem or ("" if cluster is None else cluster.held)
        return f"the table of {topic.topic} is being dropped{': ' if why else ''}{why}"

    def rows(self) -> list[TableRow] | None:
        """Return the tables for the status of the cluster, bad ones first; None: they are not known yet."""
        if not self._known:
            return None
        rows = []
        for one in self._wanted.values():
            state, now = self._state(one), self._condition(one)
            rows.append(
                TableRow(
                    topic=one.topic, current=now.status, reason=now.reason, message=now.message, rows=state.rows,
                    behindRecords=state.behindRecords, rejected=state.rejected, lastSuccess=state.lastSuccess,
                    lastCommit=state.lastCommit,
                )
            )  # fmt: skip
        return sorted(rows, key=lambda row: (row.current != "False", row.topic))[:MAX_ROWS]

    def _state(self, one: WantedTable) -> TableStatus:
        return self._states.get(one.resource, TableStatus())

    def _condition(self, one: WantedTable) -> State:
        cluster = self._cluster()
        every, held = (DEFAULT_EVERY, "") if cluster is None else (cluster.tables.every, cluster.held)
        current = condition(one, self._state(one), self._now(), every, held, self.problem)
        return State(current.status, current.reason, current.message)

    # ---- the work

    async def run(self) -> None:
        """Never returns."""
        while True:
            self._wake.clear()
            try:
                wait = await self._pass()
                self.problem = ""
            except StoreUnavailable as error:
                if str(error) != self.problem:
                    log.warning("tables: %s", error)
                self.problem, wait = str(error), AGAIN_S
            self._say()
            if await set_within(self._wake, max(wait, SHORT_S)):
                await asyncio.sleep(SHORT_S / 10)  # Changes come in bursts.

    async def _pass(self) -> float:
        """One look. Returns the seconds until the next one."""
        cluster, resources = self._cluster(), self._topics.observe()
        if cluster is None or resources is None:
            return SHORT_S
        self._take(cluster, resources.topics)
        if not self._wanted and not self._dropping and not self._taken and self._known:
            return IDLE_S
        run = await self._runs.newest()
        if run is not None and run.running:
            self._known = True
            if cluster.stop:
                await self._runs.stop()
            self._follow(cluster, run, ended=False)
            return BUSY_S
        if run is not None and run.name != self._taken:
            self._follow(cluster, run, ended=True)
            self._taken = run.name
        self._known = True
        if cluster.held or not (self._wanted or self._dropping):
            return IDLE_S
        now = self._now()
        if self._dropping and (self._drop_after is None or self._drop_after <= now):
            gone = [
                TableOrder(topic=w.topic, format=w.table.format, drop=True)
                for w in resources.topics
                if w.resource in self._dropping and w.table is not None
            ][:MAX_TABLES]
            await self._runs.start(run_name(now), gone, cluster.tables, 0.0)
            return BUSY_S
        every = cluster.tables.every
        due = choose(list(self._wanted.values()), self._states, now, every)
        if due:
            rules = cluster.tables.maintenance
            orders = [
                one.order(every, rules if maintenance_due(one, self._state(one), rules, now) else None) for one in due
            ]
            lasts_s = CONTINUOUS_S if any(order.every_s == 0 for order in orders) else 0.0
            await self._runs.start(run_name(now), orders, cluster.tables, lasts_s)
            return BUSY_S
        wait = wait_s(list(self._wanted.values()), self._states, now, every)
        return IDLE_S if wait is None else min(wait, IDLE_S)

    def _take(self, cluster: TableCluster, topics: Sequence[WantedTopic]) -> None:
        """Read what is wanted, and what the status remembers."""
        owners = first_of_each(topics, lambda w: w.topic)
        self._wanted = {
            w.resource: WantedTable(w.resource, w.topic, w.table, w.generation, _time(w.created))
            for w in topics
            if w.table is not None and not w.deleting and owners[w.topic].resource == w.resource
        }
        for w in topics:
            if w.resource in self._wanted and w.resource not in self._states:
                self._states[w.resource] = w.table_status or TableStatus()
        used = {w.topic for w in topics if w.table is not None and not w.deleting}
        leaving = {
            w.resource: w.topic
            for w in topics
            if w.deleting and w.table is not None and w.table.deletionPolicy == "Delete"
        }
        # A table that another resource goes on with stays.
        self._dropped = {r for r in self._dropped if r in leaving} | {r for r, t in leaving.items() if t in used}
        self._dropping = {r: t for r, t in leaving.items() if r not in self._dropped}
        for gone in self._states.keys() - self._wanted.keys():
            del self._states[gone]
        for resource, one in self._wanted.items():
            due = None if cluster.held else next_run(one, self._states[resource], self._now(), cluster.tables.every)
            name = f"{cluster.tables.namespace}.{one.topic}"
            update = {"nextRun": None if due is None else utc(due), "name": name}
            self._states[resource] = self._states[resource].model_copy(update=update)

    def _follow(self, cluster: TableCluster, run: TableRun, *, ended: bool) -> None:
        """Bring what a run has said into the states."""
        reports = {t.topic: t for t in run.report.tables} if run.report is not None else {}
        started = datetime.fromtimestamp(run.started_ms / 1000, UTC)
        for resource, topic in list(self._dropping.items()):
            if topic in reports and reports[topic].reason == "Dropped":
                self._dropped.add(resource)
                self._drop_failures, self._drop_after = 0, None
                del self._dropping[resource]
                self._changed()
            elif ended and topic in run.topics:
                own = reports[topic].message if topic in reports else ""
                self._drop_problem[resource] = own or run.problem or "the last run failed"
                self._drop_failures += 1
                self._drop_after = self._now() + timedelta(seconds=retry_s(self._drop_failures))
        for resource, one in self._wanted.items():
            report = reports.get(one.topic)
            before = self._states[resource]
            if report is None:
                if not ended or one.topic not in run.topics:
                    continue
                own = "" if run.report is None else run.report.problem
                why = own or run.problem or "the run ended without a word about this table: look at its log"
                report = TableReport(topic=one.topic, reason="Failed", message=why)
            if not ended and report.reason not in GOOD:
                continue  # The run may try it again.
            new = after_run(one, before, started, report)
            if (before.lastRun or "") >= utc(started) and before.reason == report.reason:
                # The report was taken before, by this operator or a former one.
                new = new.model_copy(update={"failures": before.failures})
            due = None if cluster.held else next_run(one, new, self._now(), cluster.tables.every)
            self._states[resource] = new.model_copy(update={"nextRun": None if due is None else utc(due)})

    def _say(self) -> None:
        """Events for what has changed, and new statuses."""
        shown = {resource: self._condition(one) for resource, one in self._wanted.items()}
        if shown == self._shown:
            return
        for resource, state in shown.items():
            before = self._shown.get(resource)
            if before is None or (before.status, before.reason) == (state.status, state.reason):
                continue
            if state.status == "False":
                self._topics.note("BrokerTopic", Note("Warning", f"Table{state.reason}", state.message, resource))
            elif state.status == "True" and before.status == "False":
                self._topics.note("BrokerTopic", Note("Normal", "TableCurrent", state.message, resource))
        self._shown = shown
        self._changed()
        self._news()


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime(1970, 1, 1, tzinfo=UTC)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
