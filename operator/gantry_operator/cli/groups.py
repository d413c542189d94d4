"""`gantry group`: the consumer groups of a cluster, those of resources and all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gantry_operator.actions.groups import (
    change_group,
    create_group,
    delete_group,
    describe_group,
    list_groups,
    reset_group,
)
from gantry_operator.actions.managed import condition
from gantry_operator.actions.target import Target
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import print_json, print_table, say
from gantry_operator.cli.target import run_async


def create(target: Target, group: str, settings: Mapping[str, Any], managed: bool, as_json: bool) -> None:
    """Create or change a group. `settings`: fields of a ConsumerGroup's spec. Raises CliError."""
    groups = run_async(create_group(target, group, settings, managed))
    print_json({"group": group, "groups": groups}) if as_json else say(f"{group}: on {', '.join(groups)}")


def settings_of(
    retry_max: int | None, retry_queues: int | None, orderly: bool | None, broadcast: bool | None, consume: bool | None
) -> dict[str, Any]:
    """Return the fields of a ConsumerGroup's spec that options give."""
    given = {
        "retryMax": retry_max, "retryQueues": retry_queues, "consumeOrderly": orderly, "broadcast": broadcast,
        "consumeEnable": consume,
    }  # fmt: skip
    return {k: v for k, v in given.items() if v is not None}


def change(target: Target, group: str, settings: Mapping[str, Any], as_json: bool) -> None:
    """Change a group that exists, or its resource. Raises CliError."""
    if not settings:
        raise CliError("nothing to change: write an option, as --retry-max 5 or --no-consume", Exit.USAGE)
    done = run_async(change_group(target, group, settings))
    print_json({"group": group, "done": done}) if as_json else say(done)


def show(target: Target, every: bool, as_json: bool) -> None:
    """List groups. Raises CliError."""
    rows = run_async(list_groups(target, every))
    if as_json:
        print_json(rows)
        return
    print_table(
        ("GROUP", "MEMBERS", "LAG", "RESOURCE", "READY"),
        [(row["group"], row["members"], row["lag"], row["resource"] or "-", row["ready"]) for row in rows],
    )


def describe(target: Target, group: str, as_json: bool) -> None:
    """Everything about one group. Raises CliError."""
    described = run_async(describe_group(target, group))
    if as_json:
        print_json(described)
        return
    say(f"group    {group}")
    for row in described["groups"]:
        say(f"on {row['name']:<6} {', '.join(f'{k} {v}' for k, v in row.items() if k != 'name')}")
    say(f"members  {', '.join(map(_client_line, described['clients'])) or '-'}")
    resource = described["resource"]
    if resource:
        say(f"resource ConsumerGroup {resource['metadata']['name']}")
        for kind in ("Ready", "Synced"):
            state = condition(resource, kind)
            say(f"  {kind:<8} {state.get('status', 'Unknown')}: {state.get('message') or state.get('reason', '')}")
        reset = (resource.get("status") or {}).get("reset")
        if reset:
            say(f"  reset    {reset['request']}: {reset['state']}: {reset.get('message', '')}")
    columns = ("topic", "group", "queue", "committed", "end", "lag")
    print_table([name.upper() for name in columns], [[row[name] for name in columns] for row in described["queues"]])


def _client_line(client: Mapping[str, str]) -> str:
    return f"{client['id']} ({client['language']} {client['version']}, {client['protocol']}, {client['address']})"


def delete(target: Target, group: str, force: bool, as_json: bool) -> None:
    """Delete a group with its offsets. Raises CliError."""
    done = run_async(delete_group(target, group, force))
    print_json({"group": group, "done": done}) if as_json else say(done)


def reset(target: Target, group: str, topic: str | None, to: str, confirm: bool, as_json: bool) -> None:
    """Show what a reset skips and repeats, and carry it out with `confirm`. Raises CliError."""
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
