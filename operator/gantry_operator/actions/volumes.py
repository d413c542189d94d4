"""The disks of members: volumes of pods, folders on this machine. Those of members that are gone stay until deleted."""

from __future__ import annotations

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.target import Target
from gantry_operator.cluster.volume import Volume


async def list_volumes(target: Target, gone: bool) -> list[Volume]:
    """Return the disks by name; `gone`: only those of members that are gone. Raises ActionError."""
    volumes = await target.volumes()
    return sorted((v for v in volumes if not (gone and v.used_by)), key=lambda v: v.name)


async def delete_volume(target: Target, name: str, *, confirm: bool) -> tuple[Volume, bool]:
    """Delete a disk whose member is gone, with all messages on it. Returns it, and whether it was deleted.

    Without `confirm` nothing is deleted. Raises ActionError for a disk that is used, or that is not there.
    """
    by_name = {v.name: v for v in await target.volumes()}
    volume = by_name.get(name) or next((v for v in by_name.values() if v.member == name), None)
    if volume is None:
        raise ActionError(f"there is no volume {name!r}: `gantry volume list` shows those that exist", Cause.BAD_INPUT)
    if volume.used_by:
        raise ActionError(f"{volume.name} is not deleted: {volume.used_by}")
    if confirm:
        await target.delete_volume(volume)
    return volume, confirm
