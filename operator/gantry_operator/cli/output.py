"""Output of commands: JSON for programs, tables for users, a progress bar on a terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console


def console() -> Console:
    """The console for tables. It prints plain text without colour, and cuts no lines, when stdout is no terminal."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=200, color_system=None, force_terminal=False)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def size(count: int) -> str:
    """Bytes for users: 1.4 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def note(text: str) -> None:
    """Print a remark for users to stderr, so that stdout holds only data."""
    print(text, file=sys.stderr, flush=True)
