"""The NameServer's command line and process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from pathlib import Path

from gantry_broker import descriptors, logs
from gantry_broker.loglevel import LEVELS, follow, level_in
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_broker.protocol.fields import BodyError


async def _serve(settings: NameServerSettings, followed: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with NameServer(settings):
        gc.freeze()
        following = None if followed is None else asyncio.create_task(follow(followed))
        await stop.wait()
        if following is not None:
            following.cancel()


def main(arguments: list[str] | None = None) -> int:
    """Run the process and return its exit code: 0 after a signal, 2 for a bad config, 1 when a port or file cannot
    be used.
    """
    parser = argparse.ArgumentParser(prog="python -m gantry_broker.namesrv", description="A NameServer.")
    parser.add_argument("--config", type=Path, required=True, help="its JSON configuration")
    parser.add_argument("--log-level", choices=LEVELS, help="default: log_level of the config, which is followed")
    options = parser.parse_args(arguments)
    logs.configure(options.log_level or level_in(options.config) or "INFO")
    descriptors.allow_all()
    try:
        settings = NameServerSettings.load(options.config)
    except (OSError, BodyError) as error:
        print(f"{options.config}: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(_serve(settings, None if options.log_level else options.config))
    except (OSError, ValueError) as error:
        print(f"NameServer {settings.name}: {error}", file=sys.stderr)
        return 1
    return 0
