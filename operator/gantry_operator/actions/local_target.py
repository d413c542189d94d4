"""A cluster of this machine, for actions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.target import Clients, LoggedRemarks, Remarks, Where
from gantry_operator.platforms.local import control
from gantry_operator.platforms.local.folder import ClusterFolder

if TYPE_CHECKING:
    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.cluster.live_watch import Source
    from gantry_operator.cluster.network import Link
    from gantry_operator.cluster.volume import Volume

SWITCHOVER_S: Final = 20.0
ALIVE_S: Final = 1.0
STATUS_S: Final = 6.0
"""A status takes at most a second for each of four steps."""
NETWORK_S: Final = 8.0
"""A member has five seconds to answer."""


class LocalTarget:
    """A cluster of this machine."""

    def __init__(self, folder: ClusterFolder, remarks: Remarks | None = None) -> None:
        self.folder = folder
        self.remarks: Remarks = LoggedRemarks() if remarks is None else remarks

    @property
    def where(self) -> Where:
        return Where(folder=str(self.folder.root))

    async def resource(self) -> dict[str, Any]:
        # The supervisor has the modules and models that a status needs: to load them here takes longer than the answer.
        silent = None
        try:
            await control.ask(self.folder, "ping", ALIVE_S)
            return dict((await control.ask(self.folder, "status", STATUS_S))["resource"])
        except control.NoAnswer as error:
            silent = control.silence(self.folder, error)
        except (control.ControlError, KeyError):  # It is of another version.
            pass
        from gantry_operator.platforms.local.status import local_status

        return (await local_status(self.folder, silent)).to_object()

    async def preview(self, spec: BrokerCluster | None, image: str) -> dict[str, Any]:
        from gantry_operator.platforms.local.manifest import load_saved
        from gantry_operator.platforms.local.preview import preview

        if image:
            raise ActionError(
                "--image is for Kubernetes: processes of this machine run this installation", Cause.BAD_INPUT
            )
        try:
            return preview(self.folder, load_saved(self.folder) if spec is None else spec)
        except control.ControlError as error:
            raise ActionError(str(error), Cause.BAD_INPUT) from None

    async def switchover(self, group: str, to: str | None) -> str:
        from gantry_operator.platforms.local.switchover_once import switchover_once

        self._refuse_asleep()
        if control.supervisor_of(self.folder) is not None:
            return str((await self._ask("switchover", group=group, to=to))["done"])
        try:
            return await switchover_once(self.folder, group, to)
        except control.ControlError as error:
            raise ActionError(str(error)) from None

    async def restart(self, names: Sequence[str]) -> list[str]:
        self._refuse_asleep()
        return [str(name) for name in (await self._ask("restart", names=list(names)))["members"]]

    async def fence(self, member: str, on: bool) -> None:
        await self._ask("fence", member=member, on=on)

    def _refuse_asleep(self) -> None:
        """Raise ActionError when the cluster hibernates."""
        from gantry_operator.platforms.local.addresses import why_asleep
        from gantry_operator.platforms.local.manifest import load_saved

        asleep = why_asleep(load_saved(self.folder))
        if asleep:
            raise ActionError(asleep)

    async def _ask(self, op: str, timeout_s: float = SWITCHOVER_S, **arguments: Any) -> dict[str, Any]:
        """Ask the supervisor. Raises ActionError."""
        try:
            return await control.ask(self.folder, op, timeout_s, **arguments)
        except control.ControlError as error:
            raise ActionError(str(error)) from None

    async def volumes(self) -> list[Volume]:
        import asyncio

        from gantry_operator.platforms.local.volumes import volumes_of

        return await asyncio.to_thread(volumes_of, self.folder)

    async def delete_volume(self, volume: Volume) -> None:
        import asyncio

        from gantry_operator.platforms.local.volumes import VolumeInUse, delete_volume

        try:
            await asyncio.to_thread(delete_volume, self.folder, volume.name)
        except (VolumeInUse, OSError) as error:
            raise ActionError(f"{volume.name} is not deleted: {error}") from None

    async def demote(self, accept_loss: bool, timeout_s: float) -> str:
        answer = await self._ask("demote", timeout_s + SWITCHOVER_S, timeout=timeout_s, acceptLoss=accept_loss)
        return str(answer["token"])

    async def promote(self, token: str, accept_loss: bool, timeout_s: float) -> None:
        patience_s = timeout_s + SWITCHOVER_S
        await self._ask("promote", patience_s, timeout=timeout_s, acceptLoss=accept_loss, token=token)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[Clients]:
        from gantry_broker.client.credentials import Credentials
        from gantry_broker.remoting.tls import TlsOptions

        from gantry_operator.platforms.local.key_files import read_secret

        facts = await self._client_facts()
        if facts["why"]:
            raise ActionError(facts["why"])
        path, field = facts["key"]
        key = read_secret(Path(path)).get(field)
        credentials = Credentials(facts["accessKey"], key) if key else None
        tls = None if facts["tls"] is None else TlsOptions(*facts["tls"])
        yield Clients(facts["servers"], credentials, tls, facts["groups"])

    async def _client_facts(self) -> dict[str, Any]:
        try:
            return await control.ask(self.folder, "clients", ALIVE_S)
        except control.ControlError:  # None answers, or it is of another version.
            from gantry_operator.platforms.local.client_facts import client_facts

            return client_facts(self.folder)

    def live(self) -> AbstractAsyncContextManager[Source]:
        from gantry_operator.platforms.local.live import live_source

        return live_source(self.folder)

    async def network(self, limit_ms: float) -> list[Link]:
        from gantry_operator.cluster.network import Link

        try:
            links = (await control.ask(self.folder, "network", NETWORK_S, limitMs=limit_ms))["links"]
            return [Link(**link) for link in links]
        except (control.ControlError, KeyError, TypeError):  # None answers, or it is of another version.
            from gantry_operator.cluster.network_look import look

            return await look(self.live(), limit_ms)

    @asynccontextmanager
    async def users(self) -> AsyncIterator[Any]:
        from gantry_operator.actions.local_users import LocalUsers

        yield LocalUsers(self.folder, self._name())

    @asynccontextmanager
    async def resources(self) -> AsyncIterator[Any]:
        from gantry_operator.actions.local_resources import LocalResources

        yield LocalResources(self.folder, self._name(), self.remarks)

    def _name(self) -> str:
        """Return the cluster's name. Raises OSError, pydantic.ValidationError, where the manifest cannot be read."""
        if name := self.folder.saved_name():
            return name
        from gantry_operator.platforms.local.manifest import load_saved

        return load_saved(self.folder).name
