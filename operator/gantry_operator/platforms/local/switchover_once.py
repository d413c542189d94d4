"""A switchover while no `gantry up` runs: the command supervises the failover until the switchover is done."""

from __future__ import annotations

import asyncio

from gantry_broker.tasks import end_tasks

from gantry_operator.cluster.group_controller import LOOK_S, GroupController, SwitchoverFailed
from gantry_operator.cluster.group_controllers import failover_settings
from gantry_operator.platforms.local.control import ControlError
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import load_saved
from gantry_operator.platforms.local.supervisor import REQUESTED, Supervisor
from gantry_operator.platforms.local.supervisor_lock import AlreadySupervised, take_lock

ANNOUNCED_S = 3.0
"""Seconds; longer than the silence after which a former master counts as frozen."""


async def switchover_once(folder: ClusterFolder, group: str, to: str | None) -> str:
    """Hand over. Raises ControlError with the reason, and NoPort."""
    try:
        lock = take_lock(folder)
    except AlreadySupervised:
        raise ControlError("another command uses this cluster, or `gantry up` is just starting: try again") from None
    with lock:
        supervisor = Supervisor(folder, load_saved(folder), show=lambda line: None)
        task: asyncio.Task[None] | None = None
        try:
            number = supervisor.platform.plan.switchover_target(group, to)
            controller = supervisor.watch_only(group)
            task = asyncio.create_task(controller.run())
            done = await controller.switchover(number, REQUESTED)
            await _announced(
                controller, done, ANNOUNCED_S + failover_settings(supervisor.cluster.spec).detection_ms / 1000
            )
            return done
        except (SwitchoverFailed, ValueError) as error:
            raise ControlError(str(error)) from None
        finally:
            await end_tasks(task)
            await supervisor.close()


async def _announced(controller: GroupController, done: str, patience_s: float) -> None:
    """Wait until the group's address has moved. Raises ControlError.

    No process moves it after this command has ended: a frozen former master would hold it.
    """
    try:
        async with asyncio.timeout(patience_s):
            while not controller.announced:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        why = controller.problem or "a former master does not give it up"
        raise ControlError(f"{done}, but the group's address does not lead there yet: {why}; try again") from None
