"""A cluster on Kubernetes, for actions."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gantry_operator.actions.errors import ActionError, Cause, api_server_error
from gantry_operator.actions.target import Clients, LoggedRemarks, Remarks, Where

if TYPE_CHECKING:
    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.cluster.live_watch import Source
    from gantry_operator.cluster.network import Link
    from gantry_operator.cluster.volume import Volume


class KubernetesTarget:
    """A cluster on Kubernetes. Every call opens its own connection to the API: a command makes one or two."""

    def __init__(
        self, context: str | None, namespace: str | None, name: str | None, remarks: Remarks | None = None
    ) -> None:
        self._wanted = (context, namespace, name)
        self.remarks: Remarks = LoggedRemarks() if remarks is None else remarks

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        try:
            target = importlib.import_module("gantry_operator.platforms.kubernetes.targets.target")
        except ModuleNotFoundError as error:
            raise ActionError(
                f"Kubernetes needs more than a plain install ({error.name} is missing): "
                "pip install 'gantry-mq[operator]'"
            ) from None
        try:
            async with target.KubeTarget(*self._wanted) as opened:
                yield opened
        except target.NoCluster as error:
            raise ActionError(str(error), Cause.NO_CLUSTER) from None
        except (target.TargetError, target.UserError) as error:
            raise ActionError(str(error)) from None
        except (target.ApiError, target.ApiUnavailable) as error:
            raise api_server_error(error) from None

    @property
    def where(self) -> Where:
        return Where(context=self._wanted[0] or "")

    async def resource(self) -> dict[str, Any]:
        async with self._open() as target:
            resource: dict[str, Any] = await target.resource()
            events = await target.events()
        return resource | {"status": resource.get("status", {}) | {"events": events}}

    async def preview(self, spec: BrokerCluster | None, image: str) -> dict[str, Any]:
        async with self._open() as target:
            effect: dict[str, Any] = await target.preview(spec, image)
            return effect

    async def switchover(self, group: str, to: str | None) -> str:
        async with self._open() as target:
            return str(await target.switchover(group, to))

    async def restart(self, names: Sequence[str]) -> list[str]:
        async with self._open() as target:
            restarted: list[str] = await target.restart(names)
            return restarted

    async def fence(self, member: str, on: bool) -> None:
        async with self._open() as target:
            await target.fence(member, on)

    async def volumes(self) -> list[Volume]:
        async with self._open() as target:
            return [claimed.volume for claimed in await target.volumes()]

    async def delete_volume(self, volume: Volume) -> None:
        async with self._open() as target:
            await target.delete_volume(volume.name)

    async def demote(self, accept_loss: bool, timeout_s: float) -> str:
        async with self._open() as target:
            return str(await target.ask_site("demote", "", accept_loss=accept_loss, timeout_s=timeout_s))

    async def migrate(self, request: str, timeout_s: float, say: Callable[[str], None]) -> str:
        """Ask the operator for a step of a migration. Return what it says. Raises ActionError."""
        async with self._open() as target:
            return str(await target.ask_migration(request, timeout_s, say))

    async def promote(self, token: str, accept_loss: bool, timeout_s: float) -> None:
        async with self._open() as target:
            await target.ask_site("promote", token, accept_loss=accept_loss, timeout_s=timeout_s)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[Clients]:
        async with self._open() as target:
            yield Clients(
                await target.name_servers(), await target.super_user(), await target.client_tls(), target.group_names
            )

    async def network(self, limit_ms: float) -> list[Link]:
        from gantry_operator.cluster.network_look import look

        return await look(self.live(), limit_ms)

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
