"""The status of a local cluster, from its folder and its processes. Works without a supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_broker.remoting.client import RemotingClient
from pydantic import ValidationError

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import Addresses, BrokerClusterStatus, DrainRow, NameServerRow, ProxyRow, ProxyStatus
from gantry_operator.cluster.member_http import httpx, make_client
from gantry_operator.cluster.member_messages import BadStatus, report_from
from gantry_operator.cluster.member_watch import what_it_does
from gantry_operator.cluster.observed import ObservedMember, ObservedState
from gantry_operator.cluster.probe import name_server_knows, not_writable, route_and_send
from gantry_operator.cluster.second_site import first_state, members_sites
from gantry_operator.cluster.status import status_of
from gantry_operator.cluster.timestamps import utc
from gantry_operator.failover.raft import keeping_up, leader_of
from gantry_operator.plan.plan import MemberPlan, Plan, plan
from gantry_operator.platforms.local.certificates import client_options, read_authorities, scheme
from gantry_operator.platforms.local.certificates import rows as rows_of_certificates
from gantry_operator.platforms.local.control import ControlError, NoAnswer, Silence, ask, silence
from gantry_operator.platforms.local.events import last_events
from gantry_operator.platforms.local.folder import ClusterFolder, read_json
from gantry_operator.platforms.local.leaving_groups import running_cluster
from gantry_operator.platforms.local.leaving_members import leaving_members, with_leaving
from gantry_operator.platforms.local.live import EVENTS_SHOWN, last_failover, member_url
from gantry_operator.platforms.local.manifest import load_saved
from gantry_operator.platforms.local.ports import Ports, http, on_loopback
from gantry_operator.platforms.local.process import load_record
from gantry_operator.platforms.local.proxies import why_no_proxy
from gantry_operator.platforms.local.site import load_site
from gantry_operator.platforms.local.topics import table_rows
from gantry_operator.platforms.local.users import authentication, super_user
from gantry_operator.registry.base import Entry, RegistryUnavailable
from gantry_operator.registry.file import FileRegistry, write_whole

ANSWER_S = 1.0
NOT_YET = 503
"""HTTP status code of a member that is no broker yet: it fills its disk, or cannot read its token."""


@dataclass(frozen=True, slots=True)
class LocalStatus:
    """A cluster as seen now."""

    cluster: BrokerCluster
    status: BrokerClusterStatus
    events: list[dict[str, Any]]
    silence: Silence | None
    """Why no supervisor answers."""

    def to_object(self) -> dict[str, Any]:
        """Return the resource in the form of the Kubernetes API, with its events."""
        out = self.cluster.model_dump(mode="json", exclude={"status"}, exclude_none=True)
        out["status"] = self.status.to_object() | {"events": self.events, "supervised": self.silence is None}
        if self.silence is not None:
            out["status"]["supervisor"] = self.silence.to_json()
        return out


async def local_status(folder: ClusterFolder, silent: Silence | None = None) -> LocalStatus:
    """Ask all processes at once, with at most a second for each of four steps. Raises OSError,
    pydantic.ValidationError, NoPort.

    `silent`: why the supervisor does not answer, if that is known: it is not asked again.
    """
    saved = load_saved(folder)
    cluster = running_cluster(folder, saved)
    planned = plan(cluster)
    planned = with_leaving(planned, leaving_members(folder, planned).values())
    ports = Ports.load(folder.ports)
    leaderships, problems = _leaderships(folder, planned)
    doing: dict[str, Any] = {"groups": {}, "rolling": ""}
    if silent is None:
        doing, silent = await _doing(folder)
    problems += [f"group {g}: {state['problem']}" for g, state in doing["groups"].items() if state["problem"]]
    problems += [f"group {g} keeps its version: {why}" for g, why in sorted((doing.get("refused") or {}).items())]
    staying = [g.name for g in saved.spec.brokerGroups if g.name in {p.name for p in planned.groups}]
    heard = await _hear(folder, cluster, planned, ports, leaderships, staying, doing)
    rows = _name_server_rows(folder, planned, heard.servers, heard.by_server)
    running = [name for name in (*(m.name for m in planned.members), *(r.name for r in rows)) if _pid(folder, name)]
    progress = [doing["rolling"]] if doing["rolling"] else []
    if cluster.spec.hibernate and running:
        progress = [f"hibernation: {', '.join(running)} still stop"]
    seen = ObservedState(
        members=heard.members,
        name_servers=rows,
        available=heard.available,
        problems=problems,
        progress=progress,
        hibernated=cluster.spec.hibernate and not running,
        drains=_drains(doing, saved, planned),
        addresses=Addresses(nameServers=";".join(r.address for r in rows)),
        last_failover=last_failover(folder),
        proxy=heard.proxy,
        certificates=rows_of_certificates(folder, cluster, planned),
        site=load_site(folder) or first_state(members_sites(heard.members), follows=_follows(cluster)),
        site_waits=doing.get("siteWaits", ""),
        authentication=authentication(cluster),
        loopback=on_loopback(),
        tables=table_rows(folder),
        silent="" if silent is None or silent.pid is None else silent.message,
    )
    status = status_of(cluster, _before(folder), seen, utc(), 1)
    for row in status.members:
        row.pid = _pid(folder, row.name)
        row.address = row.address or f"127.0.0.1:{ports.taken.get(row.name, 0)}"
    _remember(folder, status)
    return LocalStatus(saved, status, last_events(folder.events, EVENTS_SHOWN), silent)


@dataclass(frozen=True, slots=True)
class _Heard:
    """What the processes of a cluster answer."""

    members: list[ObservedMember]
    servers: list[int]
    """Ports of the NameServers."""
    by_server: list[list[str | None]]
    """By NameServer and group: why it does not know the group; None: it does."""
    available: dict[str, str | None]
    """By group: why clients cannot use it; None: they can."""
    proxy: ProxyStatus | None


async def _hear(
    folder: ClusterFolder,
    cluster: BrokerCluster,
    planned: Plan,
    ports: Ports,
    leaderships: dict[str, Entry | None],
    staying: Collection[str],
    doing: dict[str, Any],
) -> _Heard:
    """Ask the processes, in steps of a second at most."""
    key = super_user(folder)
    remoting_client = RemotingClient(
        connect_timeout=ANSWER_S,
        sign=None if key is None else key.sign,
        tls=client_options(cluster, folder),
    )
    http_client = make_client(folder.token.read, lambda: read_authorities(folder))
    async with http_client as client, remoting_client as remoting:
        statuses = await asyncio.gather(*(_ask(client, member_url(cluster, ports, m)) for m in planned.members))
        servers = [ports.taken.get(s.name, 0) for s in planned.name_servers]
        registered = await asyncio.gather(
            *(
                _why_unknown(
                    remoting, f"127.0.0.1:{port}", cluster.broker_name(g.name), ports.address(f"group/{g.name}")
                )
                for port in servers
                for g in planned.groups
            )
        )
        if cluster.spec.mode == "Raft":
            pairs = list(zip(planned.members, statuses, strict=True))
            leaderships = {g.name: _elected([s for m, (s, _) in pairs if m.group == g.name]) for g in planned.groups}
        proxies = await _proxies(client, folder, planned, ports, scheme(cluster))
        members = [_seen(m, leaderships[m.group], *answer) for m, answer in zip(planned.members, statuses, strict=True)]
        by_server = [registered[i : i + len(planned.groups)] for i in range(0, len(registered), len(planned.groups))]
        why_not = await asyncio.gather(
            *(
                _why_not(
                    remoting,
                    ports.address(f"group/{g.name}"),
                    g.name,
                    [answers[i] for answers in by_server],
                    members,
                    doing["groups"].get(g.name, {}).get("waits"),
                )
                for i, g in enumerate(planned.groups)
                if g.name in staying
            )
        )
    available = dict(zip((g.name for g in planned.groups if g.name in staying), why_not, strict=True))
    return _Heard(members, servers, by_server, available, proxies)


def _leaderships(folder: ClusterFolder, planned: Plan) -> tuple[dict[str, Entry | None], list[str]]:
    """Return the record of each group, and why some cannot be read."""
    registry = FileRegistry(folder.registry)
    leaderships: dict[str, Entry | None] = {}
    problems = []
    for group in planned.groups:
        try:
            leaderships[group.name] = registry.read_now(group.name)
        except RegistryUnavailable as error:
            leaderships[group.name] = None
            problems.append(str(error))
    return leaderships, problems


def _name_server_rows(
    folder: ClusterFolder, planned: Plan, ports: Sequence[int], answers: Sequence[Sequence[str | None]]
) -> list[NameServerRow]:
    """`answers`: of each NameServer about each group, why it does not know it."""
    return [
        NameServerRow(
            name=server.name,
            address=f"127.0.0.1:{port}",
            ready=not any("does not answer" in (why or "") for why in of_groups),
            pid=_pid(folder, server.name),
        )
        for server, port, of_groups in zip(planned.name_servers, ports, answers, strict=True)
    ]


def _follows(cluster: BrokerCluster) -> bool:
    return cluster.spec.bootstrap is not None and cluster.spec.bootstrap.follow is not None


async def _proxies(
    client: httpx.AsyncClient, folder: ClusterFolder, planned: Plan, ports: Ports, form: str
) -> ProxyStatus | None:
    """`form`: the scheme of their HTTP interfaces."""
    if not planned.proxies:
        return None
    names = [p.name for p in planned.proxies]
    urls = [f"{form}://127.0.0.1:{ports.taken.get(http(n), 0)}" for n in names]
    why = await asyncio.gather(*(why_no_proxy(client, url) for url in urls))
    rows = [
        ProxyRow(
            name=name,
            ready=not reason,
            address=f"127.0.0.1:{ports.taken.get(name, 0)}",
            pid=_pid(folder, name),
            reason=reason,
        )
        for name, reason in zip(names, why, strict=True)
    ]
    return ProxyStatus(
        replicas=len(rows), readyReplicas=sum(r.ready for r in rows), address=rows[0].address, members=rows
    )


async def _doing(folder: ClusterFolder) -> tuple[dict[str, Any], Silence | None]:
    """Actions and problems of the supervisor; empty if none answers, and then why."""
    nothing: dict[str, Any] = {"groups": {}, "rolling": ""}
    try:
        return await ask(folder, "info", ANSWER_S), None
    except NoAnswer as error:
        return nothing, silence(folder, error)
    except ControlError:
        return nothing, None


def _drains(doing: Mapping[str, Any], saved: BrokerCluster, running: Plan) -> dict[str, DrainRow]:
    """Return the drains as the supervisor sees them."""
    staying = {g.name for g in saved.spec.brokerGroups}
    rows = {g.name: DrainRow(phase="Waiting", message="") for g in running.groups if g.name not in staying}
    for name, row in (doing.get("drains") or {}).items():
        with suppress(ValidationError):
            rows[name] = DrainRow.model_validate(row)
    return rows


async def _ask(client: httpx.AsyncClient, url: str) -> tuple[dict[str, Any] | None, str]:
    """Return the member's status, or the reason why there is none."""
    try:
        answer = await client.get(f"{url}/v1/status", timeout=ANSWER_S)
        answer.raise_for_status()
        status = dict(answer.json())
        report_from(status)
        return status, ""
    except BadStatus as error:
        return None, str(error)
    except httpx.ConnectError:
        return None, "its process does not run"
    except httpx.HTTPStatusError as error:
        reason = what_it_does(error.response.content) if error.response.status_code == NOT_YET else ""
        return None, reason or f"it refuses to answer ({error.response.status_code}): {error.response.text[:200]}"
    except (httpx.HTTPError, ValueError):
        return None, "it does not answer"


