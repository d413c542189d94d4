"""`gantry dlq`: messages that consumer groups could not process."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from gantry_broker.protocol.printable import printable

from gantry_operator.cli import completion
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.on_cluster import cluster_command
from gantry_operator.cli.options import command_group
from gantry_operator.cli.output import json_text, note, print_json, print_table, was_complete
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import run_async

if TYPE_CHECKING:
    from gantry_broker.client import ReceivedMessage

    from gantry_operator.actions.target import Target

dlq_app = command_group(
    "Dead letters: messages that a consumer group failed to consume too often.\n\n"
    "[bold]gantry dlq list[/bold], then [bold]gantry dlq read billing[/bold], and once the consumer is repaired "
    "[bold]gantry dlq resend billing[/bold]."
)
DeadGroupArgument = Annotated[
    str, typer.Argument(help="The consumer group.", show_default=False, autocompletion=completion.groups)
]
IdOption = Annotated[
    list[str] | None, typer.Option("--id", help="Only the letter with this id, as read shows it; may be repeated.")
]
OriginOption = Annotated[str | None, typer.Option("--topic", help="Only letters whose original topic is this one.")]


@cluster_command(dlq_app, "list")
def dlq_list(target: Target, as_json: bool) -> None:
    """List the groups with dead letters, and the number of letters that were not sent again."""
    from gantry_operator.actions.dead_letters import groups_with_dead_letters

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


@cluster_command(dlq_app, "read")
def dlq_read(
    target: Target,
    as_json: bool,
    group: DeadGroupArgument,
    ids: IdOption = None,
    topic: OriginOption = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many.")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only letters that were not sent again yet.")] = False,
) -> None:
    """Show a group's dead letters: id, time, topic, tries and body, a line for each; -o json shows all properties.

    Reading changes nothing: the letters stay, and count as waiting until they are sent again.
    """
    from gantry_operator.actions.dead_letters import Choice, letter_fields, read_letters

    shown = 0

    def show(letter: ReceivedMessage) -> None:
        nonlocal shown
        shown += 1
        sys.stdout.write(json_text(letter_fields(group, letter)) + "\n" if as_json else _text(letter))

    run_async(read_letters(target, Choice(group, tuple(ids or ()), topic, count, waiting), show))
    sys.stdout.flush()
    note(f"{shown} dead letters of {group}")


@cluster_command(dlq_app, "resend")
def dlq_resend(
    target: Target,
    as_json: bool,
    group: DeadGroupArgument,
    ids: IdOption = None,
    topic: OriginOption = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also letters that were sent again before.")] = False,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Send to this topic instead of the group: all groups of the topic get it."),
    ] = None,
    consume: Annotated[
        str | None,
        typer.Option("--consume", help="How the group consumes: pull, or pop (POP, gRPC). Brokers mostly know it."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report their number.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds for which a send is repeated.")] = 30.0,
) -> None:
    """Send a group's dead letters again: to this group alone, with all its tries, unless --to names a topic.

    The cluster stores the progress, so the next run sends only newer letters. An interrupted run may repeat some
    letters. The letters themselves stay in the dead-letter topic until they expire.
    """
    from gantry_broker.client.deadletters import WAYS

    from gantry_operator.actions.dead_letters import Choice, resend_letters

    if consume not in (None, *WAYS):
        raise CliError(f"--consume {consume}: write pull, or pop for members that use POP or gRPC")
    choice = Choice(group, tuple(ids or ()), topic, count, not every and not ids and topic is None and to is None)
    progress: tuple[int, int] | None = None

    def counted(done: int, total: int) -> None:
        nonlocal progress
        progress = done, total

    with Progress(f"sending dead letters of {group}", shown=not ids, poll=lambda: progress):
        result = run_async(resend_letters(target, choice, to, patience, dry_run, consume, counted))
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
    from gantry_broker.client.deadletters import origin_topic

    body = letter.body.decode(errors="replace")
    cells = (letter.id, _time(letter.store_ms), origin_topic(letter), str(letter.reconsume_times), body)
    return "\t".join(map(printable, cells)) + "\n"


def _time(unix_ms: int) -> str:
    if unix_ms <= 0:
        return ""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
