"""The cluster of an action: what it needs of a cluster, whether processes or pods are behind it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gantry_operator.actions.errors import ActionError

if TYPE_CHECKING:
    import ssl

    from gantry_broker.client import Admin, Credentials, DeadLetters
    from gantry_broker.remoting.tls import TlsOptions

    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.cluster.live_watch import Source
    from gantry_operator.cluster.network import Link
    from gantry_operator.cluster.volume import Volume

log = logging.getLogger(__name__)


class Clients(NamedTuple):
    """For Producer, Consumer, Admin and the like."""

    name_servers: str
    """Addresses that this process can reach."""
    credentials: Credentials | None
    """Of the cluster's super user; None: they are not there, or this user may not read them."""
    tls: TlsOptions | ssl.SSLContext | None
    """None: clear text."""
    groups: Mapping[str, str] = MappingProxyType({})
    """The broker groups that the cluster has: the names in the spec by RocketMQ's brokerName."""


class Remarks(Protocol):
    """What an action has to say beside its result."""

    def note(self, text: str) -> None:
        """Give the person a remark."""
        ...

    def incomplete(self, text: str) -> None:
        """Say that a part of the answer is missing, and why."""
        ...


class LoggedRemarks:
    """Remarks for the log of a process whose pages show what is missing by themselves."""

    def note(self, text: str) -> None:
        log.info("%s", text)

    def incomplete(self, text: str) -> None:
        log.info("incomplete: %s", text)


class Target(Protocol):
    """The operations that actions need."""

    @property
    def remarks(self) -> Remarks: ...

    @property
    def where(self) -> Where:
        """For the commands in a hint."""
        ...

    async def resource(self) -> dict[str, Any]:
        """Return the BrokerCluster with its status; `status.events` has recent events."""
        ...

    async def preview(self, spec: BrokerCluster | None, image: str) -> dict[str, Any]:
        """Return what a spec (None: the present one) would change. Raises ActionError if it is refused."""
        ...

    async def switchover(self, group: str, to: str | None) -> str:
        """Hand over. Returns a sentence about the result. Raises ActionError."""
        ...

    async def restart(self, names: Sequence[str]) -> list[str]:
        """Ask for the restart of members, and of those of groups; none named: of all. Returns their names.

        Slaves are replaced first, masters hand over. Raises ActionError for a name that is not there.
        """
        ...

    async def fence(self, member: str, on: bool) -> None:
        """Stop the broker of a member while its pod or process stays, or start it again. `actions.fencing` checks
        before whether the group can do without. Raises ActionError for a name that is not there.
        """
        ...

    async def volumes(self) -> list[Volume]:
        """Return the disks of all members, also of those that are gone. Raises ActionError."""
        ...

    async def delete_volume(self, volume: Volume) -> None:
        """Delete a disk that is still as it was listed. Raises ActionError."""
        ...

    async def demote(self, accept_loss: bool, timeout_s: float) -> str:
        """End writes, archive the last byte. Returns the token for the other site. Raises ActionError."""
        ...

    async def promote(self, token: str, accept_loss: bool, timeout_s: float) -> None:
        """Make a standby the cluster. Raises ActionError."""
        ...

    def clients(self) -> AbstractAsyncContextManager[Clients]:
        """Return what clients of this process need, while the context is open."""
        ...

    def live(self) -> AbstractAsyncContextManager[Source]:
        """Where a live view has its figures from, while the context is open."""
        ...

    async def network(self, limit_ms: float) -> list[Link]:
        """Return what the members say of the network between them. A longer round trip is slow."""
        ...

    def resources(self) -> AbstractAsyncContextManager[Any]:
        """Topics and groups as resources, as `actions.local_resources.LocalResources` and
        `platforms.kubernetes.targets.topics.TargetTopics`.
        """
        ...

    def users(self) -> AbstractAsyncContextManager[Any]:
        """Users, as `actions.local_users.LocalUsers` and `platforms.kubernetes.targets.users.TargetUsers`."""
        ...


@asynccontextmanager
async def admin_of(target: Target, *, whole: bool = False) -> AsyncIterator[Admin]:
    """For questions about all of a cluster. Broker groups without a master that answers are left out, and said.

    `whole`: raise ActionError then, for changes that concern every group. Raises CannotTell if no group answers.
    """
    from gantry_broker.client import Admin

    async with target.clients() as c, Admin(c.name_servers, credentials=c.credentials, tls=c.tls) as admin:
        await _leave_out_silent(admin, c.groups, target.remarks, whole)
        yield admin


@asynccontextmanager
async def dead_letters_of(target: Target, timeout: float = 10.0) -> AsyncIterator[DeadLetters]:
    """Yield the same for dead letters. `timeout`: see `DeadLetters`."""
    from gantry_broker.client import DeadLetters

    async with (
        target.clients() as c,
        DeadLetters(c.name_servers, timeout=timeout, credentials=c.credentials, tls=c.tls) as dead,
    ):
        await _leave_out_silent(dead.admin, c.groups, target.remarks, False)
        yield dead


async def _leave_out_silent(admin: Admin, groups: Mapping[str, str], remarks: Remarks, whole: bool) -> None:
    from gantry_operator.cluster.reach import leave_out_silent

    silent = await leave_out_silent(admin, groups)
    if silent and whole:
        raise ActionError(f"{'; '.join(silent)}. Nothing was changed")
    for reason in silent:
        remarks.incomplete(reason)


class Where(NamedTuple):
    """Where the cluster is."""

    folder: str = ""
    """Of a cluster on this machine; empty: it is on Kubernetes."""
    context: str = ""
    """Of the kubeconfig; empty: the current one."""
