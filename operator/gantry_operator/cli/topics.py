"""`gantry topic`: the topics of a cluster, those of resources and all others."""

from __future__ import annotations

from gantry_operator.actions.managed import condition
from gantry_operator.actions.target import Target
from gantry_operator.actions.topics import compact_topic, create_topic, delete_topic, describe_topic, list_topics
from gantry_operator.cli.output import print_json, print_table, say
from gantry_operator.cli.target import run_async


def create(target: Target, topic: str, queues: int, managed: bool, as_json: bool) -> None:
    """Create or change a topic. Raises CliError."""
    groups = run_async(create_topic(target, topic, queues, managed))
    if as_json:
        print_json({"topic": topic, "queues": queues, "groups": groups})
    else:
        say(f"{topic}: {queues} queues in {', '.join(groups)}")


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
    found = run_async(describe_topic(target, topic))
    if as_json:
        print_json(found)
        return
    say(f"topic      {topic}")
    say(f"attributes {', '.join(f'{k}={v}' for k, v in found['attributes'].items()) or '-'}")
    say(f"consumers  {', '.join(found['consumers']) or '-'}")
    resource = found["resource"]
    if resource:
        say(f"resource   BrokerTopic {resource['metadata']['name']}")
        for kind in ("Ready", "Synced"):
            state = condition(resource, kind)
            say(f"  {kind:<8} {state.get('status', 'Unknown')}: {state.get('message') or state.get('reason', '')}")
    print_table(
        ("GROUP", "WRITE QUEUES", "READ QUEUES", "PERMISSION", "MESSAGES"),
        [[row[k] for k in ("group", "writeQueues", "readQueues", "permission", "messages")] for row in found["groups"]],
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
    said = run_async(delete_topic(target, topic, force))
    print_json({"topic": topic, "done": said}) if as_json else say(said)
