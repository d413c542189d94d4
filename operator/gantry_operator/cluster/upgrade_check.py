"""Whether the members of a group may be replaced by ones of another version: the check before each step. Pure.

`plan.order` waits until all members are in sync. Here are the other conditions: versions that work together, and disks
with room. A version that is not known is not compared: images need not have one in their name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MIN_FREE: Final = 0.05
"""Part of a disk that has to be free: a member that returns copies what it missed, and may write its index again."""
_RELEASE = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})(\.[0-9]{1,6})?([-+][0-9A-Za-z.+-]+)?")


@dataclass(frozen=True, slots=True)
class Running:
    """A member that answers: its version as it reports it, and its disk."""

    name: str
    release: str
    outdated: bool
    disk: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Members get another version. `target`: the new one; empty: not known. `operator`: that of this process."""

    target: str
    operator: str


def release_of(image: str) -> str:
    """Return the version in an image's tag; empty: it has none."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    return tag.removeprefix("v") if _RELEASE.fullmatch(tag) else ""


def compatible(one: str, other: str) -> bool:
    """Whether two versions work together: the same major version, and at most one minor version apart. An empty one
    is not known.
    """
    if not one or not other:
        return True
    a, b = _RELEASE.fullmatch(one), _RELEASE.fullmatch(other)
    if a is None or b is None:
        return one == other
    return a[1] == b[1] and abs(int(a[2]) - int(b[2])) <= 1


def why_not(members: Sequence[Running], target: str, operator: str) -> str:
    """Why no member may be replaced now; empty: the next one may.

    `target`: the new version; empty: not known, so that of the members that have it already counts.
    """
    target = target or next((m.release for m in members if not m.outdated and m.release), "")
    if not compatible(target, operator):
        return f"the new version is {target}, and the operator's is {operator}: {_WAY.format('upgrade the operator')}"
    others = [m for m in members if not compatible(m.release, target)]
    if others:
        running = ", ".join(f"{m.name} runs {m.release}" for m in others)
        return f"the new version is {target}, and {running}: {_WAY.format('write an image of a version between them')}"
    full = [f"{m.name} ({_free(m.disk):.0%} free)" for m in members if _free(m.disk) < MIN_FREE]
    if full:
        return (
            f"too little room on the disk of {', '.join(full)}: {MIN_FREE:.0%} have to be free while members restart. "
            "Write a larger storage.size, or a lower broker.fileReservedTime, or make room"
        )
    return ""


_WAY = "members that work together are at most one minor version apart, so {} first"


def _free(disk: Mapping[str, Any] | None) -> float:
    total = 0 if disk is None else disk.get("total_bytes", 0)
    if disk is None or not total:
        return 1.0
    return 0.0 if disk.get("full") else float(disk.get("free_bytes", 0)) / float(total)
