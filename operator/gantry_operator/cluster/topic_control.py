"""Keeps the topics and consumer groups of one cluster as their resources say.

A pass asks the master of each broker group once for all of its tables, decides, keeps what the decision must remember,
and sends the steps to the masters. Every step may be repeated, so the process may end after any of them, and a failover
in the middle only means another pass. Without resources no broker is asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from gantry_broker.contracts.models import MAX_UNDELIVERED
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import set_within

from gantry_operator.api.table import TableStatus
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.offset_reset import ResetFailed, Resets
from gantry_operator.cluster.platform import Resources, TopicStore
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.cluster.topic_requests import Refused, TryLater, carry_out
from gantry_operator.topics.groups import decide_groups
from gantry_operator.topics.model import (
    SETTLE_S,
    DropGroup,
    DropTopic,
    Note,
    Observed,
    Result,
    Settling,
    State,
    Step,
    WantedGroup,
    WantedTopic,
)
from gantry_operator.topics.plan import decide_topics
from gantry_operator.topics.seen import BadTables, BrokerTables
from gantry_operator.topics.status import failed

log = logging.getLogger(__name__)

EVERY_S: Final = 30.0
"""Seconds between two passes while nothing happens."""
BUSY_S: Final = 3.0
"""The same while a resource waits for something, such as the readers of queues that it loses."""
AGAIN_S = (0.3, 1.0, 2.0, 5.0, 10.0, 15.0)
"""Seconds after a pass with steps that failed. The last value repeats."""
SETTLE_CHANGES_S = 0.1
"""Seconds between a change and the pass, because changes come in bursts."""
PATIENCE_S = 20.0
"""Seconds for which a broker group may be without a master before resources say so."""
TABLES_S = 20.0
MAX_TABLES = 256 * 1_048_576
"""Bytes of one answer with tables."""
TABLE_TO_KEEP: Final = "to keep it, write spec.table.deletionPolicy: Retain"
AT_ONCE = 16
"""Steps that one broker group carries out at a time."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the decisions need to know of the cluster."""

    name: str
    groups: Sequence[str]
    draining: frozenset[str] = frozenset()
    held: str = ""
    """Why nothing may be changed; empty: it may."""


def _generations(resources: Resources) -> dict[tuple[str, str], int]:
    """By kind and name."""
    of_topics = {("topic", w.resource): w.generation for w in resources.topics}
    return of_topics | {("group", w.resource): w.generation for w in resources.groups}


