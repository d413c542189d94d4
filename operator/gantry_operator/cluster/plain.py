"""Texts from outside as one short line."""

from __future__ import annotations

from typing import Final

from gantry_broker.protocol.printable import printable

MAX_TEXT: Final = 400
"""Characters of a text from outside."""


def plain(text: object) -> str:
    """Return a text from outside as one short line that moves no cursor and colours nothing."""
    return printable(str(text)[:MAX_TEXT])
