"""The edge of `cutover_steps`: asks the source and the copies, changes its settings, and finishes the copies."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gantry_broker.broker.migration.ha import is_controlled
from gantry_broker.broker.migration.source import guarded
from gantry_broker.client import Admin, ClientError, Credentials
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import FORMER_MASTER_ID, ORDER_TOPIC_NAMESPACE
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.fields import BodyError
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions

from gantry_operator.cluster.copies import ask_copy
from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration import cutover_steps, source_config
from gantry_operator.migration.cutover_steps import Action, Carry, Limits, Phase, Record, Refused, Seen, SetSource

ANSWER_S: Final = 3.0
FINISH_S: Final = 30.0
POLL_S: Final = 0.2
PAUSED_POLL_S: Final = 0.05
"""The same while writes pause, and after an action that was not done."""
PAUSED: Final = frozenset({Phase.WRITES_OFF, Phase.FINISHING})
ACCEPTS_FROM: Final = "startAcceptSendRequestTimeStamp"
NEVER_MS: Final = 4_102_444_800_000
"""The year 2100 in Unix ms."""
FAILURES: Final = (RemotingError, ClientError, BodyError, OSError, asyncio.TimeoutError)


Routes = Mapping[str, Mapping[str, Mapping[int, str]] | None]
"""By NameServer: addresses by brokerName and brokerId; None: it does not answer."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a group of the new cluster and its source are."""

    name: str
    broker: str
    """RocketMQ's name of the group."""
    address: str
    """What the group registers as its master's address."""
    members: Callable[[], Sequence[str]]
    """Gives the URLs of the members' HTTP interfaces now; the first one follows the source."""
    lead_to_copy: Callable[[], Awaitable[None]] | None = None
    """Lets `address` lead to the first member; None: it does so by itself. Raises Refused."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The source."""

    name_servers: tuple[str, ...]
    credentials: Credentials | None = None
    tls: TlsOptions | ssl.SSLContext | None = None
    kv_namespaces: tuple[str, ...] = ()
    """Of key-value configuration that is copied beside the order configuration."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What a source's settings say of its clients. None: not known."""

    permission: int | None
    broker_id: int | None
    refuses: bool | None


def settings_in(config: Mapping[str, str]) -> SourceSettings:
    """Read a broker's configuration. What is no number that it can be is not known."""
    accepts_from = whole_number(config.get(ACCEPTS_FROM, ""))
    return SourceSettings(
        whole_number(config.get("brokerPermission", ""), 0, cutover_steps.MOST_PERMISSION),
        whole_number(config.get("brokerId", "")),
        None if accepts_from is None else accepts_from > time.time() * 1000,
    )


def config_of(permission: int, broker_id: int, *, refuses: bool) -> dict[str, str]:
    """Return the part of a broker's configuration that `settings_in` reads."""
    return {
        ACCEPTS_FROM: str(NEVER_MS if refuses else 0),
        "brokerId": str(broker_id),
        "brokerPermission": str(permission),
    }


