"""`gantry rebalance`: spreads the queues of topics evenly over the broker groups, in the safe order."""

from __future__ import annotations

import asyncio
import time

from gantry_broker.client import Admin
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, Perm

from gantry_operator.actions.managed import managed_by
from gantry_operator.actions.target import Target, admin_of
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.target import run_async
from gantry_operator.drain.rebalance import Change, Queues, changes, proposal, surplus_is_empty

POLL_S = 1.0
ROUTES_S = 35.0
"""Seconds until producers have a new route: before that they still send to surplus queues."""

Topics = dict[str, dict[str, TopicConfig]]


def rebalance(
    target: Target, topics: list[str], all_topics: bool, per_group: int | None, dry_run: bool, timeout_s: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the proposal, and carry it out. Raises CliError."""
    if bool(topics) == all_topics:
        raise CliError("name the topics, or write --all", Exit.USAGE)
    managed = run_async(_managed(target, topics))
    if topics and not set(topics) - managed.keys():
        raise CliError("; ".join(_spread_by_resource(name, managed[name]) for name in topics))
    left_out = [name for name in topics if name in managed] or ([] if topics else sorted(managed))
    for name in left_out:
        note(f"left out: {_spread_by_resource(name, managed[name])}")
    chosen = [name for name in topics if name not in managed]
    rows, left = run_async(_run(target, chosen, frozenset(managed), per_group, dry_run, timeout_s))
    if as_json:
        print_json(
            {
                "queues": [
                    {"topic": r.topic, "group": r.group, "write": r.write, "read": r.read, "wanted": r.wanted}
                    for r in rows
                ],
                "managed": left_out,
                "carriedOut": not dry_run,
                "waiting": left,
            }
        )
        return
    _show(rows, dry_run, left)


def _show(rows: list[Queues], dry_run: bool, left: list[str]) -> None:
    print_table(
        ("TOPIC", "GROUP", "QUEUES", "READ", "WANTED"),
        [(row.topic, row.group, row.write, row.read, row.wanted) for row in rows],
    )
    if dry_run:
        moved = sum(not row.settled for row in rows)
        say(f"{moved} of {len(rows)} would change" if moved else "nothing would change")
    for text in left:
        say(f"not empty yet: {text}")
    if left:
        say("these queues take no messages any more; run the command again when consumers have read them")


def _spread_by_resource(topic: str, resource: str) -> str:
    return (
        f"BrokerTopic {resource} spreads {topic} over the groups, and would undo it: change spec.queues or "
        "spec.queuesPerGroup there"
    )


async def _managed(target: Target, names: list[str]) -> dict[str, str]:
    """Topics that resources manage, and the resource of each: of these names, or all."""
    managed = await managed_by(target, "BrokerTopic")
    return {topic: managed.owner(topic) for topic in managed.by_name if not names or topic in names}


async def _run(
    target: Target, names: list[str], managed: frozenset[str], per_group: int | None, dry_run: bool, timeout_s: float
) -> tuple[list[Queues], list[str]]:
    async with admin_of(target, whole=True) as admin:
        masters = await _taking(admin)
        before = await _read(admin, masters, names, managed)
        rows = proposal(before, masters, per_group)
        if dry_run:
            return rows, []
        add, close, _ = changes(before, rows)
        closed_at = time.monotonic()
        for change in [*add, *close]:
            await admin.create_topic_at(masters[change.group], change.config)
        waiting = changes(before, rows)[2]
        deadline = closed_at + timeout_s
        while waiting:
            # A producer may send to a queue until it has the new route.
            if not close or time.monotonic() - closed_at >= ROUTES_S:
                waiting = [change for change in waiting if not await _take(admin, masters[change.group], change)]
            if not waiting or time.monotonic() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        after = await _read(admin, masters, names, managed)
        goals = {(row.topic, row.group): row.wanted for row in rows}
        rows = [
            Queues(topic, group, config.write_queues, config.read_queues, goals[topic, group])
            for topic, configs in sorted(after.items())
            for group, config in sorted(configs.items())
            if (topic, group) in goals
        ]
        return rows, [f"topic {c.config.name} in group {c.group}" for c in waiting]


async def _taking(admin: Admin) -> dict[str, str]:
    """Return the masters of the broker groups that take messages. A group that leaves the cluster takes none."""
    masters = {}
    for group, address in sorted((await admin.masters()).items()):
        info = await admin.runtime_info(address)
        if int(info.get("gantryPermission", Perm.READ | Perm.WRITE)) & Perm.WRITE:
            masters[group] = address
    if not masters:
        raise CliError("no broker group takes messages now: see `gantry status`")
    return masters


async def _read(admin: Admin, masters: dict[str, str], names: list[str], managed: frozenset[str]) -> Topics:
    """Return the chosen topics by group, or all topics of users that no resource manages. One call for each group."""
    configs_of: Topics = {}
    for group, address in masters.items():
        for name, config in (await admin.topic_config(address)).topics.items():
            if name in names or (not names and name not in managed and _of_users(name, masters)):
                configs_of.setdefault(name, {})[group] = config
    missing = sorted(set(names) - configs_of.keys())
    if missing:
        raise CliError(f"there is no topic {', '.join(missing)}: `gantry topic list` shows those that exist")
    clusters = set((await admin.cluster_info()).clusters)
    return {name: configs for name, configs in configs_of.items() if name in names or name not in clusters}


def _of_users(name: str, masters: dict[str, str]) -> bool:
    system = name in SYSTEM_TOPICS or name.startswith((SYSTEM_TOPIC_PREFIX, "%")) or name.endswith("_REPLY_TOPIC")
    return not system and name not in masters


async def _take(admin: Admin, address: str, change: Change) -> bool:
    """Take surplus read queues away, if they are empty."""
    config, group = change.config, change.group
    stats = await admin.topic_stats(config.name)
    ends = {q.queue_id: (o.min_offset, o.max_offset) for q, o in stats.items() if q.broker == group}
    offsets: list[dict[int, int]] = []
    for consumer in await admin.topic_consumers(config.name):
        offsets_of = await admin.consume_stats(consumer, config.name)
        offsets.append({q.queue_id: o.consumer_offset for q, o in offsets_of.items() if q.broker == group})
    if not surplus_is_empty(config, ends, offsets):
        return False
    await admin.create_topic_at(address, config)
    return True
