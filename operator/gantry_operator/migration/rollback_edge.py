"""The edge of `rollback_steps`: copies to the former brokers, asks both sides, and acts."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.broker.metadata.topics import is_system_topic
from gantry_broker.broker.migration.ha import is_controlled
from gantry_broker.client import Admin, Credentials, MessageQueue
from gantry_broker.client.session import Session
from gantry_broker.client.subscription import subscription
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import MASTER_ID, Perm, RequestCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, TopicHeader, UpdateOffsetHeader
from gantry_broker.protocol.offset_tables import topic_stats_from_json
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.tasks import end_tasks

from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration import cutover_steps, rollback_steps
from gantry_operator.migration.copied import QueueCopy
from gantry_operator.migration.copy_state import CopyState
from gantry_operator.migration.copying import GROUP, Rounds
from gantry_operator.migration.cutover_edge import ANSWER_S, FAILURES, POLL_S, Edge, GroupPlace, Routes, settings_in
from gantry_operator.migration.cutover_steps import Refused, SetSource
from gantry_operator.migration.rollback_steps import Limits, MoveOffsets, Phase, Record, Seen, SetGantry

ROUND_S: Final = 0.1
"""Seconds between two rounds of the copy."""


class AsideSession(Session):
    """A client of brokers that stand aside in the routes: it knows their addresses, and no others."""

    def __init__(
        self,
        name_servers: str,
        masters: Mapping[str, str],
        credentials: Credentials | None,
        tls: TlsOptions | ssl.SSLContext | None,
    ) -> None:
        super().__init__(name_servers, credentials=credentials, tls=tls)
        self._aside = {name: {MASTER_ID: address} for name, address in masters.items()}

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        return self._aside.get(broker, {}).get(broker_id)

    def addresses(self, broker: str) -> dict[int, str]:
        return self._aside.get(broker, {})


class BackCopy(Rounds):
    """The copy of all topics of Gantry's groups to the former brokers, from the cutover on."""

    def __init__(
        self,
        gantry: Admin,
        former: Admin,
        masters: Mapping[str, str],
        ends: Mapping[str, int],
        state: CopyState | Path,
    ) -> None:
        """`masters`: addresses of the former brokers by brokerName. `ends`: of their logs, at the cutover."""
        super().__init__(gantry, former, (), state)
        self._masters = masters
        self._ends = ends
        self.readable = True
        """Whether Gantry gives messages. Without them only what was copied is known, and that is enough for offsets."""

    async def _check_last(self, queue: QueueCopy, topic: str) -> None:
        if self.readable:
            await super()._check_last(queue, topic)

    async def look_for_topics(self) -> None:
        """Give the former brokers the topics that they lack, and copy their queues, too."""
        masters = await self._source.masters()
        for broker, former in self._masters.items():
            await self._make_former_groups(masters[broker], former)  # RocketMQ takes no retry of an unknown group.
            there = (await self._target.topic_config(former)).topics
            for name, topic in (await self._source.topic_config(masters[broker])).topics.items():
                if is_system_topic(name) or name in (broker,) or not topic.perm & Perm.READ:
                    continue
                if "+" in name:  # Retries of POP at Gantry, %RETRY%GROUP+TOPIC: RocketMQ creates no such topic.
                    continue
                if not _holds(there.get(name), topic):
                    await self._target.create_topic_at(former, topic)
                copied = {(queue.broker, queue.queue) for queue in self.queues.get(name, ())}
                numbers = [n for n in range(max(topic.read_queues, topic.write_queues)) if (broker, n) not in copied]
                if numbers:
                    await self._add(name, broker, masters[broker], former, numbers)

    async def _make_former_groups(self, ours: str, former: str) -> None:
        there = await self._target.groups(former)
        for name, group in (await self._source.groups(ours)).items():
            if name not in there:
                frame = Frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.dumps(group.to_json()))
                await self._target.session.call_checked(former, frame, f"creation of group {name}")

    async def _add(self, topic: str, broker: str, ours: str, former: str, numbers: list[int]) -> None:
        here, there = await _bounds(self._source, ours, topic), await _bounds(self._target, former, topic)
        for number in numbers:
            low, high = here.get(number, (0, 0))
            copy = QueueCopy(broker, number, broker, number, there.get(number, (0, 0))[1])
            copy.next = await self._first_since(MessageQueue(topic, broker, number), low, high, self._ends[broker])
            self.queues.setdefault(topic, []).append(copy)
        self._changed = True

    async def _first_since(self, queue: MessageQueue, low: int, high: int, end: int) -> int:
        """Return the first queue offset whose record is at or behind an offset of the log, by bisection."""
        puller = self._source.puller(GROUP)
        while low < high:
            middle = (low + high) // 2
            got = await puller.pull(queue, middle, subscription(queue.topic), count=1, suspend_ms=0)
            if got.messages and got.messages[0].queue_offset < high:
                at = got.messages[0]
                if at.record.phys_offset >= end:
                    high = middle
                else:
                    low = at.queue_offset + 1
            else:
                high = middle
        return low

    async def move_offsets(self, broker: str, ours: str) -> None:
        """Give the former broker the offsets of all groups, never back. Raises errors of clients."""
        former = self._masters[broker]
        await self._make_former_groups(ours, former)
        offsets, there = await _offsets(self._source, ours), await _offsets(self._target, former)
        for key, queues in offsets.items():
            topic, _, group = key.rpartition("@")
            copies = {queue.queue: queue for queue in self.queues.get(topic, ()) if queue.broker == broker}
            for number, offset in queues.items():
                copy = copies.get(number)
                if copy is None:
                    continue
                # Below the first copy both logs are the same, and so are their offsets.
                first = copy.runs[0][0] if copy.runs else copy.next
                new = copy.translate(offset) if offset >= first else min(offset, copy.to_start)
                if there.get(key, {}).get(number, -1) < new:
                    header = UpdateOffsetHeader(group, topic, number, Long(new))
                    await self._target.ask(former, RequestCode.UPDATE_CONSUMER_OFFSET, header)


