"""`gantry dlq list`, `read` and `resend`: messages that consumer groups could not process."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from gantry_broker.client import ReceivedMessage
from gantry_broker.client.deadletters import WAYS, origin_topic
from gantry_broker.protocol.printable import printable

from gantry_operator.actions.dead_letters import (
    Choice,
    groups_with_dead_letters,
    letter_fields,
    read_letters,
    resend_letters,
)
from gantry_operator.actions.target import Target
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.output import json_text, note, print_json, print_table, was_complete
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import run_async


def show_groups(target: Target, as_json: bool) -> None:
    """List groups with dead letters. Raises CliError."""
    rows = run_async(groups_with_dead_letters(target))
    if as_json:
        print_json(
            [{"group": g.group, "letters": g.letters, "waiting": g.waiting, "last": _time(g.last_ms)} for g in rows]
        )
        return
    if not rows:
        note("no group has dead letters" if was_complete() else "no group that answers has dead letters")
        return
    print_table(
        ("GROUP", "LETTERS", "WAITING", "LAST"),
        [(g.group, g.letters, g.waiting, _time(g.last_ms) or "-") for g in rows],
    )
    note("WAITING: not sent again yet. Read them: gantry dlq read GROUP; send them again: gantry dlq resend GROUP")


def run_read(target: Target, choice: Choice, as_json: bool) -> None:
    """Print a line for each letter. Raises CliError."""
    shown = 0

    def show(letter: ReceivedMessage) -> None:
        nonlocal shown
        shown += 1
        sys.stdout.write(json_text(letter_fields(choice.group, letter)) + "\n" if as_json else _text(letter))

    run_async(read_letters(target, choice, show))
    sys.stdout.flush()
    note(f"{shown} dead letters of {choice.group}")


def run_resend(
    target: Target, choice: Choice, to: str | None, way: str | None, patience: float, dry_run: bool, as_json: bool
) -> None:
    """Send letters again. `way`: how the group consumes. Raises CliError, after printing the counts, when a letter
    could not be sent.
    """
    if way not in (None, *WAYS):
        raise CliError(f"--consume {way}: write pull, or pop for members that use POP or gRPC")
    count: tuple[int, int] | None = None

    def counted(done: int, total: int) -> None:
        nonlocal count
        count = done, total

    label = f"sending dead letters of {choice.group}"
    with Progress(label, wanted=not choice.ids, poll=lambda: count):
        result = run_async(resend_letters(target, choice, to, patience, dry_run, way, counted))
    if as_json:
        print_json(result)
    elif dry_run:
        note(f"{result['found']} dead letters would be sent to {result['to']}; nothing was sent")
    else:
        note(f"{result['sent']} of {result['found']} dead letters were sent to {result['to']}")
        if not result["found"] and choice.waiting_only:
            note("all were sent again before; --all sends them once more")
    if result["problem"]:
        raise CliError(
            f"stopped after {result['sent']} letters: {result['problem']}. Run it again: it continues from there"
        )


def _text(letter: ReceivedMessage) -> str:
    body = letter.body.decode(errors="replace")
    cells = (letter.id, _time(letter.store_ms), origin_topic(letter), str(letter.reconsume_times), body)
    return "\t".join(map(printable, cells)) + "\n"


def _time(unix_ms: int) -> str:
    if unix_ms <= 0:
        return ""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