class Edge:
    """Looks and acts for a migration. Use it as an async context manager."""

    def __init__(self, source: SourcePlace, groups: Sequence[GroupPlace], http: httpx.AsyncClient) -> None:
        self.place = source
        self.groups = {group.name: group for group in groups}
        self._admins = {
            server: Admin(server, timeout=ANSWER_S, credentials=source.credentials, tls=source.tls)
            for server in source.name_servers
        }
        self.http = http
        self._ends: dict[str, tuple[int, float]] = {}
        self._keepers: set[str] = set()
        """NameServers that keep a master's place against one of a lower state version."""
        self._addresses: dict[str, str] = {}
        """By group: the source's address, as it was known last."""
        self._recorded: dict[str, tuple[str, ...]] = {}
        """By group: the addresses of the source's brokers in the record."""

    async def __aenter__(self) -> Edge:
        for admin in self._admins.values():
            await admin.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for admin in self._admins.values():
            await admin.__aexit__(*exc)

    async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
        """See all groups. `brokers`: ask the source's other brokers, too."""
        routes = await self.routes()
        states = await asyncio.gather(*(self._see(group, routes, brokers) for group in self.groups.values()))
        return dict(zip(self.groups, states, strict=True))

    async def copy_status(self, group: GroupPlace) -> dict[str, Any] | None:
        """Return the progress of a copy; None: no member of the group says that it follows."""
        return await ask_copy(self.http, group.members())

    async def _routes(self, server: str) -> Mapping[str, Mapping[int, str]] | None:
        """Addresses by brokerId and brokerName; None: the NameServer does not answer."""
        try:
            info = await self._admins[server].cluster_info()
        except FAILURES:
            return None
        if info.brokers and all(broker.compares_versions for broker in info.brokers.values()):
            self._keepers.add(server)
        else:
            self._keepers.discard(server)
        return {name: broker.addresses for name, broker in info.brokers.items()}

    def remember(self, groups: Mapping[str, cutover_steps.Group]) -> None:
        """Know the addresses of a record, for sources that are in no route."""
        for name, group in groups.items():
            self._recorded[name] = tuple(address for address in (group.source, *group.brokers) if address)

    async def locate(self, routes: Routes) -> None:
        """Look for sources that are in no route, since NameServers of 5.x refuse a master that was started again, or
        that a controller has chosen since the cutover.
        """
        for group in self.groups.values():
            if self._listed(group, routes) is None:
                recorded = self._recorded.get(group.name, ())
                leads = await asyncio.gather(*map(self._is_master, recorded))
                if True in leads:
                    self._addresses[group.name] = recorded[leads.index(True)]

    async def _is_master(self, address: str) -> bool:
        try:
            return (await self.settings_of(address)).get("brokerRole", "").endswith("_MASTER")
        except FAILURES:
            return False

    @staticmethod
    def _listed(group: GroupPlace, routes: Routes) -> str | None:
        """Return the address of a group's source in the routes."""
        for table in routes.values():
            addresses = (table or {}).get(group.broker, {})
            for number in (FORMER_MASTER_ID, cutover_steps.MASTER):
                address = addresses.get(number)
                if address is not None and address != group.address and len(address) <= cutover_steps.MOST_ADDRESS:
                    return address
        return None

    def source_of(self, group: GroupPlace, routes: Routes) -> str | None:
        """Return the address of a group's source; None: no NameServer knows one."""
        if (address := self._listed(group, routes)) is not None:
            self._addresses[group.name] = address
            return address
        masters = [(table or {}).get(group.broker, {}).get(cutover_steps.MASTER) for table in routes.values()]
        # Gantry has its place, and it has not registered under its other number yet: it does so every 30 s.
        return self._addresses.get(group.name) if group.address in masters else None

    async def settings_of(self, address: str) -> dict[str, str]:
        """Return the settings of a source's broker. Raises as `FAILURES`."""
        return await next(iter(self._admins.values())).broker_config(address)

    async def refuse_without_keys(self) -> None:
        """Raise Refused where the source takes clients without keys, which a cluster with the default authentication
        would refuse. Raises as `FAILURES`.
        """
        routes = await self.routes()
        for group in self.groups.values():
            address = self.source_of(group, routes)
            if address is not None and not guarded(await self.settings_of(address)):
                raise Refused(
                    f"group {group.name}: the source takes clients without keys, and Gantry would refuse them: write "
                    "spec.security.authentication: Disabled, or Enabled when all clients have keys"
                )

    async def copy_kv(self, target: Admin) -> int:
        """Give the new cluster's NameServers the order configuration of the source's, and the namespaces that the spec
        names; return how many entries differed. Raises Refused for too much, and as `FAILURES`.
        """
        tables: dict[str, dict[str, str]] = {}
        silent: BaseException | None = None
        answered = False
        for admin in reversed(self._admins.values()):  # The first one counts where they differ.
            try:
                for namespace in (ORDER_TOPIC_NAMESPACE, *self.place.kv_namespaces):
                    tables.setdefault(namespace, {}).update(await admin.kv_table(namespace))
                answered = True
            except FAILURES as error:
                silent = error
        if silent is not None and not answered:
            raise silent
        return await source_config.bring(tables, target, whole=silent is None)

    async def routes(self) -> Routes:
        """Return what each NameServer of the source says; None: it does not answer."""
        return dict(zip(self._admins, await asyncio.gather(*map(self._routes, self._admins)), strict=True))

    async def _see(self, group: GroupPlace, routes: Routes, brokers: bool) -> Seen:
        status = await self.copy_status(group)
        if isinstance(followed := (status or {}).get("source"), dict) and isinstance(followed.get("address"), str):
            self._addresses.setdefault(group.name, followed["address"][: plausible.MAX_TEXT])
        source = self.source_of(group, routes)
        state, problem, copy_end = None, "", None
        can_carry, carries = False, None
        if status is not None:
            can_carry, carries = status.get("canCarry") is True, status.get("carries") is True
            try:
                state, problem, copy_end, connected = _copy_of(status)
            except (KeyError, TypeError, ValueError) as error:
                problem, connected = f"the copy's status is not understood: {type(error).__name__} {error}", True
            if state == "following" and not connected:
                state, problem = None, problem or "the copy is not connected to the source"
        elif await self._leads(group):
            state = "leads"
        else:
            problem = "no member answers"
        source_end, settings, controlled = None, SourceSettings(None, None, None), False
        if source is not None:
            admin = next(iter(self._admins.values()))
            try:
                config = await admin.broker_config(source)
                settings, controlled = settings_in(config), is_controlled(config)
                runtime = await admin.runtime_info(source)
                source_end = whole_number(runtime.get("commitLogMaxOffset", ""))
            except FAILURES as error:
                problem = problem or f"the source {source} does not answer: {error}"
        elif state != "leads":
            problem = problem or f"the source's NameServers know no master of {group.broker}"
        others = self.others(group, routes, None if controlled else source)
        routed = [
            table.get(group.broker, {}).get(cutover_steps.MASTER) for table in routes.values() if table is not None
        ]
        return Seen(
            state=state,
            problem=problem,
            copy_end=copy_end,
            source_end=source_end,
            quiet=self._quiet(group.name, source_end),
            permission=settings.permission,
            broker_id=settings.broker_id,
            refuses=settings.refuses,
            brokers=others,
            settings=await self.settings_at(others) if brokers else {},
            source=source or "",
            can_carry=can_carry,
            carries=carries,
            routed=all(address == group.address for address in routed) if routed else None,
            listed=group.address in routed,
            keeps_place=all(server in self._keepers for server in routes),
            silent=tuple(server for server, table in routes.items() if table is None),
        )

    @staticmethod
    def others(group: GroupPlace, routes: Routes, source: str | None) -> dict[str, int]:
        """Return the brokers of the source's group in the routes, brokerId by address, without `source` and Gantry's.
        The number of a cutover counts where NameServers differ.
        """
        numbers: dict[str, int] = {}
        for table in routes.values():
            for number, address in (table or {}).get(group.broker, {}).items():
                if address in (source, group.address) or len(address) > cutover_steps.MOST_ADDRESS:
                    continue
                if 0 <= number < 2 * FORMER_MASTER_ID and (
                    address in numbers or len(numbers) < cutover_steps.MOST_BROKERS
                ):
                    numbers[address] = max(numbers.get(address, 0), number)
        return numbers

    async def settings_at(self, addresses: Iterable[str]) -> dict[str, SourceSettings | None]:
        """Return the settings of brokers; None: it does not answer."""
        addresses = tuple(addresses)
        settings = await asyncio.gather(*(self._settings_or_none(address) for address in addresses))
        return dict(zip(addresses, settings, strict=True))

    async def _settings_or_none(self, address: str) -> SourceSettings | None:
        try:
            return settings_in(await self.settings_of(address))
        except FAILURES:
            return None

    def _quiet(self, group: str, end: int | None) -> float:
        now = time.monotonic()
        if end is None:
            self._ends.pop(group, None)
            return 0.0
        last = self._ends.get(group)
        if last is None or last[0] != end:
            self._ends[group] = (end, now)
            return 0.0
        return now - last[1]

    async def _leads(self, group: GroupPlace) -> bool:
        for url in group.members():
            try:
                answer = await self.http.get(f"{url}/v1/status", timeout=ANSWER_S)
                status = answer.json() if answer.status_code == 200 else {}
            except (httpx.HTTPError, ValueError):
                continue
            if isinstance(status, dict) and status.get("role") == "Master" and status.get("writable"):
                return True
        return False

    async def act(self, action: Action) -> None:
        """Do it. Raises Refused when it was not done."""
        group = self.groups[action.group]
        if isinstance(action, SetSource):
            await self._set(group, action)
            return
        page: str
        body: dict[str, object]
        if isinstance(action, Carry):
            page, body = "carry", {"on": action.on}
            if action.on and group.lead_to_copy is not None:
                await group.lead_to_copy()
        else:
            page, body = "finish", {"end": action.end}
        urls = group.members()
        if not urls:
            raise Refused(f"group {group.name}: no member runs")
        try:
            answer = await self.http.post(f"{urls[0]}/migration/{page}", json=body, timeout=FINISH_S)
        except httpx.HTTPError as error:
            raise Refused(f"group {group.name}: its member does not answer: {error!r}") from error
        if answer.status_code != 200:
            raise Refused(f"group {group.name}: {answer.text[:300]}")

    async def _set(self, group: GroupPlace, action: SetSource) -> None:
        """Change the broker names of the master and its slaves: they would be read from under the numbers of Gantry's
        members.
        """
        routes = await self.routes()
        source = self.source_of(group, routes)
        if source is None:
            raise Refused(f"group {group.name}: the source's NameServers know no master of {group.broker}")
        admin = next(iter(self._admins.values()))
        changes = config_of(action.permission, action.broker_id, refuses=action.refuses)
        settings = {source: changes}
        for address, number in self.others(group, routes, source).items():
            if own := number % FORMER_MASTER_ID:
                number = own + (FORMER_MASTER_ID if action.broker_id == FORMER_MASTER_ID else 0)
                # A controller may make it the master: it refuses sends, too.
                settings[address] = changes | {"brokerId": str(number)}
        # A slave that does not answer costs no other its settings.
        done = await asyncio.gather(
            *(admin.update_broker_config(address, to) for address, to in settings.items()), return_exceptions=True
        )
        for (address, to), result in zip(settings.items(), done, strict=True):
            if isinstance(result, FAILURES):
                raise Refused(f"group {group.name}: {address} did not take {to}: {result}") from result
            if isinstance(result, BaseException):
                raise result
        if action.refuses:
            self._ends.pop(group.name, None)  # Only from now on is a log that stays as it is a sign that all arrived.