def _holds(there: TopicConfig | None, topic: TopicConfig) -> bool:
    return (
        there is not None
        and there.read_queues >= topic.read_queues
        and there.write_queues >= topic.write_queues
        and there.perm == topic.perm
    )


async def _bounds(admin: Admin, address: str, topic: str) -> dict[int, tuple[int, int]]:
    body = await admin.ask(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=topic))
    stats = topic_stats_from_json(body)
    return {queue.queue_id: (max(o.min_offset, 0), max(o.max_offset, 0)) for queue, o in stats.items()}


async def _offsets(admin: Admin, address: str) -> dict[str, dict[int, int]]:
    tables = Tables()
    try:
        snapshots.read_offsets(tables, fastjson.loads(await admin.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)))
    except (BodyError, fastjson.JsonError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BodyError(f"the offsets of {address} cannot be read: {error}") from error
    return tables.offsets


class RollbackEdge:
    """Looks and acts for a rollback."""

    def __init__(self, edge: Edge, gantry: Admin, before: Mapping[str, cutover_steps.Group]) -> None:
        """`gantry`: a client of the new cluster's own NameServers. `before`: what the cutover recorded."""
        edge.remember(before)
        self._before = before
        self._edge, self._gantry, self._http = edge, gantry, edge.http
        self.copy: BackCopy | None = None
        self._moved: set[str] = set()

    async def _routes(self) -> Routes:
        routes = await self._edge.routes()
        await self._edge.locate(routes)
        return routes

    async def masters(self) -> dict[str, str]:
        """Return the former brokers' addresses by brokerName. Raises Refused."""
        routes = await self._routes()
        addresses = {}
        for group in self._edge.groups.values():
            address = self._edge.source_of(group, routes)
            if address is None:
                raise Refused(f"group {group.name}: the former NameServers know no former broker: start it again")
            addresses[group.broker] = address
        return addresses

    @asynccontextmanager
    async def copying(self, state: CopyState | Path, phase: Phase) -> AsyncIterator[None]:
        """Have a copy to the former brokers meanwhile, which stand aside and take messages. `state`: what was copied,
        or its file. Raises Refused, errors of clients and of the state.
        """
        masters, place = await self.masters(), self._edge.place
        # The copy reads at them what it has sent before.
        for action in rollback_steps.opened(self._edge.groups, await self.look()):
            await self.act(action)
        session = AsideSession(";".join(place.name_servers), masters, place.credentials, place.tls)
        async with Admin(session) as former:
            ends = {self._edge.groups[name].broker: group.end or 0 for name, group in self._before.items()}
            copy = BackCopy(self._gantry, former, masters, ends, state)
            copy.readable = phase not in rollback_steps.UNREADABLE
            await copy.begin()
            self.copy = copy
            yield

    async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
        """See all groups. `brokers`: ask the former groups' other brokers, too."""
        routes = await self._routes()
        return {name: await self._see(group, routes, brokers) for name, group in self._edge.groups.items()}

    async def _see(self, group: GroupPlace, routes: Routes, brokers: bool) -> Seen:
        problem, source = "", self._edge.source_of(group, routes)
        seen = Seen(
            missing=None if self.copy is None else self.copy.missing,
            whole=self.copy is not None and self.copy.missing is not None,
            moved=group.name in self._moved,
        )
        routed = [table.get(group.broker, {}) for table in routes.values() if table is not None]
        if routed:
            seen = replace(
                seen,
                silent=None in routes.values(),
                listed=any(table.get(MASTER_ID) == group.address for table in routed),
                returned=source is not None and all(table.get(MASTER_ID) == source for table in routed),
            )
        if self.copy is not None and self.copy.quiet_since is not None:
            seen = replace(seen, quiet=time.monotonic() - self.copy.quiet_since)
        controlled = False
        if source is None:
            problem = "the former NameServers know no former broker: start it again"
        else:
            try:
                config = await self._edge.settings_of(source)
                settings, controlled = settings_in(config), is_controlled(config)
                seen = replace(
                    seen, permission=settings.permission, broker_id=settings.broker_id, refuses=settings.refuses
                )
            except FAILURES as error:
                problem = f"the former broker {source} does not answer: {error}"
        others = self._edge.others(group, routes, None if controlled else source)
        seen = replace(seen, brokers=others, settings=await self._edge.settings_at(others) if brokers else {})
        try:
            ours = await self._gantry.broker_config(await self._leader(group))
            seen = replace(seen, gantry=whole_number(ours.get("brokerPermission", "")))
        except FAILURES as error:
            problem = problem or f"Gantry's leader does not answer: {error}"
        status = await self._status(group)
        if status is not None:
            seen = replace(seen, released=bool((status.get("marks") or {}).get("released")))
        return replace(seen, problem=problem)

    async def _leader(self, group: GroupPlace) -> str:
        return (await self._gantry.masters()).get(group.broker, group.address)

    async def _leading_url(self, group: GroupPlace) -> tuple[str, dict[str, Any]] | None:
        for url in group.members():
            with contextlib.suppress(httpx.HTTPError, ValueError):
                answer = await self._http.get(f"{url}/v1/status", timeout=ANSWER_S)
                status = answer.json() if answer.status_code == 200 else {}
                if isinstance(status, dict) and status.get("role") == "Master":
                    return url, status
        return None

    async def _status(self, group: GroupPlace) -> dict[str, Any] | None:
        url_and_status = await self._leading_url(group)
        return None if url_and_status is None else url_and_status[1]

    async def act(self, action: rollback_steps.Action) -> None:
        """Do it. Raises Refused when it was not done."""
        group = self._edge.groups[action.group]
        if isinstance(action, SetSource):
            await self._edge.act(action)
            return
        try:
            if isinstance(action, SetGantry):
                changes = {"brokerPermission": str(action.permission)}
                await self._gantry.update_broker_config(await self._leader(group), changes)
                if self.copy is not None:
                    self.copy.begin_anew()
            elif isinstance(action, MoveOffsets):
                assert self.copy is not None
                await self.copy.move_offsets(group.broker, await self._leader(group))
                self._moved.add(group.name)
            else:
                await self._release(group, action.on)
        except FAILURES as error:
            raise Refused(f"group {group.name}: {type(action).__name__}: {error}") from error

    async def _release(self, group: GroupPlace, on: bool) -> None:
        url_and_status = await self._leading_url(group)
        if url_and_status is None:
            raise Refused(f"group {group.name}: no member leads")
        try:
            answer = await self._http.put(f"{url_and_status[0]}/v1/marks", json={"released": on}, timeout=ANSWER_S)
        except httpx.HTTPError as error:
            raise Refused(f"group {group.name}: {error!r}") from error
        if answer.status_code != 200:
            raise Refused(f"group {group.name}: {answer.text[:300]}")


async def drive(
    edge: RollbackEdge,
    record: Record,
    limits: Limits,
    save: Callable[[Record], Awaitable[None]],
    *,
    timeout: float,
    say: Callable[[Phase, str], None] = lambda phase, waits: None,
    warn: Callable[[str], None] = lambda problem: None,
) -> Record:
    """Make steps until the rollback is done, or its abort. After `timeout` seconds without progress it goes back where
    clients wait. `warn`: hears each time that the copy breaks off; it is begun again. Raises Refused after that, or
    after so many seconds more, and what `save` raises.
    """
    ends, problem, copied, gave_up = time.monotonic() + timeout, "", -1, ""
    copying: asyncio.Task[None] | None = None
    try:
        while True:
            seen = await edge.look(brokers=record.phase is Phase.RETURNING)
            step = rollback_steps.step(record, seen, limits, time.time())
            if step.record != record:
                await save(step.record)
                record, ends = step.record, time.monotonic() + timeout
            say(record.phase, step.waits)
            if record.phase is Phase.NONE and gave_up:
                raise Refused(f"{gave_up}. Gantry has its clients, and the source stands aside")
            if record.phase in (Phase.DONE, Phase.NONE):
                return record
            if copying is not None and copying.done():
                error = copying.exception()
                problem, copying = f"the copy broke off: {error}", None
                warn(problem)
            if step.copies and not step.actions and copying is None and edge.copy is not None:
                copying = asyncio.create_task(_copy(edge.copy))
            elif not step.copies and copying is not None:
                await end_tasks(copying)
                copying = None
            for result in await asyncio.gather(*(edge.act(action) for action in step.actions), return_exceptions=True):
                if isinstance(result, Refused):
                    problem = str(result)
                elif isinstance(result, BaseException):
                    raise result
            now_copied = edge.copy.sent() if edge.copy is not None else 0
            if now_copied != copied:
                copied, ends = now_copied, time.monotonic() + timeout
            if time.monotonic() > ends:
                late = f"no progress for {timeout:g} s, in phase {record.phase.value}: {problem or step.waits}"
                if record.phase not in rollback_steps.PAUSED:
                    raise Refused(f"{gave_up}; going back: {late}" if gave_up else late)
                record, gave_up, problem = rollback_steps.abort(record, time.time()), late, ""
                ends = time.monotonic() + timeout
                await save(record)
                continue
            if not step.actions:
                await asyncio.sleep(POLL_S)
    finally:
        await end_tasks(copying)


async def _copy(copy: BackCopy) -> None:
    while True:
        await copy.round()
        await asyncio.sleep(ROUND_S)
