"""`gantry topic`: the topics of a cluster, those of resources and all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gantry_operator.cli import completion
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.group_commands import (
    ConfirmOption,
    ForceOption,
    ManagedOption,
    ToOption,
    reset_offsets,
    show_resource,
)
from gantry_operator.cli.on_cluster import cluster_command
from gantry_operator.cli.options import command_group
from gantry_operator.cli.output import print_json, print_table, say
from gantry_operator.cli.target import run_async
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

NONE: Final = "none"
"""The value of an option that removes a setting."""

topic_app = command_group(
    "Topics: those of BrokerTopic resources, and all others.\n\n"
    "[bold]gantry topic create Orders --queues 8[/bold]; with --managed by a resource, which `gantry up` or the "
    "operator keeps as it is written."
)
TopicArgument = Annotated[str, typer.Argument(help="The topic.", show_default=False, autocompletion=completion.topics)]
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


def settings_of(
    queues: int | None,
    total: int | None,
    permission: str | None,
    kind: str | None,
    retention: str | None,
    attributes: Sequence[str],
) -> dict[str, Any]:
    """Return the fields of a BrokerTopic's spec for options that were given; `none` removes one. An attribute of
    RocketMQ that has a field of its own becomes this field. Raises CliError.
    """
    from gantry_broker.broker.metadata.attributes import CLEANUP, RETENTION, TOMBSTONES

    from gantry_operator.api.topic import CLEANUP_VALUES, MESSAGE_TYPE

    options = {
        MESSAGE_TYPE: "--type FIFO",
        RETENTION: "--retention 7d",
        TOMBSTONES: "`gantry topic compact TOPIC --tombstones 24h`",
    }
    given = {
        "queuesPerGroup": queues, "queues": total, "permission": permission, "messageType": kind,
        "retention": retention,
    }  # fmt: skip
    settings: dict[str, Any] = {k: None if v == NONE else v for k, v in given.items() if v is not None}
    for text in attributes:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CliError(f"--attribute {text!r}: write name=value, or name= to remove it", Exit.USAGE)
        if name in options:
            raise CliError(f"--attribute {text!r}: write {options[name]}", Exit.USAGE)
        if name == CLEANUP:
            policies = {v: k for k, v in CLEANUP_VALUES.items()}
            if value not in policies:
                raise CliError(f"--attribute {text!r}: write {CLEANUP}={' or '.join(sorted(policies))}", Exit.USAGE)
            settings["cleanupPolicy"] = policies[value]
        else:
            settings.setdefault("config", {})[name] = value or None
    return settings


@cluster_command(topic_app, "create")
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
    from gantry_operator.actions.topics import create_topic

    settings = settings_of(queues, None, permission, kind, retention, attribute or ())
    groups = run_async(create_topic(target, topic, settings, managed))
    if as_json:
        print_json({"topic": topic, "queues": queues, "groups": groups})
    else:
        say(f"{topic}: {queues} queues in {', '.join(groups)}")


@cluster_command(topic_app, "change")
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
    from gantry_operator.actions.topics import change_topic

    settings = settings_of(queues, total, permission, kind, retention, attribute or ())
    if not settings:
        raise CliError("nothing to change: write an option, as --queues 16 or --retention 7d", Exit.USAGE)
    done = run_async(change_topic(target, topic, settings))
    print_json({"topic": topic, "done": done}) if as_json else say(done)


@cluster_command(topic_app, "list")
def topic_list(
    target: Target,
    as_json: bool,
    all_topics: Annotated[bool, typer.Option("--all", "-a", help="Also the system's topics.")] = False,
) -> None:
    """List topics with their queues and messages, and the resource of each."""
    from gantry_operator.actions.topics import list_topics

    rows = run_async(list_topics(target, all_topics))
    if as_json:
        print_json(rows)
        return
    print_table(
        ("TOPIC", "QUEUES", "MESSAGES", "RESOURCE", "READY"),
        [(row["topic"], row["queues"], row["messages"], row["resource"] or "-", row["ready"]) for row in rows],
    )


@cluster_command(topic_app, "describe")
def topic_describe(target: Target, as_json: bool, topic: TopicArgument) -> None:
    """Show a topic: its queues in each broker group, attributes, consumers, and the state of its resource."""
    from gantry_operator.actions.topics import describe_topic

    described = run_async(describe_topic(target, topic, saved=True))
    if as_json:
        print_json(described)
        return
    say(f"topic      {topic}")
    say(f"attributes {', '.join(f'{k}={v}' for k, v in described['attributes'].items()) or '-'}")
    say(f"consumers  {', '.join(described['consumers']) or '-'}")
    if described["compaction"] is not None:
        say(f"compaction {_saved(described['compaction'])}")
    show_resource("resource   BrokerTopic", described["resource"])
    print_table(
        ("GROUP", "WRITE QUEUES", "READ QUEUES", "PERMISSION", "MESSAGES"),
        [
            [row[k] for k in ("group", "writeQueues", "readQueues", "permission", "messages")]
            for row in described["groups"]
        ],
    )


def _saved(done: dict[str, int]) -> str:
    """Return what compaction has saved, for people."""
    before, after = done["seen_bytes"], done["kept_bytes"]
    share = f" ({(before - after) / before:.0%})" if before else ""
    return (
        f"{size(before - after)} saved{share}: {size(before)} before, {size(after)} after; "
        f"{done['kept_records']:,} of {done['seen_records']:,} messages stay"
    )


@cluster_command(topic_app, "compact")
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
    from gantry_operator.actions.topics import compact_topic

    groups = run_async(compact_topic(target, topic, tombstones, off))
    if as_json:
        print_json({"topic": topic, "compacted": not off, "groups": groups})
    elif off:
        say(f"{topic} is compacted no more in {', '.join(groups)}: its messages leave with the log")
    else:
        say(f"{topic} is compacted in {', '.join(groups)}: the newest message of each key stays")


@cluster_command(topic_app, "delete")
def topic_delete(target: Target, as_json: bool, topic: TopicArgument, force: ForceOption = False) -> None:
    """Delete a topic, or the resource that manages it: its deletionPolicy says what happens to the topic."""
    from gantry_operator.actions.topics import delete_topic

    done = run_async(delete_topic(target, topic, force))
    print_json({"topic": topic, "done": done}) if as_json else say(done)


@cluster_command(topic_app, "reset")
def topic_reset(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group that moves.", show_default=False)],
    to: ToOption,
    confirm: ConfirmOption = False,
) -> None:
    """Move a consumer group within one topic: `gantry group reset GROUP --topic TOPIC`."""
    reset_offsets(target, group, topic, to, confirm, as_json)
