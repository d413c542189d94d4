"""Output of commands: JSON for programs, text and tables for users. Texts from outside are harmless for a terminal."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gantry_broker.protocol.printable import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console


def prepare_streams() -> None:
    """Print a character that stdout or stderr cannot encode as another one, where Python would fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def give_up_stdout() -> None:
    """Its reader has closed it, or its disk is full. The interpreter flushes it at exit, and would exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Return the console for tables. It prints plain text without colour, and cuts no lines, when stdout is no
    terminal.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(width=200, color_system=None, force_terminal=False)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[str] = ()) -> None:
    """Print rows below bold headings. Cells are plain text: nothing in them is markup or acts on a terminal.

    `right`: the headings of columns that align at their right edge.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console().print(table)


def say(text: str) -> None:
    """Print lines to stdout."""
    print(printable(text, keep="\n"))


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for stdout. Where stdout is not UTF-8 it has ASCII only, so no character is lost."""
    return printable_json(json.dumps(value, indent=indent, ensure_ascii=not _unicode_stdout()))


def _unicode_stdout() -> bool:
    try:
        return codecs.lookup(sys.stdout.encoding or "ascii").name.startswith("utf")
    except LookupError:
        return False


def print_json(value: Any) -> None:
    print(json_text(value, 2))


_incomplete: list[str] = []


def say_incomplete(text: str) -> None:
    """Say that a part of the answer is missing, and why. The command ends with the code of a failure."""
    _incomplete.append(text)
    note(f"incomplete: {text}")


def was_complete() -> bool:
    """Whether no part of an answer was missing."""
    return not _incomplete


class Remarks:
    """What actions say beside their results."""

    def note(self, text: str) -> None:
        note(text)

    def incomplete(self, text: str) -> None:
        say_incomplete(text)


def note(text: str) -> None:
    """Print a remark for users to stderr, so that stdout holds only data."""
    print(printable(text, keep="\n"), file=sys.stderr, flush=True)
