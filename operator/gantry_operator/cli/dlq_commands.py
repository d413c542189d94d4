"""The commands `gantry dlq` and their options. `dlq.py` carries them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gantry_operator.cli import completion
from gantry_operator.cli.on_cluster import on_cluster
from gantry_operator.cli.options import (
    EPILOG,
)

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

dlq_app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: messages that a consumer group failed to consume too often.\n\n"
    "[bold]gantry dlq list[/bold], then [bold]gantry dlq read billing[/bold], and once the consumer is repaired "
    "[bold]gantry dlq resend billing[/bold].",
    rich_markup_mode="rich",
)
DeadGroupArgument = Annotated[
    str, typer.Argument(help="The consumer group.", show_default=False, autocompletion=completion.groups)
]
IdOption = Annotated[
    list[str] | None, typer.Option("--id", help="Only the letter with this id, as read shows it; may be repeated.")
]
OriginOption = Annotated[str | None, typer.Option("--topic", help="Only letters whose original topic is this one.")]


@dlq_app.command("list", epilog=EPILOG)
@on_cluster
def dlq_list(
    target: Target,
    as_json: bool,
) -> None:
    """List the groups with dead letters, and the number of letters that were not sent again."""
    from gantry_operator.cli.dlq import show_groups

    show_groups(target, as_json)


@dlq_app.command("read", epilog=EPILOG)
@on_cluster
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
    from gantry_operator.actions.dead_letters import Choice
    from gantry_operator.cli.dlq import run_read

    choice = Choice(group, tuple(ids or ()), topic, count, waiting)
    run_read(target, choice, as_json)


@dlq_app.command("resend", epilog=EPILOG)
@on_cluster
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
    from gantry_operator.actions.dead_letters import Choice
    from gantry_operator.cli.dlq import run_resend

    choice = Choice(group, tuple(ids or ()), topic, count, not every and not ids and topic is None and to is None)
    run_resend(target, choice, to, consume, patience, dry_run, as_json)
