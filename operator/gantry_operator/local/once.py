"""A switchover while no `gantry up` runs: the command supervises the failover for as long as it takes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gantry_operator.failover.base import SwitchoverFailed
from gantry_operator.local.control import ControlError
from gantry_operator.local.folder import ClusterFolder
from gantry_operator.local.lock import AlreadySupervised, take_lock
from gantry_operator.local.supervisor import Supervisor, load_saved


async def switchover_once(folder: ClusterFolder, group: str, to: str | None) -> str:
    """Raises ControlError with the reason, and NoPort."""
    try:
        lock = take_lock(folder)
    except AlreadySupervised:
        raise ControlError("another command is at work here, or `gantry up` is just starting: try again") from None
    with lock:
        supervisor = Supervisor(folder, load_saved(folder), show=lambda line: None)
        task: asyncio.Task[None] | None = None
        try:
            loop = supervisor.watch_only(group)
            number = None if to is None else supervisor.plan.member_of(group, to).number
            task = asyncio.create_task(loop.run())
            return await loop.switchover(number, "asked for by gantry switchover")
        except SwitchoverFailed as error:
            raise ControlError(str(error)) from None
        except KeyError as error:
            raise ControlError(str(error.args[0])) from None
        finally:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await supervisor.close()
