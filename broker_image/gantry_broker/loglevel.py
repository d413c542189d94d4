"""The log level of a running process follows its config file."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_S = 2.0
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


async def follow(config: Path, every_s: float = LOOK_S) -> None:
    """Set the root logger's level after each change of the file, until cancelled.

    Only this field is read: the others count at the next start. A file that is being replaced is read again.
    """
    seen = await asyncio.to_thread(_stamp, config)
    while True:
        await asyncio.sleep(every_s)
        stamp = await asyncio.to_thread(_stamp, config)
        if stamp is None or stamp == seen:
            continue
        level = await asyncio.to_thread(level_in, config)
        if level is None:
            continue
        seen = stamp
        root = logging.getLogger()
        if logging.getLevelName(root.level) != level:
            root.setLevel(level)
            log.warning("the log level is %s now", level)


def level_in(config: Path) -> str | None:
    """Return the level in a config file; None: the file cannot be read, or has no such level."""
    try:
        level = json.loads(config.read_bytes()).get("log_level", "INFO")
    except (OSError, ValueError, AttributeError):
        return None
    return level if level in LEVELS else None


def _stamp(config: Path) -> tuple[int, int, int] | None:
    try:
        stat = config.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
