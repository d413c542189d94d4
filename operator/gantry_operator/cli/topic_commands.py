"""The commands `gantry topic` and `gantry group` and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gantry_operator.cli import completion
from gantry_operator.cli.on_cluster import on_cluster
from gantry_operator.cli.options import EPILOG

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

topic_app = typer.Typer(
    no_args_is_help=True,
    help="Topics: those of BrokerTopic resources, and all others.\n\n"
    "[bold]gantry topic create Orders --queues 8[/bold]; with --managed by a resource, which `gantry up` or the "
    "operator keeps as it is written.",
    rich_markup_mode="rich",
)
group_app = typer.Typer(
    no_args_is_help=True,
    help="Consumer groups: those of ConsumerGroup resources, and all others.\n\n"
    "[bold]gantry group reset billing --to 2026-11-25T10:00:00Z[/bold] shows what it would skip and repeat; --confirm "
    "carries it out.",
    rich_markup_mode="rich",
)

TopicArgument = Annotated[str, typer.Argument(help="The topic.", show_default=False, autocompletion=completion.topics)]
GroupArgument = Annotated[
    str, typer.Argument(help="The consumer group.", show_default=False, autocompletion=completion.groups)
]
ManagedOption = Annotated[
    bool, typer.Option("--managed", help="Make a resource, which keeps it as it is written. Else it is only created.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Also if messages are unread or clients are connected.")]
ToOption = Annotated[
    str, typer.Option("--to", help="earliest, latest, or a time like 2026-11-25T10:00:00Z.", show_default=False)
]
ConfirmOption = Annotated[bool, typer.Option("--confirm", help="Carry it out. Else it is only shown.")]


PermissionOption = Annotated[
    str | None, typer.Option("--permission", help="ReadWrite, ReadOnly or WriteOnly.", show_default=False)
]
TypeOption = Annotated[
    str | None,
    typer.Option("--type", help="Normal, FIFO, Delay, Transaction or Mixed, or none to remove it.", show_default=False),
]
RetentionOption = Annotated[
    str | None,
    typer.Option("--retention", help="How long messages are readable, as 7d; none to remove it.", show_default=False),
]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option("--attribute", help="name=value, or name= to remove it; may be repeated.", show_default=False),
]


RetryMaxOption = Annotated[int | None, typer.Option(min=0, max=10_000, help="Deliveries after the first one.")]
RetryQueuesOption = Annotated[int | None, typer.Option(min=0, max=1_024, help="Queues of the retry topic.")]
OrderlyOption = Annotated[bool | None, typer.Option("--orderly/--concurrent", help="Orderly delivery.")]
BroadcastOption = Annotated[bool | None, typer.Option(help="Whether members may consume by broadcast.")]
ConsumeOption = Annotated[bool | None, typer.Option(help="Whether brokers give it messages.")]


@topic_app.command("create", epilog=EPILOG)
@on_cluster
def topic_create(
    target: Target,
    as_json: bool,
    topic: Annotated[str, typer.Argument(help="Its name.", show_default=False)],
    queues: Annotated[int, typer.Option("--queues", "-q", min=1, max=1024, help="Queues in each broker group.")] = 8,
    permission: PermissionOption = None,
    kind: TypeOption = None,
    retention: RetentionOption = None,
    attribute: AttributeOption = None,
    managed: ManagedOption = False,
) -> None:
    """Create a topic in every broker group, or change the number of its queues.

    A topic that exists gets its queues on groups that were added later, too.
    """
    from gantry_operator.cli.topics import create, settings_of

    settings = settings_of(queues, None, permission, kind, retention, attribute or ())
    create(target, topic, settings, managed, as_json)


@topic_app.command("change", epilog=EPILOG)
@on_cluster
def topic_change(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    queues: Annotated[
        int | None, typer.Option("--queues", "-q", min=1, max=1024, help="Queues in each broker group.")
    ] = None,
    total: Annotated[
        int | None,
        typer.Option("--queues-in-total", min=1, max=65_536, help="For a BrokerTopic that says spec.queues."),
    ] = None,
    permission: PermissionOption = None,
    kind: TypeOption = None,
    retention: RetentionOption = None,
    attribute: AttributeOption = None,
) -> None:
    """Change a topic that exists, or the resource that manages it. What is not given stays.

    Fewer queues: those that go take no more messages at once. They are read until they are empty.
    """
    from gantry_operator.cli.topics import change, settings_of

    change(target, topic, settings_of(queues, total, permission, kind, retention, attribute or ()), as_json)


@topic_app.command("list", epilog=EPILOG)
@on_cluster
def topic_list(
    target: Target,
    as_json: bool,
    all_topics: Annotated[bool, typer.Option("--all", "-a", help="Also the system's topics.")] = False,
) -> None:
    """List topics with their queues and messages, and the resource of each."""
    from gantry_operator.cli.topics import show

    show(target, all_topics, as_json)


@topic_app.command("describe", epilog=EPILOG)
@on_cluster
def topic_describe(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
) -> None:
    """Show a topic: its queues in each broker group, attributes, consumers, and the state of its resource."""
    from gantry_operator.cli.topics import describe

    describe(target, topic, as_json)


@topic_app.command("compact", epilog=EPILOG)
@on_cluster
def topic_compact(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    tombstones: Annotated[
        str, typer.Option(help="How long a message without a body stays, such as 24h.", show_default=False)
    ] = "",
    off: Annotated[bool, typer.Option("--off", help="Compact it no more.")] = False,
) -> None:
    """Keep the newest message of each key for good, and refuse messages without a key.

    Older messages of a key disappear for readers within a quarter of an hour, and leave the disk with their part of
    the log.
    """
    from gantry_operator.cli.topics import compact

    compact(target, topic, tombstones, off, as_json)


@topic_app.command("delete", epilog=EPILOG)
@on_cluster
def topic_delete(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    force: ForceOption = False,
) -> None:
    """Delete a topic, or the resource that manages it: its deletionPolicy says what happens to the topic."""
    from gantry_operator.cli.topics import delete

    delete(target, topic, force, as_json)


@group_app.command("create", epilog=EPILOG)
@on_cluster
def group_create(
    target: Target,
    as_json: bool,
    group: Annotated[str, typer.Argument(help="Its name.", show_default=False)],
    retry_max: RetryMaxOption = None,
    retry_queues: RetryQueuesOption = None,
    orderly: OrderlyOption = None,
    broadcast: BroadcastOption = None,
    consume: ConsumeOption = None,
    managed: ManagedOption = False,
) -> None:
    """Create a consumer group on every broker group, or change its settings."""
    from gantry_operator.cli.groups import create, settings_of

    create(target, group, settings_of(retry_max, retry_queues, orderly, broadcast, consume), managed, as_json)


@group_app.command("change", epilog=EPILOG)
@on_cluster
def group_change(
    target: Target,
    as_json: bool,
    group: GroupArgument,
    retry_max: RetryMaxOption = None,
    retry_queues: RetryQueuesOption = None,
    orderly: OrderlyOption = None,
    broadcast: BroadcastOption = None,
    consume: ConsumeOption = None,
) -> None:
    """Change a consumer group that exists, or the resource that manages it. What is not given stays."""
    from gantry_operator.cli.groups import change, settings_of

    change(target, group, settings_of(retry_max, retry_queues, orderly, broadcast, consume), as_json)


@group_app.command("list", epilog=EPILOG)
@on_cluster
def group_list(
    target: Target,
    as_json: bool,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the system's groups.")] = False,
) -> None:
    """List consumer groups with their members and unread messages, and the resource of each."""
    from gantry_operator.cli.groups import show

    show(target, every, as_json)


@group_app.command("describe", epilog=EPILOG)
@on_cluster
def group_describe(
    target: Target,
    as_json: bool,
    group: GroupArgument,
) -> None:
    """Show a consumer group: settings, members, its position in each queue, and the state of its resource."""
    from gantry_operator.cli.groups import describe

    describe(target, group, as_json)


@group_app.command("delete", epilog=EPILOG)
@on_cluster
def group_delete(
    target: Target,
    as_json: bool,
    group: GroupArgument,
    force: ForceOption = False,
) -> None:
    """Delete a consumer group with its offsets, or the resource that manages it."""
    from gantry_operator.cli.groups import delete

    delete(target, group, force, as_json)


@group_app.command("reset", epilog=EPILOG)
@on_cluster
def group_reset(
    target: Target,
    as_json: bool,
    group: GroupArgument,
    to: ToOption,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic. Default: all of the group.")] = None,
    confirm: ConfirmOption = False,
) -> None:
    """Move a consumer group to a time. Shows what it skips and repeats; --confirm carries it out."""
    from gantry_operator.cli.groups import reset

    reset(target, group, topic, to, confirm, as_json)


@topic_app.command("reset", epilog=EPILOG)
@on_cluster
def topic_reset(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group that moves.", show_default=False)],
    to: ToOption,
    confirm: ConfirmOption = False,
) -> None:
    """Move a consumer group within one topic: `gantry group reset GROUP --topic TOPIC`."""
    from gantry_operator.cli.groups import reset

    reset(target, group, topic, to, confirm, as_json)
