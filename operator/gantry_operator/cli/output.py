"""What commands print: JSON for programs, tables for people, a bar on a terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console


def console() -> Console:
    """For tables. Plain text without colour when stdout is no terminal; lines are not cut there."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=200, color_system=None, force_terminal=False)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def size(count: int) -> str:
    """Bytes for people: 1.4 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def note(text: str) -> None:
    """For people only: stdout stays clean for data."""
    print(text, file=sys.stderr, flush=True)