def _elected(statuses: list[dict[str, Any] | None]) -> Entry | None:
    """Mode Raft: the leader's report, in the form of a registry entry."""
    leader = leader_of([report_from(s) for s in statuses if s is not None])
    return (
        None if leader is None else Entry(LeadershipRecord(leader.epoch, leader.version, leader.id, keeping_up(leader)))
    )


def _seen(m: MemberPlan, entry: Entry | None, status: dict[str, Any] | None, problem: str) -> ObservedMember:
    id = None if status is None else MemberId(m.number, status["member"]["incarnation"])
    in_sync = None if entry is None else id in entry.leadership.in_sync
    if id is None and entry is not None and m.number in {one.member for one in entry.leadership.in_sync}:
        in_sync = None  # The record names its disk, or a former one of this member: only the member knows.
    return ObservedMember(
        name=m.name,
        group=m.group,
        number=m.number,
        status=status,
        pod_ready=status is not None,
        in_sync=in_sync,
        master=entry is not None and id is not None and id == entry.leadership.master,
        problem=problem,
    )


async def _why_unknown(client: RemotingClient, server: str, broker_name: str, address: str) -> str | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await name_server_knows(client, server, broker_name, address)
    except TimeoutError:
        return f"NameServer {server} does not answer in time"


async def _why_not(
    client: RemotingClient, address: str, group: str, registered: list[str | None], members: list[ObservedMember],
    waits: dict[str, str] | None,
) -> str | None:  # fmt: skip
    """None: a NameServer returns the master's address, and a message sent there was read back; else the reason.

    `waits`: why the supervisor waits in this group, if it does.
    """
    masters = [m for m in members if m.group == group and m.status is not None and m.status["role"] == "Master"]
    master = max(masters, key=lambda m: bool((m.status or {}).get("writable")), default=None)
    blocked = not_writable(
        "" if master is not None or waits is None else waits["reason"],
        None if master is None else master.name,
        None if master is None else master.status,
    )
    if blocked is not None:
        return blocked
    try:
        async with asyncio.timeout(ANSWER_S):
            return await route_and_send(client, registered, address)
    except TimeoutError:
        return f"a message sent to {address} was not answered and read back within {ANSWER_S:.0f} s"


def _pid(folder: ClusterFolder, name: str) -> int | None:
    record = load_record(folder.process(name))
    return None if record is None else record.pid


def _before(folder: ClusterFolder) -> BrokerClusterStatus:
    stored = read_json(folder.conditions)
    try:
        return BrokerClusterStatus.model_validate(stored or {})
    except ValidationError:
        return BrokerClusterStatus()


def _remember(folder: ClusterFolder, status: BrokerClusterStatus) -> None:
    """Keep the times of the conditions. The status is shown even if the folder cannot be written."""
    # Of members only what is shown while they do not run.
    last = [m for m in status.members if m.maxOffset is not None]
    kept = status.model_copy(update={"members": last, "nameServerMembers": []})
    try:
        write_whole(folder.conditions, kept.model_dump_json(by_alias=True))
    except OSError:
        return