class TopicControl:
    """Runs from `run` until cancelled. `wake` after a change of resources, or of the spec."""

    def __init__(
        self,
        store: TopicStore,
        cluster: Callable[[], Cluster | None],
        controllers: Mapping[str, GroupController],
        http: httpx.AsyncClient,
        remoting: Callable[[], RemotingClient],
        address: Callable[[str], str | None],
        now: Callable[[], float] = time.monotonic,
        settle_s: float = SETTLE_S,
        tables: Callable[[WantedTopic], tuple[TableStatus, State] | None] = lambda topic: None,
        keeps: Callable[[WantedTopic], str | None] = lambda topic: None,
    ) -> None:
        """`address`: where the master of a broker group answers clients of this process; None: not known yet.
        `tables`: the state of a topic's table; None: it has none. `keeps`: why a resource may not go, its table being
        there; None: nothing holds it.
        """
        self.problem = ""
        """Why topics and groups are not compared."""
        self.passes = 0
        self._store = store
        self._cluster = cluster
        self._controllers = controllers
        self._http = http
        self._remoting = remoting
        self._address = address
        self._now = now
        self._settle_s = settle_s
        self._table_of = tables
        self._keeps = keeps
        self._settling: dict[tuple[str, str], Settling] = {}
        self._ask: list[str] = []
        self._silent_since: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        """By broker group: why its tables are not known."""
        self._failures = 0
        self._last_steps: list[Step] = []
        self._dirty = True
        self._wake = asyncio.Event()

    def managed_topics(self) -> frozenset[str] | None:
        """Topics that resources describe: they get their queues on each broker group here. None: not known yet."""
        resources = self._store.observe()
        return None if resources is None else frozenset(t.topic for t in resources.topics if not t.deleting)

    def wake(self) -> None:
        self._dirty = True
        self._wake.set()

    @property
    def busy(self) -> bool:
        """A change was not looked at yet."""
        return self._dirty

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                wait = await self._pass()
            except StoreUnavailable as error:
                if str(error) != self.problem:
                    log.warning("topics: %s", error)
                self.problem, wait = str(error), AGAIN_S[1]
            except BadTables as error:
                self.problem, wait = f"a broker's tables cannot be used: {error}", BUSY_S
                log.warning("topics: %s", self.problem)
            if await set_within(self._wake, wait):
                await asyncio.sleep(SETTLE_CHANGES_S)
            self._wake.clear()

    async def _pass(self) -> float:
        """One pass. Returns the seconds until the next one."""
        self._dirty = False
        resources, cluster = self._store.observe(), self._cluster()
        if resources is None or cluster is None:
            self._dirty = True
            return AGAIN_S[1]
        if not resources.topics and not resources.groups:
            self.problem = ""
            self._settling.clear()
            await self._store.report(resources, {}, {})
            return EVERY_S
        seen = Observed(cluster.name, cluster.groups, await self._tables(cluster), cluster.draining, cluster.held)
        self.passes += 1
        now = self._now()
        topics = decide_topics(resources.topics, seen, self._settling, now, self._settle_s)
        self._add_tables(resources.topics, topics.results)
        await asyncio.sleep(0)  # Failover goes on between the parts of a long pass.
        groups = decide_groups(resources.groups, seen)
        asks_more = not topics.ask <= {*self._ask}
        self._settling, self._ask = topics.settling, sorted(topics.ask)
        steps = [*topics.steps, *groups.steps]
        undecided = {w.resource for w in resources.topics if not w.recorded.origin}
        undecided |= {w.resource for w in resources.groups if not w.recorded.origin}
        if any(step.resource in undecided for step in steps):
            # After a restart a topic that was made here looks like an older one.
            await self._report(resources, topics.results, groups.results)
        for kind, decision in (("BrokerTopic", topics), ("ConsumerGroup", groups)):
            for note in decision.notes:
                self._store.note(kind, note)
        steps = self._still_wanted(steps, resources)
        refused, later = await self._carry_out(steps)
        # The same steps once more: a broker does not keep what it accepts, or another program undoes it.
        later = later or (bool(steps) and steps == self._last_steps)
        self._last_steps = steps
        for results, steps_of in ((topics.results, topics.steps), (groups.results, groups.steps)):
            for resource in {step.resource for step in steps_of} & refused.keys():
                results[resource] = failed(results[resource], refused[resource])
        if not (steps or asks_more) or refused or later:
            complete = await self._report(resources, topics.results, groups.results)
        else:
            complete = True  # The next pass follows at once, and sees the result.
        resetting = await self._resets(resources, cluster, seen)
        self.problem = "; ".join(f"group {g}: {why}" for g, why in sorted(self._problems.items()) if self._patient(g))
        if refused or later:
            self._failures += 1
            wait = AGAIN_S[min(self._failures, len(AGAIN_S)) - 1]
            return min(wait, BUSY_S) if resetting else wait
        self._failures = 0
        if steps or asks_more:
            self._wake.set()
            return 0.0
        waiting = any(r.busy for r in (*topics.results.values(), *groups.results.values()))
        return BUSY_S if waiting or resetting or not complete else EVERY_S

    def _add_tables(self, topics: Sequence[WantedTopic], results: dict[str, Result]) -> None:
        for one in topics:
            table = self._table_of(one)
            if table is not None:
                status, current = table
                results[one.resource] = replace(results[one.resource], table=status, table_current=current)
            keeps = self._keeps(one)
            if keeps is None or one.resource not in results:
                continue
            result = replace(results[one.resource], finalizer=True)
            if one.deleting and not results[one.resource].finalizer:
                state = State("False", "DroppingTable", f"{keeps}; {TABLE_TO_KEEP}")
                result = replace(result, ready=state, synced=state, busy=True)
            results[one.resource] = result

    def _still_wanted(self, steps: list[Step], resources: Resources) -> list[Step]:
        """Return the steps without deletions for resources that were written again since they were read."""
        dropping = {s.resource for s in steps if isinstance(s, DropTopic | DropGroup)}
        newer = self._store.observe() if dropping else None
        if newer is None:
            return steps
        before = _generations(resources)
        changed = {key[1] for key, new in _generations(newer).items() if before.get(key) != new} & dropping
        if changed:
            self._dirty = True
            self._wake.set()
        return [s for s in steps if not (isinstance(s, DropTopic | DropGroup) and s.resource in changed)]

    def _patient(self, group: str) -> bool:
        """Whether a group has been silent for so long that it is worth a word."""
        since = self._silent_since.get(group)
        return since is not None and self._now() - since >= PATIENCE_S

    async def _report(
        self, resources: Resources, topics: Mapping[str, Result], groups: Mapping[str, Result]
    ) -> bool:  # fmt: skip
        soon = not any(self._patient(g) for g in self._silent_since)

        def worth_it(results: Mapping[str, Result]) -> dict[str, Result]:
            return {name: r for name, r in results.items() if not (r.blind and soon)}

        return await self._store.report(resources, worth_it(topics), worth_it(groups))

    # ---- the brokers

    async def _tables(self, cluster: Cluster) -> dict[str, BrokerTables | None]:
        """One request for each broker group."""
        tables_of = await asyncio.gather(*(self._tables_of(g) for g in cluster.groups))
        now = self._now()
        for group, tables in zip(cluster.groups, tables_of, strict=True):
            if tables is None:
                self._silent_since.setdefault(group, now)
            else:
                self._silent_since.pop(group, None)
        for gone in self._silent_since.keys() - set(cluster.groups):
            del self._silent_since[gone]
        return dict(zip(cluster.groups, tables_of, strict=True))

    def _asked(self) -> list[str]:
        """Topics of which this pass wants to know what is not delivered yet: a part of them, in turn."""
        begin = self.passes * MAX_UNDELIVERED % max(len(self._ask), 1)
        return [*self._ask[begin:], *self._ask[:begin]][:MAX_UNDELIVERED]

    async def _tables_of(self, group: str) -> BrokerTables | None:
        controller = self._controllers.get(group)
        leader = None if controller is None else controller.leader_watch
        if leader is None or leader.reach != "ok":
            self._problems[group] = "no master answers"
            return None
        try:
            params = {"ages": "false", "undelivered": self._asked()}
            answer = await self._http.get(f"{leader.url}/v1/tables", params=params, timeout=TABLES_S)
            answer.raise_for_status()
            if len(answer.content) > MAX_TABLES:
                raise BadTables(f"more than {MAX_TABLES} bytes")
            data = await asyncio.to_thread(orjson.loads, answer.content)
            if not isinstance(data, dict) or data.get("settled") is not True:
                raise BadTables("it has just taken the role")
            tables = BrokerTables(group, data)
        except (httpx.HTTPError, ValueError) as error:
            self._problems[group] = f"the tables of {leader.name} are not known: {error or type(error).__name__}"
            return None
        self._problems.pop(group, None)
        return tables

    async def _carry_out(self, steps: Sequence[Step]) -> tuple[dict[str, str], bool]:
        """Return refusals by resource, and whether a step must be tried later."""
        refused: dict[str, str] = {}
        gates: dict[str, asyncio.Semaphore] = {}
        late = False
        turns: dict[tuple[str, str], list[Step]] = {}
        for step in steps:
            turns.setdefault((step.group, step.resource), []).append(step)

        async def one(group: str, resource: str, mine: Sequence[Step]) -> None:
            nonlocal late
            async with gates.setdefault(group, asyncio.Semaphore(AT_ONCE)):
                try:
                    for step in mine:
                        await self._send(step)
                except Refused as error:
                    refused[resource] = str(error)
                except (TryLater, RemotingError) as error:
                    log.info("topics: %s is tried again: %s", resource, error)
                    late = True

        await asyncio.gather(*(one(*key, mine) for key, mine in turns.items()))
        return refused, late

    async def _send(self, step: Step) -> None:
        address = self._address(step.group)
        if address is None:
            raise TryLater(f"the address of group {step.group} is not known yet")
        await carry_out(self._remoting(), address, step)

    # ---- offset resets

    async def _resets(self, resources: Resources, cluster: Cluster, seen: Observed) -> bool:
        """Whether a reset must be tried again soon."""
        again = False
        groups = {w.resource: w for w in resources.groups}
        resets = Resets(self._remoting(), self._address, seen)
        for resource, (text, before) in resources.resets.items():
            if cluster.held or not (text or before):
                continue
            try:
                await self._reset(resets, groups[resource], text, before)
            except (ResetFailed, RemotingError, TryLater) as error:
                log.info("offset reset of %s: %s; it is tried again", resource, error)
                again = True
        return again

    async def _reset(self, resets: Resets, w: WantedGroup, text: str, before: Mapping[str, Any] | None) -> None:
        while (following := await resets.next(w.group, text, before)) is not None:
            if following.answered:
                # Before the status: a later annotation with the same text is another request.
                await self._store.reset_answered(w.resource, text)
            if following.status != before:
                await self._store.keep_reset(w.resource, following.status)
                if following.note is not None:
                    kind, reason, message = following.note
                    self._store.note("ConsumerGroup", Note(kind, reason, message, w.resource))
            if not following.again:
                return
            before = following.status
