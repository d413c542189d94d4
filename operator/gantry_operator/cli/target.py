"""The cluster of a command: a local one, or one on Kubernetes."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from gantry_operator.cli.errors import CliError, Exit, api_server
from gantry_operator.cli.next_steps import Where
from gantry_operator.cli.options import on_kubernetes
from gantry_operator.cli.output import say_incomplete
from gantry_operator.platforms.local.folder import ClusterFolder, ClusterNotFound, find_folder

if TYPE_CHECKING:
    import ssl

    from gantry_broker.client import Admin, Credentials, DeadLetters
    from gantry_broker.remoting.tls import TlsOptions

    from gantry_operator.api import BrokerCluster
    from gantry_operator.cluster.live_watch import Source

T = TypeVar("T")

SWITCHOVER_S = 20.0


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


class Target(Protocol):
    """The operations that commands need."""

    @property
    def where(self) -> Where:
        """For the commands in a hint."""
        ...

    async def resource(self) -> dict[str, Any]:
        """The BrokerCluster with its status; `status.events` has recent events."""
        ...

    async def preview(self, wanted: BrokerCluster | None, image: str) -> dict[str, Any]:
        """What a spec (None: the present one) would change. Raises CliError if it is refused."""
        ...

    async def switchover(self, group: str, to: str | None) -> str:
        """Hand over. Returns a sentence about the result. Raises CliError."""
        ...

    async def demote(self, accept_loss: bool, timeout_s: float) -> str:
        """End writes, archive the last byte. Returns the token for the other site. Raises CliError."""
        ...

    async def promote(self, token: str, accept_loss: bool, timeout_s: float) -> None:
        """Make a standby the cluster. Raises CliError."""
        ...

    def clients(self) -> AbstractAsyncContextManager[Clients]:
        """What clients of this process need, while the context is open."""
        ...

    def live(self) -> AbstractAsyncContextManager[Source]:
        """Where a live view has its figures from, while the context is open."""
        ...

    def resources(self) -> AbstractAsyncContextManager[Any]:
        """Topics and groups as resources, as `cli.local_resources.LocalResources` and
        `platforms.kubernetes.target_topics.TargetTopics`.
        """
        ...

    def users(self) -> AbstractAsyncContextManager[Any]:
        """The cluster's users, as `cli.users.LocalUsers` and `platforms.kubernetes.target_users.TargetUsers`."""
        ...


