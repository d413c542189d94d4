"""`gantry volume`: the disks of members, also of those that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gantry_operator.cli.on_cluster import cluster_command
from gantry_operator.cli.options import command_group
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.target import run_async
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target
    from gantry_operator.cluster.volume import Volume

volume_app = command_group(
    "The disks of members: volumes of pods, folders on this machine. That of a member that was removed stays "
    "until it is deleted here."
)


@cluster_command(volume_app, "list")
def volume_list(
    target: Target,
    as_json: bool,
    gone: Annotated[bool, typer.Option("--gone", help="Only those of members that are gone.")] = False,
) -> None:
    """List the disks of members, and what uses each."""
    from gantry_operator.actions.volumes import list_volumes

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


@cluster_command(volume_app, "delete")
def volume_delete(
    target: Target,
    as_json: bool,
    volume: Annotated[str, typer.Argument(help="Its name, or that of the member.", show_default=False)],
    confirm: Annotated[bool, typer.Option("--confirm", help="Delete it. Else it is only shown.")] = False,
) -> None:
    """Delete the disk of a member that is gone, with all messages on it. One that is used is refused."""
    from gantry_operator.actions.volumes import delete_volume

    disk, deleted = run_async(delete_volume(target, volume, confirm=confirm))
    if as_json:
        print_json(_fields(disk) | {"deleted": deleted})
    elif deleted:
        say(f"{disk.name} is deleted, with all messages on it")
    else:
        held = "" if disk.bytes is None else f", {size(disk.bytes)}"
        say(f"{disk.name}{held}: its member {disk.member} is gone; --confirm deletes it with all messages on it")


def _fields(volume: Volume) -> dict[str, object]:
    return {"volume": volume.name, "member": volume.member, "bytes": volume.bytes, "usedBy": volume.used_by}
