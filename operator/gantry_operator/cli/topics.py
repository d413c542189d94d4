"""`gantry topic`: the topics of a cluster, those of resources and all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gantry_broker.broker.metadata.attributes import CLEANUP, RETENTION, TOMBSTONES

from gantry_operator.actions.managed import condition
from gantry_operator.actions.target import Target
from gantry_operator.actions.topics import (
    change_topic,
    compact_topic,
    create_topic,
    delete_topic,
    describe_topic,
    list_topics,
)
from gantry_operator.api.topic import CLEANUP_VALUES, MESSAGE_TYPE
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import print_json, print_table, say
from gantry_operator.cli.target import run_async
from gantry_operator.cluster.amounts import size

NONE: Final = "none"
"""The value of an option that removes a setting."""
OPTIONS: Final = {
    MESSAGE_TYPE: "--type FIFO",
    RETENTION: "--retention 7d",
    TOMBSTONES: "`gantry topic compact TOPIC --tombstones 24h`",
}
"""What to write in place of attributes that have an option."""


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
    given = {
        "queuesPerGroup": queues, "queues": total, "permission": permission, "messageType": kind,
        "retention": retention,
    }  # fmt: skip
    settings: dict[str, Any] = {k: None if v == NONE else v for k, v in given.items() if v is not None}
    for text in attributes:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CliError(f"--attribute {text!r}: write name=value, or name= to remove it", Exit.USAGE)
        if name in OPTIONS:
            raise CliError(f"--attribute {text!r}: write {OPTIONS[name]}", Exit.USAGE)
        if name == CLEANUP:
            policies = {v: k for k, v in CLEANUP_VALUES.items()}
            if value not in policies:
                raise CliError(f"--attribute {text!r}: write {CLEANUP}={' or '.join(sorted(policies))}", Exit.USAGE)
            settings["cleanupPolicy"] = policies[value]
        else:
            settings.setdefault("config", {})[name] = value or None
    return settings


def create(target: Target, topic: str, settings: dict[str, Any], managed: bool, as_json: bool) -> None:
    """Create or change a topic. Raises CliError."""
    groups = run_async(create_topic(target, topic, settings, managed))
    if as_json:
        print_json({"topic": topic, "queues": settings["queuesPerGroup"], "groups": groups})
    else:
        say(f"{topic}: {settings['queuesPerGroup']} queues in {', '.join(groups)}")


def change(target: Target, topic: str, settings: dict[str, Any], as_json: bool) -> None:
    """Change a topic that exists, or its resource. Raises CliError."""
    if not settings:
        raise CliError("nothing to change: write an option, as --queues 16 or --retention 7d", Exit.USAGE)
    done = run_async(change_topic(target, topic, settings))
    print_json({"topic": topic, "done": done}) if as_json else say(done)


def show(target: Target, all_topics: bool, as_json: bool) -> None:
    """List topics. Raises CliError."""
    rows = run_async(list_topics(target, all_topics))
    if as_json:
        print_json(rows)
        return
    print_table(
        ("TOPIC", "QUEUES", "MESSAGES", "RESOURCE", "READY"),
        [(row["topic"], row["queues"], row["messages"], row["resource"] or "-", row["ready"]) for row in rows],
    )


def describe(target: Target, topic: str, as_json: bool) -> None:
    """Everything about one topic. Raises CliError."""
    described = run_async(describe_topic(target, topic, saved=True))
    if as_json:
        print_json(described)
        return
    say(f"topic      {topic}")
    say(f"attributes {', '.join(f'{k}={v}' for k, v in described['attributes'].items()) or '-'}")
    say(f"consumers  {', '.join(described['consumers']) or '-'}")
    if described["compaction"] is not None:
        say(f"compaction {_saved(described['compaction'])}")
    resource = described["resource"]
    if resource:
        say(f"resource   BrokerTopic {resource['metadata']['name']}")
        for kind in ("Ready", "Synced"):
            state = condition(resource, kind)
            say(f"  {kind:<8} {state.get('status', 'Unknown')}: {state.get('message') or state.get('reason', '')}")
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


def compact(target: Target, topic: str, tombstones: str, off: bool, as_json: bool) -> None:
    """Turn compaction of a topic on or off. Raises CliError."""
    groups = run_async(compact_topic(target, topic, tombstones, off))
    if as_json:
        print_json({"topic": topic, "compacted": not off, "groups": groups})
    elif off:
        say(f"{topic} is compacted no more in {', '.join(groups)}: its messages leave with the log")
    else:
        say(f"{topic} is compacted in {', '.join(groups)}: the newest message of each key stays")


def delete(target: Target, topic: str, force: bool, as_json: bool) -> None:
    """Delete a topic. Raises CliError."""
    done = run_async(delete_topic(target, topic, force))
    print_json({"topic": topic, "done": done}) if as_json else say(done)
