"""What commands print: texts from outside, and a stdout that cannot take them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_operator.actions.dead_letters import letter_fields
from gantry_operator.cli import dlq_commands, group_commands, messages
from gantry_operator.cli.output import json_text, note, print_json, print_table, say

BAD = "a\x1b[31m\u202eb[red]c[/red]"


def test_tables_lines_and_remarks_are_harmless_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("TOPIC", "COUNT"), [(BAD, 3)])
    say(f"members {BAD}\nnext")
    note(f"error: {BAD}")
    print_json({"id": BAD})
    out, err = capsys.readouterr()
    for text in (out, err):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert r"a\x1b[31m\u202eb[red]c[/red]" in out, "and brackets are no markup"
    assert "\nnext\n" in out
    assert json.loads(out[out.index("{") :]) == {"id": BAD}


def test_no_long_cell_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("TOPIC", "KEY"), [("T", "k" * 500)])
    assert capsys.readouterr().out.count("k") == 500


def run(code: str, *, stdout: int = subprocess.PIPE, encoding: str = "ascii") -> subprocess.CompletedProcess[bytes]:
    """Run Python code as the command `gantry` runs a command."""
    program = (
        "import typer\nfrom gantry_operator.cli import app, output\n"
        f"app.app = typer.Typer()\n@app.app.command()\ndef work():\n    {code}\napp.run()"
    )
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    return subprocess.run(
        [sys.executable, "-c", program], stdout=stdout, stderr=subprocess.PIPE, env=environment, timeout=60, check=False
    )


def test_a_stdout_that_is_not_utf_8_gets_replacements_and_exact_json() -> None:
    text = run("output.say('Gr\\u00fc\\u00dfe'); output.print_table(('A',), [('\\u6ce8',)])")
    assert (text.returncode, text.stderr) == (0, b"")
    assert text.stdout.split() == [b"Gr??e", b"A", b"?"]
    exact = run("output.print_json({'a': 'Gr\\u00fc\\u00dfe'})")
    assert json.loads(exact.stdout) == {"a": "Grüße"}
    assert "Grüße" in run("output.print_json({'a': 'Gr\\u00fc\\u00dfe'})", encoding="utf-8").stdout.decode()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is the full disk here: run it on Linux")
def test_a_full_disk_is_one_line_and_a_failure() -> None:
    with open("/dev/full", "w") as full:
        done = run("output.say('x')", stdout=full.fileno())
    assert (done.returncode, done.stderr) == (1, b"error: the output cannot be written: No space left on device\n")


def test_a_reader_that_has_gone_ends_the_command_silently() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = run("output.say('x' * 100_000)", stdout=write)
    finally:
        os.close(write)
    assert done.returncode != 0
    assert done.stderr == b""


def test_dead_letters_and_messages_are_harmless_text_and_exact_json() -> None:
    record = SimpleNamespace(queue_id=0, queue_offset=7, keys="k\x9b\u202e", tags="")
    letter: Any = SimpleNamespace(
        id="ID\x1b]0;x\x07", topic="%DLQ%g", broker="a", record=record, store_ms=0, reconsume_times=1,
        body=b"a\x1b[2J\nb\t", properties={"RETRY_TOPIC": "Odd\x1b"},
    )  # fmt: skip
    assert dlq_commands._text(letter) == "ID\\x1b]0;x\\x07\t\tOdd\\x1b\t1\ta\\x1b[2J\\nb\\t\n"
    assert messages._as_text(letter) == "a\\x1b[2J\\nb\t\n", "one line, with its tabs"
    exact = json_text(letter_fields("g", letter))
    assert not set(exact) & set("\x1b\x07\x9b\u202e\n")
    assert (json.loads(exact)["body"], json.loads(exact)["keys"]) == ("a\x1b[2J\nb\t", "k\x9b\u202e")


def test_client_ids_are_harmless(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    queue = {"topic": "T\x1b", "group": "a", "queue": 0, "committed": 1, "end": 2, "lag": 1}
    client = {"id": "10.0.0.1@\x1b[31mx\r", "language": "JAVA", "version": "v5", "protocol": "remoting", "address": "x"}
    found = {"groups": [], "clients": [client], "resource": None, "queues": [queue]}

    def answer(work: Any) -> Any:
        work.close()
        return found

    monkeypatch.setattr(group_commands, "run_async", answer)
    group_commands.group_describe.__wrapped__(None, False, "g")  # type: ignore[attr-defined]
    out = capsys.readouterr().out
    assert r"10.0.0.1@\x1b[31mx\r" in out
    assert not set(out) & set("\x1b\r")