def _copy_of(status: Mapping[str, Any]) -> tuple[str, str, int | None, bool]:
    """State, problem, end and connection of a copy. Raises KeyError, TypeError, ValueError for what is no status."""
    end = status["end"]
    return (
        str(status["state"])[: plausible.MAX_TEXT],
        str(status["problem"])[: plausible.MAX_TEXT],
        None if end is None else plausible.offset("end", end),
        status["connected"] is True,
    )


async def drive(
    edge: Edge,
    record: Record,
    limits: Limits,
    save: Callable[[Record], Awaitable[None]],
    *,
    timeout: float,
    say: Callable[[Phase, str], None] = lambda phase, waits: None,
) -> Record:
    """Make steps until the cutover is done, or the abort. `save`: before the actions of a record. A cutover that is not
    done after `timeout` seconds goes back where it can: the source is not left without its writes. Raises Refused after
    it went back, or after so many seconds more, and what `save` raises.
    """
    ends = time.monotonic() + timeout
    problem = gave_up = ""
    while True:
        seen = await edge.look(brokers=record.phase is Phase.ABORTING)
        now = time.time()
        step = cutover_steps.step(record, seen, limits, now)
        moved = step.record.phase is not record.phase
        if step.record != record:
            await save(step.record)
            record = step.record
        say(record.phase, step.waits)
        if record.phase is Phase.FOLLOWING and gave_up:
            raise Refused(f"{gave_up}. The source has its settings back, and the copies follow it")
        if record.phase in (Phase.DONE, Phase.FOLLOWING):
            return record
        done = await asyncio.gather(*(edge.act(action) for action in step.actions), return_exceptions=True)
        refused = False
        for result in done:
            if isinstance(result, Refused):
                problem, refused = str(result), True
            elif isinstance(result, BaseException):
                raise result
        if time.monotonic() > ends:
            late = f"not done after {timeout:g} s, in phase {record.phase.value}: {problem or step.waits}"
            if record.phase not in cutover_steps.RETURNING:
                raise Refused(f"{gave_up}; going back: {late}" if gave_up else late)
            record, gave_up, ends = cutover_steps.abort(record, now), late, time.monotonic() + timeout
            problem = ""
            await save(record)
            continue
        # A phase that has begun, and the end of writes, are looked at without a wait.
        at_once = moved or (step.actions and not refused and record.phase is Phase.WRITES_OFF)
        if not at_once:
            await asyncio.sleep(PAUSED_POLL_S if step.actions or record.phase in PAUSED else POLL_S)
