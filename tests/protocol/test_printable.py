"""Texts from outside on a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from gantry_broker.protocol.printable import printable, printable_json

ACTING = [
    "\x1b[2J",
    "\x07",
    "\x9b31m",
    "\x7f",
    "\r",
    "\n",
    "\u202e",
    "\u2066",
    "\u061c",
    "\u2028",
    "\ud800",
    "\U000e0041",
]


@pytest.mark.parametrize("text", ACTING)
def test_no_character_that_a_terminal_acts_on_is_left(text: str) -> None:
    shown = printable(f"a{text}b")
    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert all(unicodedata.category(c)[0] != "C" for c in shown)


def test_letters_of_all_scripts_and_emoji_stay() -> None:
    for text in (
        "Grüße",
        "注文\u3000完了",
        "\u0645\u06cc\u200c\u062e",
        "👩\u200d💻",
        "a\u00a0b",
        "[red]x[/red]",
        "back\\slash",
    ):
        assert printable(text) == text


def test_kept_characters_stay() -> None:
    assert printable("a\tb\nc\x1b", keep="\n") == "a\\tb\nc\\x1b"


@pytest.mark.parametrize("text", ACTING)
def test_json_holds_the_same_values(text: str) -> None:
    written = printable_json(json.dumps({"a": text, text: 1}, indent=1, ensure_ascii=False))
    assert json.loads(written) == {"a": text, text: 1}
    assert all(c == "\n" or unicodedata.category(c)[0] != "C" for c in written)
