"""The progress of commands: lines without a terminal, a bar in one, nothing for a quick command."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from gantry_operator.cli import progress as module
from gantry_operator.cli.progress import Progress, plain_line

from tests.support.terminal import Terminal


def test_a_line_says_what_is_known() -> None:
    assert plain_line("sending to T", "", (1000, 4000), 12.3) == "sending to T: 1,000 of 4,000 (25%), 12 s"
    assert plain_line("analyzing", "half", (3, 4), 9, "tasks") == "analyzing: half, 3 of 4 tasks (75%), 9 s"
    assert plain_line("reading T", "", (1000, None), 3) == "reading T: 1,000, 3 s"
    assert plain_line("starting", "no member leads", (0, None), 4) == "starting: no member leads, 4 s"
    assert plain_line("resending", "", (12, 10), 4) == "resending: 12 of 10 (100%), 4 s", "more than was expected"
    assert plain_line("starting", "", (0, None), 4) == "starting: 4 s"


def test_a_quick_command_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with Progress("quick", 10) as progress:
        progress.advance(10)
    assert capsys.readouterr().err == ""
    assert threading.active_count() == before


def test_a_long_command_says_so_again_and_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    monkeypatch.setattr(module, "AGAIN_S", 0.02)
    polled = threading.Event()
    asked = 0

    def poll() -> tuple[int, int | None] | None:
        nonlocal asked
        asked += 1
        if asked > 2:
            polled.set()
        return None if asked == 1 else (asked, 30)

    with Progress("long", 30, poll=poll) as progress:
        progress.say("step one")
        assert polled.wait(30)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("long: ")
    assert "step one, 3 of 30 (10%), 0 s" in said[2]
    assert not any("\x1b" in line for line in said)


def test_an_unwanted_progress_shows_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    with Progress("hidden", shown=False) as progress:
        progress.advance()
    assert capsys.readouterr().err == ""


def test_an_error_ends_the_thread() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="x"), Progress("broken"):
        raise ValueError("x")
    assert threading.active_count() == before


BAR = """
import threading, time
from gantry_operator.cli import progress
progress.FIRST_S = 0.0
with progress.Progress("sending to T", 100) as shown:
    shown.say("[bold]half[/bold]")
    shown.advance(50)
    input()
print("done")
"""


def test_a_terminal_has_a_bar_that_goes_away() -> None:
    with Terminal([sys.executable, "-c", BAR], os.environ) as shown:
        while "50%" not in shown.output:
            shown.read(1)
            assert shown.process.poll() is None, shown.output
        assert "sending to T: [bold]half[/bold]" in shown.output, "a text is no markup"
        shown.type("\n")
        assert shown.end() == 0
        while "done" not in shown.output:
            shown.read(1)
        assert "\x1b[?25h" in shown.output, "the cursor is back"
