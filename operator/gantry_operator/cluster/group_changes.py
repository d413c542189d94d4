"""Broker groups that come and go: brings the topics to a new group, and drains and removes one that left the spec.

`drain.decide` and `drain.missing_on` decide. This is the edge: it reads the masters' reports and tables, one call for
each master, and sends them what is decided. Every step may be repeated, so the process may end after any of them: what
must not be forgotten is in the broker groups' own tables, and the begin of a removal is with the platform.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from gantry_broker.contracts.models import MAX_CONFIGS, DrainReport, Unread
from gantry_broker.tasks import set_within
from pydantic import ValidationError

from gantry_operator.api.status import DrainRow
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.member_client import JSON
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Event, RemovalPlatform
from gantry_operator.drain.extension import GroupConfigs, Missing, homeless, missing_on
from gantry_operator.drain.machine import (
    COMPACTED,
    DrainStep,
    LeavingGroup,
    Obstacle,
    Policy,
    Progress,
    at,
    compacted_obstacle,
    decide,
    ends_at_ms,
    expired,
    unread_obstacle,
    ways_on,
)
from gantry_operator.failover.second_site import STANDBY
from gantry_operator.topics.seen import BadTables, BrokerTables

log = logging.getLogger(__name__)

BUSY_S: Final = 1.0
IDLE_S: Final = 2.0
DRAINING_S: Final = 5.0
"""Seconds between two looks at a group that consumers still read: a drain may take days."""
READ_S: Final = 10.0
WRITE_S: Final = 10.0
ANSWER_LIMIT: Final = 64 << 20
"""Bytes of the answer with all topics and consumer groups: those of 50,000 topics are some 10 MiB."""


class MemberRefused(Exception):
    """A member did not answer, or refused. The text is the reason."""


@dataclass(frozen=True, slots=True)
class WantedGroups:
    """The broker groups of a cluster by what becomes of them."""

    staying: tuple[str, ...]
    leaving: tuple[str, ...] = ()
    """No longer in the spec, and not removed yet."""
    removing: tuple[str, ...] = ()
    """Their removal has begun."""
    extend: bool = True
    """A new group gets the topics that exist (`topicDefaults.extendToNewGroups`)."""
    policy: Policy = "WhenConsumed"
    managed: Collection[str] | None = field(default=())
    """Topics that resources spread over the groups; None: not known yet."""


class GroupChanges:
    """Runs from `run` until cancelled."""

    def __init__(
        self,
        platform: RemovalPlatform,
        controllers: Mapping[str, GroupController],
        client: httpx.AsyncClient,
        groups_now: Callable[[], WantedGroups | None],
        on_event: Callable[[Event], None],
        end: Callable[[str], Awaitable[None]],
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        """`groups_now`: the groups now; None: not known, or no change is allowed. `end`: ends the failover of a group.

        `on_news`: the status has changed.
        """
        self.drains: dict[str, DrainRow] = {}
        """The drains for the status, by group."""
        self.progress: dict[str, str] = {}
        """By group: the step that is being done."""
        self._platform = platform
        self._controllers = controllers
        self._client = client
        self._groups_now = groups_now
        self._on_event = on_event
        self._end = end
        self._on_news = on_news
        self._memory: dict[str, Progress] = {}
        self._next_look: dict[str, float] = {}
        """By leaving group: when it is looked at again (monotonic seconds)."""
        self._reported: dict[str, str] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Note that the groups of the spec may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Never returns. An exception becomes an event, and the next pass follows."""
        while True:
            before = (dict(self.drains), dict(self.progress))
            busy = True
            try:
                busy = await self._pass()
                self._reported.pop("", None)
            except Exception as error:
                if self._reported.get("") != repr(error):
                    log.exception("groups that come and go")
                    self._event("Warning", "GroupChangeFailed", repr(error), "")
                self._reported[""] = repr(error)
            if before != (self.drains, self.progress):
                self._on_news()
            await set_within(self._wake, BUSY_S if busy else IDLE_S)
            self._wake.clear()

    async def _pass(self) -> bool:
        """Look and act once. True: there is more to do."""
        groups = self._groups_now()
        if groups is None:
            return False
        gone = {*self.drains, *self._memory, *self.progress} - {*groups.staying, *groups.leaving, *groups.removing}
        for group in gone:
            self.drains.pop(group, None)
            self._memory.pop(group, None)
            self._next_look.pop(group, None)
            self.progress.pop(group, None)
        busy = await self._extend(groups)
        for group in groups.staying:
            busy = await self._stay(group) or busy
        for group in groups.leaving:
            await self._drain(group, groups)
        for group in groups.removing:
            await self._remove(group)
        return busy or bool(groups.leaving or groups.removing)

    # ---- groups that come

    async def _extend(self, groups: WantedGroups) -> bool:
        """Give new groups the topics and consumer groups of the others. True: it is not done yet."""
        marks = {g: self._marks(g) for g in (*groups.staying, *groups.leaving)}
        new = [g for g in groups.staying if (m := marks[g]) is not None and not m.get("joined")]
        if not new:
            return False
        joined = [g for g, m in marks.items() if m is not None and m.get("joined")]
        if not joined:
            if None not in marks.values():
                await self._guarded("", self._first(new))
            return True
        for group in new:
            await self._guarded(group, self._extend_to(group, joined, groups, complete=None not in marks.values()))
        return True

    async def _first(self, groups: Collection[str]) -> None:
        """No group is marked: they are the first ones of a cluster, or of a version that did not mark them.

        One without any topic may have been added a moment ago. The next pass extends it.
        """
        used = {group for group in groups if (await self._configs(group)).topics}
        for group in used or groups:
            await self._mark(group, joined=True)

    async def _extend_to(self, group: str, joined: Collection[str], groups: WantedGroups, complete: bool) -> None:
        """`complete`: every other group answers, so that nothing can be missing after this."""
        if groups.extend and groups.managed is None:
            return
        if groups.extend:
            self.progress[group] = f"group {group} gets the topics of the cluster"
            others = [await self._configs(g) for g in joined]
            missing = missing_on(await self._configs(group), others, groups.managed or ())
            await self._create(group, missing)
            if missing:
                self._event(
                    "Normal",
                    "GroupExtended",
                    f"{len(missing.topics)} topics have queues there now, and {len(missing.groups)} consumer groups "
                    "are known",
                    group,
                )
        if complete or not groups.extend:
            await self._mark(group, joined=True)
            self.progress.pop(group, None)

    async def _stay(self, group: str) -> bool:
        """Let a group that was written back take messages again. True: it does not yet."""
        self._memory.pop(group, None)
        self._next_look.pop(group, None)
        self.drains.pop(group, None)
        marks = self._marks(group)
        if marks is None or not marks.get("drain"):
            return False

        if not await self._platform.stay(group):
            return True

        async def reopen() -> None:
            await self._mark(group, drain="")
            self._event("Normal", "DrainCancelled", "the group is in the spec again and takes messages", group)

        await self._guarded(group, reopen())
        return True

    # ---- groups that go

    async def _drain(self, group: str, groups: WantedGroups) -> None:
        if time.monotonic() < self._next_look.get(group, 0.0):
            return
        mark = self._platform.mark(group)
        report = await self._report(group)
        controller = self._controllers.get(group)
        leadership = None if controller is None else controller.leadership
        others = self._others(groups)
        missing: dict[str, Missing] = {}
        if report is not None:
            try:
                missing = await self._homeless(group, groups)
            except MemberRefused as error:
                others = str(error)
        progress = self._memory.get(group, Progress())
        seen = LeavingGroup(
            time.monotonic(), report, None if leadership is None else leadership.epoch, groups.policy, others,
            homeless=any(missing.values()),
            standby=controller is not None and controller.waits is not None and controller.waits.code == STANDBY,
            waits=controller.waits.reason if leadership is None and controller is not None and controller.waits else "",
        )  # fmt: skip
        self._memory[group], step = decide(progress, seen)
        if step.action == "remove" and report is not None:
            step = await self._read_by_all(group, groups, step, expired(report))
        if group not in self.drains:
            self._event("Normal", "DrainBegun", "the group left the spec; it goes once it is empty", group)
        self.drains[group] = self._row(group, step, report)
        self._report_blocked(group, self.drains[group])
        if step.phase == "Draining" and step.action == "wait":
            self._next_look[group] = time.monotonic() + DRAINING_S
        if step.action == "spread":
            for other, lacks in missing.items():
                await self._guarded(group, self._create(other, lacks))
        elif step.action in ("closing", "closed"):
            await self._guarded(group, self._mark(group, drain=step.action))
        elif step.action == "remove":
            now = self._groups_now()
            if now is None or group not in now.leaving:
                return  # It was written back, or changes were paused, since this pass began.
            if await self._platform.begin_removal(group, mark):
                self._event("Normal", "DrainDone", "the group is empty, so it is removed", group)
            self._memory.pop(group, None)

    async def _read_by_all(self, group: str, groups: WantedGroups, step: DrainStep, over: bool) -> DrainStep:
        """Return the step, if nobody misses what is here: the consumer groups of the other broker groups have seen it
        or its retention is `over`, and no compacted topic has messages, which are a state and not a past.
        """
        try:
            tables = await self._tables(group)
            obstacles = [compacted_obstacle(topic, group) for topic in tables.compacted()]
            if not over:
                others = [await self._tables(g) for g in groups.staying]
                unread = tables.never_read(others)
                obstacles += [unread_obstacle(Unread(topic=t, consumer_group=g, messages=n)) for t, g, n in unread]
        except (BadTables, MemberRefused) as error:
            return DrainStep("wait", "Draining", (Obstacle("OthersNotReady", str(error)),))
        return DrainStep("wait", "Draining", tuple(obstacles)) if obstacles else step

    async def _tables(self, group: str) -> BrokerTables:
        tables = await self._call(group, "GET", "/v1/tables?ages=false")
        try:
            if tables.get("settled") is not True:
                raise BadTables("it has just taken the role")
            return BrokerTables(group, tables)
        except (AttributeError, BadTables) as error:
            raise MemberRefused(f"the tables of group {group} are not known: {error}") from None

    def _row(self, group: str, step: DrainStep, report: DrainReport | None) -> DrainRow:
        messages = [o.message for o in step.blocked or step.obstacles]
        text = "; ".join(messages[:5]) + (f"; and {len(messages) - 5} more" if len(messages) > 5 else "")
        if any(o.reason != COMPACTED for o in step.blocked):
            text = f"{text}. Ways on: {ways_on(report, group)}"
        if report is None:
            before = self.drains.get(group)
            return DrainRow(phase=step.phase if before is None else before.phase, message=text)
        ends = ends_at_ms(report)
        return DrainRow(
            phase=step.phase,
            message=text,
            blocked=bool(step.blocked),
            topics=report.unread_topics,
            consumerGroups=report.unread_consumer_groups,
            messages=report.unread_messages,
            oldest=None if report.oldest_ms is None else at(report.oldest_ms),
            undelivered=report.delayed + report.timers + report.half,
            retentionEnds=at(ends) if ends else None,
        )

    def _report_blocked(self, group: str, row: DrainRow) -> None:
        message = row.message if row.blocked else ""
        if message and self._reported.get(group) is None:
            self._event("Warning", "DrainBlocked", message, group)
        if message:
            self._reported[group] = message
        else:
            self._reported.pop(group, None)

    def _others(self, groups: WantedGroups) -> str:
        """Why the staying groups cannot take over now."""
        for group in groups.staying:
            watch, marks = self._leader(group), self._marks(group)
            if watch is None or watch.status is None or not watch.status.get("writable"):
                return f"group {group} takes no messages now"
            if marks is None or not marks.get("joined"):
                return f"group {group} does not have all topics yet"
            if marks.get("drain"):
                return f"group {group} is about to take messages again"
        return "" if groups.staying else "no other group is there"

    async def _homeless(self, group: str, groups: WantedGroups) -> dict[str, Missing]:
        """Return what each staying group must get before this one takes no messages. Raises MemberRefused."""
        staying = {g: await self._configs(g) for g in groups.staying}
        lacks = homeless(await self._configs(group), list(staying.values()))
        if not lacks:
            return {}
        managed = [t.name for t in lacks.topics if groups.managed is None or t.name in groups.managed]
        if managed:
            raise MemberRefused(f"topic {managed[0]} has no queues in another group yet")
        wanted_topics, wanted_groups = {t.name: t for t in lacks.topics}, {g.name: g for g in lacks.groups}
        return {g: missing_on(has, [GroupConfigs(wanted_topics, wanted_groups)]) for g, has in staying.items()}

    async def _remove(self, group: str) -> None:
        self.drains[group] = DrainRow(phase="Removing", message="its members stop")
        self.progress[group] = f"group {group} is removed"
        await self._end(group)
        if await self._platform.continue_removal(group):
            self._event("Normal", "GroupRemoved", "its members, addresses and leadership record are gone", group)
            self.drains.pop(group, None)
            self.progress.pop(group, None)

    # ---- members

    def _leader(self, group: str) -> MemberWatch | None:
        """Return the master, if it answers."""
        controller = self._controllers.get(group)
        watch = None if controller is None else controller.leader_watch
        return watch if watch is not None and watch.reach == "ok" else None

    def _marks(self, group: str) -> Mapping[str, Any] | None:
        """Return what the master says of its group; None: it does not answer, or does not lead yet."""
        watch = self._leader(group)
        status = None if watch is None else watch.status
        if status is None or status.get("role") != "Master":
            return None
        marks = status.get("marks")
        return marks if isinstance(marks, Mapping) else None

    async def _report(self, group: str) -> DrainReport | None:
        try:
            return DrainReport.model_validate(await self._call(group, "GET", "/v1/drain"))
        except (MemberRefused, ValidationError) as error:
            log.warning("the drain of group %s: %s", group, error)
            return None

    async def _configs(self, group: str) -> GroupConfigs:
        try:
            return GroupConfigs.from_json(await self._call(group, "GET", "/v1/configs"))
        except ValueError as error:
            raise MemberRefused(f"group {group}: {error}") from None

    async def _create(self, group: str, missing: Missing) -> None:
        for start in range(0, max(len(missing.topics), len(missing.groups)), MAX_CONFIGS):
            part = slice(start, start + MAX_CONFIGS)
            body = {
                "topics": [t.to_json() for t in missing.topics[part]],
                "groups": [g.to_json() for g in missing.groups[part]],
            }
            await self._call(group, "POST", "/v1/configs", body)

    async def _mark(self, group: str, **marks: object) -> None:
        await self._call(group, "PUT", "/v1/marks", marks)

    async def _call(self, group: str, method: str, path: str, body: object = None) -> Any:
        """Call the group's master. Raises MemberRefused."""
        watch = self._leader(group)
        if watch is None:
            raise MemberRefused(f"the master of group {group} does not answer")
        try:
            content = None if body is None else orjson.dumps(body)
            timeout = READ_S if method == "GET" else WRITE_S
            answer = await self._client.request(
                method, f"{watch.url}{path}", content=content, headers=JSON, timeout=timeout
            )
            if answer.status_code != 200:
                raise MemberRefused(f"{watch.name} answered {answer.status_code}: {answer.text[:300]}")
            if len(answer.content) > ANSWER_LIMIT:
                raise MemberRefused(f"{watch.name} answered with {len(answer.content)} bytes")
            return orjson.loads(answer.content)
        except (httpx.HTTPError, orjson.JSONDecodeError) as error:
            raise MemberRefused(f"{watch.name}: {error or repr(error)}") from None

    async def _guarded(self, group: str, work: Any) -> None:
        """Carry out a step. A step that a member refuses is repeated in the next pass."""
        about = f"step {group}"
        try:
            await work
        except MemberRefused as error:
            if self._reported.get(about) != str(error):
                log.warning("group %s: %s; it is tried again", group, error)
            self._reported[about] = str(error)
        else:
            self._reported.pop(about, None)

    def _event(self, kind: str, reason: str, message: str, group: str) -> None:
        self._on_event(Event("Warning" if kind == "Warning" else "Normal", reason, message, group))
