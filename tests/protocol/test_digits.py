"""The parser of whole numbers, and that nothing else judges digits."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from gantry_broker.protocol import plausible
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.digits import MAX_DIGITS, MAX_LONG, whole_number
from gantry_broker.protocol.fastjson import JsonError, loads
from gantry_broker.protocol.fields import BodyError, Fields
from gantry_broker.protocol.headers import parse_int

ROOT = Path(__file__).resolve().parents[2]
NO_NUMBERS = [
    "", "-", "+", "+1", "--1", "1-", " 1", "1 ", "1\n", "1_000", "1.0", "1e3", "0x1", "\u00b2", "1\u00b2", "\uff11",
    "\u0661", "\U0001d7d9", "\0" + "1", "9" * (MAX_DIGITS + 1), "9" * 5_000, "1,000", "\u22121", "one",
]  # fmt: skip
"""A superscript 2, digits 1 of other scripts, and a minus that is none, among them."""


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_is_none_in_text_and_bytes(text: str) -> None:
    assert whole_number(text, -MAX_LONG) is None
    assert whole_number(text.encode(), -MAX_LONG) is None
    for refused in (
        lambda: parse_int("queueId", text.removeprefix("+1"), -5, 5),
        lambda: Fields({"n": text}, "body").number("n"),
        lambda: plausible.integer("n", text),
    ):
        with pytest.raises((BadField, BodyError, plausible.Implausible)):
            refused()


@pytest.mark.parametrize("seed", range(20))
def test_numbers_come_back_within_their_range_alone(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(500):
        low, high = sorted(dice.randint(-(10 ** dice.randint(0, 20)), 10 ** dice.randint(0, 20)) for _ in range(2))
        number = dice.choice([low, high, low - 1, high + 1, dice.randint(low, high)])
        text = f"{number:0{dice.randint(1, 30)}d}"
        expected = number if low <= number <= high and (number >= 0 or low < 0) and len(text) <= MAX_DIGITS else None
        if text.startswith("-") and low >= 0:
            expected = None
        assert whole_number(text, low, high) == expected, (text, low, high)
        assert whole_number(text.encode(), low, high) == expected


def test_json_has_numbers_of_ascii_digits_alone() -> None:
    assert loads(b"{0:[1,-2,3.5]}")["0"] == [1, -2, 3.5]
    for text in ("[\uff11]", "[1\uff11]", "[1.\uff11]", "[\u00b2]"):
        with pytest.raises(JsonError):
            loads(b"{0:" + text.encode() + b"}")


ASCII_BESIDE = {
    "broker_image/gantry_broker/protocol/digits.py",
    "broker_image/gantry_broker/broker/pull/checks.py",
    "broker_image/gantry_broker/replication/wire.py",
}
"""Hot paths that join several texts before they look."""
NOT_YET = {"broker_image/gantry_broker/proxy/http2/core.py", "broker_image/gantry_broker/proxy/http2/endpoint.py"}


def test_no_other_module_judges_digits() -> None:
    judges = re.compile(r"\.(?:isdigit|isdecimal|isnumeric)\(\)")
    found = set()
    for package in (
        "broker_image/gantry_core",
        "broker_image/gantry_broker",
        "operator/gantry_operator",
        "spark_jobs/gantry_spark",
    ):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            if judges.search(text):
                name = str(path.relative_to(ROOT))
                found.add(name)
                assert name not in ASCII_BESIDE or "isascii()" in text
    assert found - NOT_YET == ASCII_BESIDE, "use protocol/digits.py for numbers from outside"
