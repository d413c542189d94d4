"""A progress bar on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

MOMENT = 1000
"""Fewer messages are processed too fast for a bar."""


def optional_bar(total: int | None, label: str, wanted: bool = True) -> AbstractContextManager[Callable[..., None]]:
    """A progress bar on a terminal. It is not shown elsewhere, and not for a few messages."""
    if not wanted or not sys.stderr.isatty() or (total is not None and total < MOMENT):
        return nullcontext(lambda step=1: None)
    return bar(total, label)


@contextmanager
def bar(total: int | None, label: str) -> Iterator[Callable[..., None]]:
    """Yields a function that advances the bar by one, or by the given number."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)

        def advance(step: int = 1) -> None:
            progress.advance(task, step)

        yield advance
