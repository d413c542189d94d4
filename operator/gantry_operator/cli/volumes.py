"""`gantry volume`: the disks of members, also of those that are gone."""

from __future__ import annotations

from gantry_operator.actions.target import Target
from gantry_operator.actions.volumes import delete_volume, list_volumes
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.target import run_async
from gantry_operator.cluster.amounts import size
from gantry_operator.cluster.volume import Volume


def show(target: Target, gone: bool, as_json: bool) -> None:
    """List disks. Raises CliError."""
    rows = run_async(list_volumes(target, gone))
    if as_json:
        print_json([_fields(v) for v in rows])
        return
    if not rows:
        note("no member that is gone has left a volume" if gone else "there is no volume yet")
        return
    cells = [
        (v.name, v.member, "-" if v.bytes is None else size(v.bytes), v.used_by or "its member is gone") for v in rows
    ]
    print_table(("VOLUME", "MEMBER", "SIZE", "STATE"), cells)


def delete(target: Target, name: str, confirm: bool, as_json: bool) -> None:
    """Delete a disk, or show what would be deleted. Raises CliError."""
    volume, deleted = run_async(delete_volume(target, name, confirm=confirm))
    if as_json:
        print_json(_fields(volume) | {"deleted": deleted})
    elif deleted:
        say(f"{volume.name} is deleted, with all messages on it")
    else:
        held = "" if volume.bytes is None else f", {size(volume.bytes)}"
        say(f"{volume.name}{held}: its member {volume.member} is gone; --confirm deletes it with all messages on it")


def _fields(volume: Volume) -> dict[str, object]:
    return {"volume": volume.name, "member": volume.member, "bytes": volume.bytes, "usedBy": volume.used_by}
