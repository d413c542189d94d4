"""What peers send begins no line of a log, and commands no terminal that shows it."""

from __future__ import annotations

import json
import logging

import pytest
from gantry_broker.logs import formatter

HOSTILE = "a\nlevel=ERROR forged\rb\x1b[2J\x85c\u2028d\x9b31m\u202ee\tf"


def line(text: str, environ: dict[str, str]) -> str:
    record = logging.LogRecord("gantry", logging.INFO, "f", 1, "client %s", (text,), None)
    return formatter(environ).format(record)


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_line_of_the_log_stays_one_line(kind: str) -> None:
    found = line(HOSTILE, {"GANTRY_LOG_FORMAT": kind})
    assert len(found.splitlines()) == 1
    assert found.isprintable()
    if kind == "json":
        assert json.loads(found)["message"] == f"client {HOSTILE}", "the text is kept"
    else:
        assert "a\\nlevel=ERROR forged\\rb\\u001b[2J" in found


def test_ordinary_text_is_shown_as_it_is() -> None:
    assert "client Müller 消费者" in line("Müller 消费者", {"GANTRY_LOG_FORMAT": "text"})


def test_an_exception_stays_one_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        record = logging.LogRecord("g", logging.ERROR, "f", 1, "failed", (), (ValueError, error, error.__traceback__))
    assert len(formatter({}).format(record).splitlines()) == 1
