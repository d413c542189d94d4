"""`gantry top`: the terminal around the live view. Keys come from stdin without Enter."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from gantry_broker.tasks import set_within
from rich.console import Console
from rich.live import Live

from gantry_operator.actions.target import Target
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.next_steps import Step, next_steps
from gantry_operator.cli.output import console, print_json
from gantry_operator.cli.target import run_async
from gantry_operator.cli.top_screen import Choice, pressed, screen
from gantry_operator.cluster.live import View
from gantry_operator.cluster.live_watch import LiveWatch
from gantry_operator.cluster.reach import CANNOT_TELL

ONCE_S: Final = 3.0
"""Most seconds for the two samples of each member that a rate needs."""
POLL_S: Final = 0.05


def top(target: Target, interval_s: float, once: bool, as_json: bool) -> None:
    """Show the cluster until the user quits. Prints it once where stdout is no terminal. Raises CliError."""
    if once or as_json or not sys.stdout.isatty():
        view = run_async(_once(target, interval_s))
        if as_json:
            print_json(asdict(view))
        else:
            out = console()
            out.print(screen(view, _steps(view, target), Choice(), _clock(), out.width, None, keys=False))
        # What is known is shown first.
        unknown = what_is_unknown(view)
        if unknown:
            raise CliError(unknown)
        return
    run_async(_live(target, interval_s))


def what_is_unknown(view: View) -> str:
    """Return which part of a view is missing, so that a script does not take it for all; empty: none is. Pure."""
    if view.blind:
        return "; ".join(CANNOT_TELL.format(group) for group in view.blind)
    return f"the figures are old: {view.problem}" if view.problem else ""


def _steps(view: View, target: Target) -> list[Step]:
    return next_steps(view.as_resource(), target.where)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


async def _once(target: Target, interval_s: float) -> View:
    """Wait for all rates, at most `ONCE_S`: a member that does not answer has none."""
    async with target.live() as source, LiveWatch(source, min(interval_s, 1.0)) as watch:
        deadline = time.monotonic() + ONCE_S
        while True:
            await asyncio.sleep(POLL_S)
            view = watch.view()
            if all(m.rates is not None for m in view.members) or time.monotonic() >= deadline:
                return view


async def _live(target: Target, interval_s: float) -> None:
    choice = Choice()
    changed = asyncio.Event()

    def key(text: str) -> None:
        nonlocal choice
        for one in text:
            choice = pressed(choice, one)
        changed.set()

    def stop() -> None:
        key("q")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    async with target.live() as source, LiveWatch(source, interval_s) as watch:
        with _keys(loop, key), Live(console=Console(), screen=True, auto_refresh=False) as live:
            view, now = watch.view(), _clock()
            while not choice.quit:
                if not choice.paused:
                    view, now = watch.view(), _clock()
                at = live.console.size
                live.update(screen(view, _steps(view, target), choice, now, at.width, at.height), refresh=True)
                changed.clear()
                await set_within(changed, interval_s)


@contextmanager
def _keys(loop: asyncio.AbstractEventLoop, press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` with each key. Restores the terminal at the end. Without a terminal there are no keys."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def ready() -> None:
        data = os.read(fd, 64)
        if not data:
            loop.remove_reader(fd)
        press(data.decode(errors="ignore") if data else "q")

    tty.setcbreak(fd)
    loop.add_reader(fd, ready)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