class LocalTarget:
    """A cluster of this machine."""

    def __init__(self, folder: ClusterFolder) -> None:
        self.folder = folder

    @property
    def where(self) -> Where:
        return Where(folder=str(self.folder.root))

    async def resource(self) -> dict[str, Any]:
        from gantry_operator.platforms.local.status import local_status

        return (await local_status(self.folder)).to_object()

    async def preview(self, wanted: BrokerCluster | None, image: str) -> dict[str, Any]:
        from gantry_operator.platforms.local.manifest import load_saved
        from gantry_operator.platforms.local.preview import ControlError, preview

        if image:
            raise CliError("--image is for Kubernetes: processes of this machine run this installation", Exit.USAGE)
        try:
            return preview(self.folder, load_saved(self.folder) if wanted is None else wanted)
        except ControlError as error:
            raise CliError(str(error), Exit.USAGE) from None

    async def switchover(self, group: str, to: str | None) -> str:
        from gantry_operator.platforms.local import control
        from gantry_operator.platforms.local.manifest import load_saved
        from gantry_operator.platforms.local.status import why_asleep
        from gantry_operator.platforms.local.switchover_once import switchover_once

        asleep = why_asleep(load_saved(self.folder))
        if asleep:
            raise CliError(asleep)
        try:
            if control.supervisor_of(self.folder) is None:
                return await switchover_once(self.folder, group, to)
            answer = await control.ask(self.folder, "switchover", SWITCHOVER_S, group=group, to=to)
        except control.ControlError as error:
            raise CliError(str(error)) from None
        return str(answer["done"])

    async def demote(self, accept_loss: bool, timeout_s: float) -> str:
        answer = await self._of_sites("demote", timeout_s, acceptLoss=accept_loss)
        return str(answer["token"])

    async def promote(self, token: str, accept_loss: bool, timeout_s: float) -> None:
        await self._of_sites("promote", timeout_s, acceptLoss=accept_loss, token=token)

    async def _of_sites(self, op: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        from gantry_operator.platforms.local import control

        try:
            return await control.ask(self.folder, op, timeout_s + SWITCHOVER_S, timeout=timeout_s, **arguments)
        except control.ControlError as error:
            raise CliError(str(error)) from None

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[Clients]:
        from gantry_operator.platforms.local.certificates import client_options
        from gantry_operator.platforms.local.leaving_groups import running_cluster
        from gantry_operator.platforms.local.manifest import load_saved
        from gantry_operator.platforms.local.status import name_server_addresses, why_nothing_runs
        from gantry_operator.platforms.local.users import super_user

        saved = load_saved(self.folder)
        servers = name_server_addresses(self.folder)
        why = why_nothing_runs(self.folder, saved)
        if why:
            raise CliError(why)
        tls = client_options(saved, self.folder)
        names = running_cluster(self.folder, saved).group_names
        yield Clients(servers, super_user(self.folder), tls, names)

    def live(self) -> AbstractAsyncContextManager[Source]:
        from gantry_operator.platforms.local.status import live_source

        return live_source(self.folder)

    @asynccontextmanager
    async def users(self) -> AsyncIterator[Any]:
        from gantry_operator.cli.local_users import LocalUsers
        from gantry_operator.platforms.local.manifest import load_saved

        yield LocalUsers(self.folder, load_saved(self.folder).name)

    @asynccontextmanager
    async def resources(self) -> AsyncIterator[Any]:
        from gantry_operator.cli.local_resources import LocalResources
        from gantry_operator.platforms.local.manifest import load_saved

        yield LocalResources(self.folder, load_saved(self.folder).name)


class KubernetesTarget:
    """A cluster on Kubernetes. Every call opens its own connection to the API: a command makes one or two."""

    def __init__(self, context: str | None, namespace: str | None, name: str | None) -> None:
        self._wanted = (context, namespace, name)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        try:
            target = importlib.import_module("gantry_operator.platforms.kubernetes.targets.target")
        except ModuleNotFoundError as error:
            raise CliError(
                f"Kubernetes needs more than a plain install ({error.name} is missing): "
                "pip install 'gantry-mq[operator]'"
            ) from None
        try:
            async with target.KubeTarget(*self._wanted) as opened:
                yield opened
        except target.NoCluster as error:
            raise CliError(str(error), Exit.NO_CLUSTER) from None
        except (target.TargetError, target.UserError) as error:
            raise CliError(str(error)) from None
        except (target.ApiError, target.ApiUnavailable) as error:
            raise api_server(error) from None

    @property
    def where(self) -> Where:
        return Where(context=self._wanted[0] or "")

    async def resource(self) -> dict[str, Any]:
        async with self._open() as target:
            resource: dict[str, Any] = await target.resource()
            events = await target.events()
        return resource | {"status": resource.get("status", {}) | {"events": events}}

    async def preview(self, wanted: BrokerCluster | None, image: str) -> dict[str, Any]:
        async with self._open() as target:
            found: dict[str, Any] = await target.preview(wanted, image)
            return found

    async def switchover(self, group: str, to: str | None) -> str:
        async with self._open() as target:
            return str(await target.switchover(group, to))

    async def demote(self, accept_loss: bool, timeout_s: float) -> str:
        async with self._open() as target:
            return str(await target.ask_site("demote", "", accept_loss=accept_loss, timeout_s=timeout_s))

    async def promote(self, token: str, accept_loss: bool, timeout_s: float) -> None:
        async with self._open() as target:
            await target.ask_site("promote", token, accept_loss=accept_loss, timeout_s=timeout_s)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[Clients]:
        async with self._open() as target:
            yield Clients(
                await target.name_servers(), await target.super_user(), await target.client_tls(), target.group_names
            )

    @asynccontextmanager
    async def live(self) -> AsyncIterator[Source]:
        async with self._open() as target, target.live_source() as source:
            yield source

    @asynccontextmanager
    async def users(self) -> AsyncIterator[Any]:
        async with self._open() as target:
            yield target.users

    @asynccontextmanager
    async def resources(self) -> AsyncIterator[Any]:
        async with self._open() as target:
            yield target.topics


def find_target(directory: Path | None, name: str | None, context: str | None, namespace: str | None) -> Target:
    """Local, unless a context or a namespace is given or the command runs as a plug-in of kubectl. Raises CliError."""
    if on_kubernetes(context, namespace):
        if directory is not None:
            raise CliError(
                "--dir is for local clusters; leave it out with --context, --namespace or kubectl", Exit.USAGE
            )
        return KubernetesTarget(context, namespace, name)
    return LocalTarget(find_local(directory, name))


def find_local(directory: Path | None, name: str | None) -> ClusterFolder:
    """Find the cluster. Raises CliError."""
    try:
        return find_folder(directory, name)
    except ClusterNotFound as error:
        raise CliError(str(error), Exit.NO_CLUSTER) from None


@asynccontextmanager
async def admin_of(target: Target, *, whole: bool = False) -> AsyncIterator[Admin]:
    """For questions about all of a cluster. Broker groups without a master that answers are left out, and said.

    `whole`: raise CliError then, for changes that concern every group. Raises CannotTell if no group answers.
    """
    from gantry_broker.client import Admin

    async with target.clients() as c, Admin(c.name_servers, credentials=c.credentials, tls=c.tls) as admin:
        await _say_silent(admin, c.groups, whole)
        yield admin


@asynccontextmanager
async def dead_letters_of(target: Target, timeout: float = 10.0) -> AsyncIterator[DeadLetters]:
    """The same for dead letters. `timeout`: see `DeadLetters`."""
    from gantry_broker.client import DeadLetters

    async with (
        target.clients() as c,
        DeadLetters(c.name_servers, timeout=timeout, credentials=c.credentials, tls=c.tls) as dead,
    ):
        await _say_silent(dead.admin, c.groups, False)
        yield dead


async def _say_silent(admin: Admin, groups: Mapping[str, str], whole: bool) -> None:
    from gantry_operator.cluster.reach import leave_out_silent

    silent = await leave_out_silent(admin, groups)
    if silent and whole:
        raise CliError(f"{'; '.join(silent)}. Nothing was changed")
    for said in silent:
        say_incomplete(said)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command in an event loop. Turns client errors into one line. Raises CliError."""
    with closing(work):  # Ctrl-C may come before it has begun.
        return _run_async(work)


def _run_async(work: Coroutine[Any, Any, T]) -> T:
    from gantry_broker.client import ClientError
    from gantry_broker.protocol.bodies import BodyError
    from gantry_broker.remoting.errors import RemotingError
    from pydantic import ValidationError

    from gantry_operator.cluster.failures import in_words
    from gantry_operator.cluster.reach import CannotTell
    from gantry_operator.platforms.local.ports import NoPort

    try:
        return asyncio.run(work)
    except (NoPort, CannotTell) as error:
        raise CliError(str(error)) from None
    except (ClientError, RemotingError, BodyError) as error:
        raise CliError(in_words(error)) from None
    except ValidationError as error:
        raise CliError(f"the cluster's folder holds a manifest of another version: {error}") from None
    except OSError as error:
        raise CliError(str(error)) from None
