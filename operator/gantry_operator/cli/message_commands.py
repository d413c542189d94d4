"""The commands `gantry produce`, `consume` and `messages`, and their options. `messages.py` and `browse.py` carry them
out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gantry_operator.cli import completion
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.on_cluster import on_cluster
from gantry_operator.cli.options import (
    EPILOG,
    ContextOption,
    DirOption,
    NameOption,
    NamespaceOption,
    Output,
    OutputOption,
)
from gantry_operator.cli.target import find_target
from gantry_operator.cli.topic_commands import TopicArgument

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target


def produce(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic. The cluster creates a missing topic if it is configured to.",
            show_default=False,
            autocompletion=completion.topics,
        ),
    ],
    lines: Annotated[
        str | None, typer.Argument(metavar="[-]", help="'-': a message for each line of stdin.", show_default=False)
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Send this many messages of --size bytes.")] = None,
    size: Annotated[int, typer.Option(min=1, max=4_194_304, help="Bytes of each, with --count.")] = 100,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A message for each line of this file.")] = None,
    body: Annotated[
        str | None,
        typer.Option(
            help="Send one message with this text. '' with --keys deletes the key in a compacted topic, and in a "
            "table with --upsert.",
            show_default=False,
        ),
    ] = None,
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property of every message; may be repeated."),
    ] = None,
    tags: Annotated[str, typer.Option(help="Tag of every message.")] = "",
    keys: Annotated[str, typer.Option(help="Key of every message; '{n}' is its number.")] = "",
    by_key: Annotated[
        bool,
        typer.Option(
            "--by-key",
            help="Messages of one key go to one queue, in their order. So they always do in a compacted topic.",
        ),
    ] = False,
    in_flight: Annotated[int, typer.Option(min=1, max=4096, help="Maximum of sends without an answer.")] = 32,
    patience: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds for which a send without acknowledgement is repeated. After one was given up, "
            "the others are tried once, until something is acknowledged.",
        ),
    ] = 30.0,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Send messages and report the number of acknowledgements.

    [bold]gantry produce Orders --count 1000 --size 200[/bold],
    [bold]seq 10 | gantry produce Orders -[/bold]
    """
    from gantry_operator.cli.messages import ProduceOptions, properties_of, run_produce

    sources = (count is not None) + (file is not None) + (lines is not None) + (body is not None)
    if lines not in (None, "-"):
        raise CliError(f"{lines!r} is no source: write --file {lines}, or --body TEXT", Exit.USAGE)
    if sources != 1:
        raise CliError("say what to send: --body TEXT, or --count N, or --file FILE, or '-' for stdin", Exit.USAGE)
    if by_key and not keys:
        raise CliError("--by-key needs the key of the messages: --keys TEXT", Exit.USAGE)
    properties = properties_of(prop or [])
    options = ProduceOptions(topic, count, size, file, tags, keys, in_flight, patience, body, by_key, properties)
    run_produce(find_target(directory, name, context, namespace), options, output == Output.json)


@on_cluster
def consume(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group. The cluster stores its position.")],
    count: Annotated[int | None, typer.Option(min=1, help="End after this many.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="End after this many seconds without a message.")] = None,
    tags: Annotated[str, typer.Option(help="Only these tags, like 'A || B'.")] = "*",
    from_last: Annotated[bool, typer.Option("--from-last", help="A new group begins with the next message.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only count.")] = False,
) -> None:
    """Read messages: a line for each on stdout, with -o json an object for each.

    A new group begins with the oldest message. Ctrl-C ends; the next run continues from there.
    """
    from gantry_operator.cli.messages import ConsumeOptions, run_consume

    options = ConsumeOptions(topic, group, count, timeout, tags, from_last, quiet)
    run_consume(target, options, as_json)


@on_cluster
def messages(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    tags: Annotated[str, typer.Option(help="Only these tags, like 'A || B'.")] = "",
    key: Annotated[str, typer.Option(help="Only messages with this key, from the index of the brokers.")] = "",
    prop: Annotated[str, typer.Option("--property", help="Only with this property: a name, or NAME=VALUE.")] = "",
    text: Annotated[str, typer.Option(help="Only with this text in the body, in any case.")] = "",
    message_id: Annotated[str, typer.Option("--id", help="The message with this id.")] = "",
    at: Annotated[str, typer.Option("--from", help="From this time on, like 2026-11-25T08:30, in UTC.")] = "",
    before: Annotated[str, typer.Option(help="Older than this place, as the command prints it.")] = "",
    after: Annotated[str, typer.Option(help="Newer than this place.")] = "",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many, at most.")] = 50,
) -> None:
    """Look at the newest messages of a topic, or search it. No consumer group moves.

    [bold]gantry messages Orders[/bold], [bold]gantry messages Orders --tags fruit --text apples -o json[/bold]
    """
    from gantry_operator.cli.browse import look_of, show

    show(target, look_of(topic, tags, key, prop, text, message_id, at, before, after, count), as_json)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (produce, consume, messages):
        app.command(epilog=EPILOG)(command)
