"""Fence a member: its broker is stopped for a look while its pod, or process, stays; and take the fence away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.target import Target

STOPPED_S: Final = 60.0
"""Seconds to wait until the broker is stopped: a kubelet brings the new file within some seconds."""
POLL_S: Final = 0.3
WORD: Final = "fenced"
"""In the reason of a fenced member's row."""


def why_not_fence(resource: Mapping[str, Any], name: str) -> str:
    """Return why the group of a member cannot do without it; empty: it can. Raises ActionError for an unknown name."""
    spec, rows = resource.get("spec") or {}, (resource.get("status") or {}).get("members") or []
    row = next((r for r in rows if r["name"] == name), None)
    if row is None:
        names = ", ".join(r["name"] for r in rows) or "none"
        raise ActionError(f"{resource['metadata']['name']} has no member {name!r}, but {names}", Cause.BAD_INPUT)
    group = [r for r in rows if r["group"] == row["group"]]
    others = [r for r in group if r["name"] != name and r.get("inSync")]
    needed = len(group) // 2 + 1 if spec.get("mode") == "Raft" else max(1, int(spec.get("minInSyncReplicas") or 1))
    if len(others) >= needed:
        return ""
    in_sync = ", ".join(r["name"] for r in others) or "none"
    return f"group {row['group']} needs {needed} other members in sync to take messages, and has {in_sync}"


async def fence_member(target: Target, name: str, *, force: bool = False) -> str:
    """Stop the broker of a member. A master hands over first. Returns a sentence.

    `force`: also where the group takes no messages then. Raises ActionError.
    """
    resource = await target.resource()
    why = why_not_fence(resource, name)
    if why and not force:
        raise ActionError(f"{name} is not fenced: {why}; --force fences it, and the group waits until it is back")
    row = next(r for r in resource["status"]["members"] if r["name"] == name)
    if row.get("role") == "Master" and not why:
        await target.switchover(row["group"], None)
    await target.fence(name, True)
    deadline = time.monotonic() + STOPPED_S
    while time.monotonic() < deadline:
        rows = ((await target.resource()).get("status") or {}).get("members") or []
        if any(r["name"] == name and WORD in str(r.get("reason") or "") for r in rows):
            return (
                f"{name} is fenced: its broker is stopped and its files are closed; `gantry fence off {name}` ends it"
            )
        await asyncio.sleep(POLL_S)
    raise ActionError(f"{name} is to be fenced, and still answers after {STOPPED_S:.0f} s", Cause.NOT_IN_TIME)


async def unfence_member(target: Target, name: str) -> str:
    """Start the broker of a member again. Returns a sentence. Raises ActionError."""
    why_not_fence(await target.resource(), name)  # It names the members for an unknown name.
    await target.fence(name, False)
    return f"{name} is not fenced any more: it starts, and joins its group"
