"""The NameServers of a migrated cluster's source, at which the leader registers, follow the config file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

LOOK_S: Final = 2.0


async def follow(
    file: Path, present: Sequence[str], use: Callable[[Sequence[str]], Awaitable[None]], every_s: float = LOOK_S
) -> None:
    """Give `use` each change of the addresses in the file, until cancelled. `present`: those that are used. A file that
    cannot be read changes nothing.
    """
    seen = list(present)
    while True:
        await asyncio.sleep(every_s)
        servers = await asyncio.to_thread(servers_in, file)
        if servers is not None and servers != seen:
            await use(servers)
            seen = servers


def servers_in(file: Path) -> list[str] | None:
    """Return what a config file says; None: it cannot be read."""
    try:
        found = json.loads(file.read_bytes()).get("source_name_servers", [])
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, list) and all(isinstance(server, str) for server in found) else None
