"""The folders with the stores of a local cluster, also of members that are gone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gantry_broker.store.errors import StoreError
from gantry_broker.store.recovery import lock_store

from gantry_operator.cluster.volume import Volume
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.leaving_groups import running_cluster
from gantry_operator.platforms.local.manifest import load_saved
from gantry_operator.platforms.local.process import load_record

DRAINED = "drained"
"""Where the folders of removed groups are kept."""


class VolumeInUse(Exception):
    """A folder belongs to a member, or to a process. The text is the reason."""


def volumes_of(folder: ClusterFolder) -> list[Volume]:
    """Return the folders of all members, and those that were kept of removed groups. Raises OSError."""
    planned = {m.name for m in plan(running_cluster(folder, load_saved(folder))).members}
    of_members = [
        Volume(path.name, path.name, _held(path), _used_by(folder, path.name, planned))
        for path in _folders(folder.data("x").parent)
    ]
    kept = _folders(folder.root / DRAINED)
    return of_members + [Volume(f"{DRAINED}/{path.name}", path.name.rpartition("-")[0], _held(path)) for path in kept]


def delete_volume(folder: ClusterFolder, name: str) -> None:
    """Delete a folder of `volumes_of` that no member uses. Raises VolumeInUse, OSError."""
    volume = next((v for v in volumes_of(folder) if v.name == name), None)
    if volume is None or volume.used_by:
        raise VolumeInUse("it does not exist any more" if volume is None else volume.used_by)
    path = folder.root / name if name.startswith(f"{DRAINED}/") else folder.data(name)
    try:
        lock = lock_store(path)
    except StoreError as error:
        raise VolumeInUse(str(error)) from None
    try:
        shutil.rmtree(path)
    finally:
        os.close(lock)


def _folders(parent: Path) -> list[Path]:
    return sorted(p for p in parent.iterdir() if p.is_dir() and not p.is_symlink()) if parent.is_dir() else []


def _used_by(folder: ClusterFolder, name: str, planned: set[str]) -> str:
    if name in planned:
        return f"member {name} uses it"
    if load_record(folder.process(name)) is not None:
        return f"the process of {name} runs"
    return f"{name} is leaving the cluster" if folder.config(name).exists() else ""


def _held(path: Path) -> int:
    """Return the bytes on the disk: segments are sparse."""
    total = 0
    for parent, _, files in os.walk(path):
        for file in files:
            total += os.lstat(os.path.join(parent, file)).st_blocks * 512
    return total
