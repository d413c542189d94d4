"""Where a copy by messages keeps what it has done."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gantry_operator.registry.file import write_durably


class CopyState(Protocol):
    """Keeps one text. `str` names the place, for people."""

    @property
    def pause_s(self) -> float:
        """Seconds between two saves for which nothing waits."""
        ...

    async def load(self) -> str | None:
        """Return the text; None: there is none. Raises what cannot be read."""
        ...

    async def save(self, text: str) -> None:
        """Keep the text durably. Raises what cannot be written."""
        ...


class FileState:
    """A file of this machine."""

    pause_s = 0.0

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    async def load(self) -> str | None:
        """Return the text; None: there is none. Raises OSError."""
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return None

    async def save(self, text: str) -> None:
        """Write the file. Raises OSError."""
        write_durably(self.path, text)
