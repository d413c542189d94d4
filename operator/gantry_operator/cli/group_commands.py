"""`gantry group`: the consumer groups of a cluster, those of resources and all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantry_operator.cli import completion
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.on_cluster import cluster_command
from gantry_operator.cli.options import command_group
from gantry_operator.cli.output import print_json, print_table, say
from gantry_operator.cli.target import run_async

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

group_app = command_group(
    "Consumer groups: those of ConsumerGroup resources, and all others.\n\n"
    "[bold]gantry group reset billing --to 2026-11-25T10:00:00Z[/bold] shows what it would skip and repeat; --confirm "
    "carries it out."
)

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


RetryMaxOption = Annotated[int | None, typer.Option(min=0, max=10_000, help="Deliveries after the first one.")]
RetryQueuesOption = Annotated[int | None, typer.Option(min=0, max=1_024, help="Queues of the retry topic.")]
OrderlyOption = Annotated[bool | None, typer.Option("--orderly/--concurrent", help="Orderly delivery.")]
BroadcastOption = Annotated[bool | None, typer.Option(help="Whether members may consume by broadcast.")]
ConsumeOption = Annotated[bool | None, typer.Option(help="Whether brokers give it messages.")]


def settings_of(
    retry_max: int | None, retry_queues: int | None, orderly: bool | None, broadcast: bool | None, consume: bool | None
) -> dict[str, Any]:
    """Return the fields of a ConsumerGroup's spec that options give."""
    given = {
        "retryMax": retry_max, "retryQueues": retry_queues, "consumeOrderly": orderly, "broadcast": broadcast,
        "consumeEnable": consume,
    }  # fmt: skip
    return {k: v for k, v in given.items() if v is not None}


@cluster_command(group_app, "create")
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
    from gantry_operator.actions.groups import create_group

    settings = settings_of(retry_max, retry_queues, orderly, broadcast, consume)
    groups = run_async(create_group(target, group, settings, managed))
    print_json({"group": group, "groups": groups}) if as_json else say(f"{group}: on {', '.join(groups)}")


@cluster_command(group_app, "change")
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
    from gantry_operator.actions.groups import change_group

    settings = settings_of(retry_max, retry_queues, orderly, broadcast, consume)
    if not settings:
        raise CliError("nothing to change: write an option, as --retry-max 5 or --no-consume", Exit.USAGE)
    done = run_async(change_group(target, group, settings))
    print_json({"group": group, "done": done}) if as_json else say(done)


@cluster_command(group_app, "list")
def group_list(
    target: Target,
    as_json: bool,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the system's groups.")] = False,
) -> None:
    """List consumer groups with their members and unread messages, and the resource of each."""
    from gantry_operator.actions.groups import list_groups

    rows = run_async(list_groups(target, every))
    if as_json:
        print_json(rows)
        return
    print_table(
        ("GROUP", "MEMBERS", "LAG", "RESOURCE", "READY"),
        [(row["group"], row["members"], row["lag"], row["resource"] or "-", row["ready"]) for row in rows],
    )


@cluster_command(group_app, "describe")
def group_describe(target: Target, as_json: bool, group: GroupArgument) -> None:
    """Show a consumer group: settings, members, its position in each queue, and the state of its resource."""
    from gantry_operator.actions.groups import describe_group

    described = run_async(describe_group(target, group))
    if as_json:
        print_json(described)
        return
    say(f"group    {group}")
    for row in described["groups"]:
        say(f"on {row['name']:<6} {', '.join(f'{k} {v}' for k, v in row.items() if k != 'name')}")
    say(f"members  {', '.join(map(_client_line, described['clients'])) or '-'}")
    resource = described["resource"]
    show_resource("resource ConsumerGroup", resource)
    reset = (resource.get("status") or {}).get("reset") if resource else None
    if reset:
        say(f"  reset    {reset['request']}: {reset['state']}: {reset.get('message', '')}")
    columns = ("topic", "group", "queue", "committed", "end", "lag")
    print_table([name.upper() for name in columns], [[row[name] for name in columns] for row in described["queues"]])


def show_resource(label: str, resource: Mapping[str, Any] | None) -> None:
    """Show the resource of a topic or a group with its conditions, if it has one."""
    from gantry_operator.actions.managed import condition

    if not resource:
        return
    say(f"{label} {resource['metadata']['name']}")
    for kind in ("Ready", "Synced"):
        state = condition(resource, kind)
        say(f"  {kind:<8} {state.get('status', 'Unknown')}: {state.get('message') or state.get('reason', '')}")


def _client_line(client: Mapping[str, str]) -> str:
    return f"{client['id']} ({client['language']} {client['version']}, {client['protocol']}, {client['address']})"


@cluster_command(group_app, "delete")
def group_delete(target: Target, as_json: bool, group: GroupArgument, force: ForceOption = False) -> None:
    """Delete a consumer group with its offsets, or the resource that manages it."""
    from gantry_operator.actions.groups import delete_group

    done = run_async(delete_group(target, group, force))
    print_json({"group": group, "done": done}) if as_json else say(done)


@cluster_command(group_app, "reset")
def group_reset(
    target: Target,
    as_json: bool,
    group: GroupArgument,
    to: ToOption,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic. Default: all of the group.")] = None,
    confirm: ConfirmOption = False,
) -> None:
    """Move a consumer group to a time. Shows what it skips and repeats; --confirm carries it out."""
    reset_offsets(target, group, topic, to, confirm, as_json)


def reset_offsets(target: Target, group: str, topic: str | None, to: str, confirm: bool, as_json: bool) -> None:
    """Show what a reset skips and repeats, and carry it out with `confirm`. Raises CliError."""
    from gantry_operator.actions.groups import reset_group

    preview = run_async(reset_group(target, group, topic, to, confirm))
    if as_json:
        print_json(preview)
        return
    columns = ("topic", "group", "queue", "at", "to", "skipped", "repeated")
    print_table([name.upper() for name in columns], [[row[name] for name in columns] for row in preview["queues"]])
    did = "were" if confirm else "would be"
    say(f"{preview['skipped']} messages {did} skipped, {preview['repeated']} repeated")
    if not confirm:
        say("nothing was changed: --confirm carries it out")
