"""Texts from outside, made harmless for a terminal: no character moves a cursor, colours or hides text."""

from __future__ import annotations

import unicodedata
from typing import Final

_ACTING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that terminals act on: controls, direction marks, halves of pairs, line separators."""
_JOINERS: Final = "\u200c\u200d"
"""Scripts and emoji need them, and they do nothing else."""


def printable(text: str, keep: str = "") -> str:
    """Return the text with an escape such as `\\x1b` in place of each character that a terminal would act on.

    `keep`: characters that stay, for example a line break.
    """
    if text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if _acts(c) and c not in keep else c for c in text)


def printable_json(text: str) -> str:
    """Return JSON text with JSON's own escapes for such characters: it holds the same values. Line breaks stay."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if _acts(c) and c != "\n" else c for c in text)


def _acts(character: str) -> bool:
    return unicodedata.category(character) in _ACTING and character not in _JOINERS


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
