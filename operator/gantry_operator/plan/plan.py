"""The planned NameServers, groups and members, with their permanent names and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gantry_operator.api.cluster import BrokerCluster

FILLED: Final = 0
"""The number of the member whose disk `spec.bootstrap` fills in each group; the others follow it."""


@dataclass(frozen=True, slots=True)
class NameServerPlan:
    """One NameServer. `name` is that of its pod or process: demo-namesrv-0."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """One broker. `number` never changes within the group; `name` is that of its pod or process: demo-a-0."""

    name: str
    group: str
    number: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One broker group, in the order of its members' numbers."""

    name: str
    members: tuple[MemberPlan, ...]


@dataclass(frozen=True, slots=True)
class ProxyPlan:
    """One proxy of a local cluster: demo-proxy-0. In Kubernetes a Deployment names the pods."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All planned processes of one cluster."""

    cluster: str
    namespace: str
    name_servers: tuple[NameServerPlan, ...]
    groups: tuple[GroupPlan, ...]
    proxies: tuple[ProxyPlan, ...] = ()

    @property
    def members(self) -> tuple[MemberPlan, ...]:
        return tuple(m for g in self.groups for m in g.members)

    def group(self, name: str) -> GroupPlan:
        """Return a group by name. Raises KeyError with the existing names."""
        for g in self.groups:
            if g.name == name:
                return g
        raise KeyError(f"{self.cluster} has no group {name!r}, but {', '.join(g.name for g in self.groups)}")

    def switchover_target(self, group: str, member: str | None) -> int | None:
        """Return the number of the member that a switchover asks for; None: it asks for no certain one.

        Raises ValueError with the reason why the group cannot hand over to it.
        """
        try:
            members = self.group(group).members
            if len(members) == 1:
                raise ValueError(
                    f"group {group} has one member, {members[0].name}: there is no other one to hand over to"
                )
            return None if member is None else self.member_of(group, member).number
        except KeyError as error:
            raise ValueError(str(error.args[0])) from None

    def member(self, name: str) -> MemberPlan:
        """Return a member by full name (demo-a-0) or without the cluster's name (a-0). Raises KeyError."""
        for m in self.members:
            if name in (m.name, f"{m.group}-{m.number}"):
                return m
        raise KeyError(f"{self.cluster} has no member {name!r}, but {', '.join(m.name for m in self.members)}")

    def member_of(self, group: str, name: str) -> MemberPlan:
        """Like `member`, limited to this group. Raises KeyError."""
        member = self.member(name)
        if member.group != self.group(group).name:
            raise KeyError(f"{member.name} is a member of group {member.group}, not of {group}")
        return member

    def members_named(self, names: Sequence[str]) -> list[MemberPlan]:
        """Return the members with these names, and those of groups with these names; none: all. Raises KeyError."""
        groups = {g.name: list(g.members) for g in self.groups}
        members = [m for name in names for m in groups.get(name) or [self.member(name)]]
        return list(dict.fromkeys(members)) if names else list(self.members)


def member_name(cluster: str, group: str, number: int) -> str:
    return f"{cluster}-{group}-{number}"


def plan(cluster: BrokerCluster) -> Plan:
    """Return the plan of a valid cluster. Equal specs give equal plans, and growth changes no name."""
    name = cluster.name
    return Plan(
        cluster=name,
        namespace=cluster.namespace,
        name_servers=tuple(NameServerPlan(f"{name}-namesrv-{i}", i) for i in range(cluster.spec.nameServers.replicas)),
        groups=tuple(
            GroupPlan(g.name, tuple(MemberPlan(member_name(name, g.name, i), g.name, i) for i in range(g.members)))
            for g in cluster.spec.brokerGroups
        ),
        proxies=tuple(
            ProxyPlan(f"{name}-proxy-{i}", i)
            for i in range(0 if cluster.spec.proxy is None else cluster.spec.proxy.replicas)
        ),
    )
