"""What a live view of a local cluster reads from its folder, without the parts that only a status needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import ValidationError

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import LastFailover
from gantry_operator.cluster.live import LiveCluster, MemberPlace
from gantry_operator.cluster.live_watch import Source
from gantry_operator.cluster.member_http import make_client
from gantry_operator.plan.plan import MemberPlan, Plan, plan
from gantry_operator.platforms.local.certificates import read_authorities, scheme
from gantry_operator.platforms.local.control import Silence, silence_of
from gantry_operator.platforms.local.events import last_events
from gantry_operator.platforms.local.folder import ClusterFolder, read_json
from gantry_operator.platforms.local.leaving_groups import running_cluster
from gantry_operator.platforms.local.leaving_members import leaving_members, with_leaving
from gantry_operator.platforms.local.manifest import load_saved
from gantry_operator.platforms.local.ports import NoPort, Ports

EVENTS_SHOWN = 20
FACTS_S = 0.5
"""Seconds between two readings of the folder for a live view."""
ANSWER_S = 1.0
"""Seconds for an answer of the supervisor."""


def last_failover(folder: ClusterFolder) -> LastFailover | None:
    """Return the last change of a master; None: there was none, or its file is damaged."""
    saved = read_json(folder.last_failover)
    try:
        return None if saved is None else LastFailover.model_validate(saved)
    except ValidationError:
        return None


def http_urls(folder: ClusterFolder) -> list[str]:
    """Return the members' HTTP addresses, each with its group before it. Raises OSError, pydantic.ValidationError,
    NoPort.
    """
    ports = Ports.load(folder.ports)
    cluster = running_cluster(folder, load_saved(folder))
    planned: Plan = plan(cluster)
    return [f"{m.group}={scheme(cluster)}://127.0.0.1:{ports[f'{m.name}/http']}" for m in planned.members]


@asynccontextmanager
async def live_source(folder: ClusterFolder) -> AsyncIterator[Source]:
    """Where a live view of this cluster has its figures from."""

    async def facts() -> LiveCluster:
        return live_facts(folder, await silence_of(folder, ANSWER_S))

    async with make_client(folder.token.read, lambda: read_authorities(folder)) as client:
        yield Source(client, facts, FACTS_S, (OSError, ValueError, NoPort))


def live_facts(folder: ClusterFolder, silent: Silence | None) -> LiveCluster:
    """Return what the folder says of the cluster. Raises OSError, pydantic.ValidationError.

    `silent`: why no supervisor answers.
    """
    cluster = running_cluster(folder, load_saved(folder))
    planned = plan(cluster)
    planned = with_leaving(planned, leaving_members(folder, planned).values())
    ports = Ports.load(folder.ports)
    last = last_failover(folder)
    return LiveCluster(
        name=cluster.name,
        mode=cluster.spec.mode,
        phase="Hibernated" if cluster.spec.hibernate else "",
        automatic=cluster.spec.failover.automatic,
        members=tuple(MemberPlace(m.name, m.group, m.number, member_url(cluster, ports, m)) for m in planned.members),
        last_failover=None if last is None else last.model_dump(by_alias=True),
        events=last_events(folder.events, EVENTS_SHOWN),
        supervised=silent is None,
        supervisor=None if silent is None else silent.to_json(),
    )


def member_url(cluster: BrokerCluster, ports: Ports, m: MemberPlan) -> str:
    """Of its HTTP interface. A member without a port yet has port 0, which answers no one."""
    return f"{scheme(cluster)}://127.0.0.1:{ports.taken.get(f'{m.name}/http', 0)}"
