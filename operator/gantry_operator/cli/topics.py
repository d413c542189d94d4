"""`gantry topic create` and `gantry topic list`."""

from __future__ import annotations

import asyncio
from typing import Any

from gantry_broker.client import Admin, BrokerError, InvalidMessage
from gantry_broker.protocol.codes import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from gantry_broker.remoting.errors import RemotingError

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import console, print_json
from gantry_operator.cli.target import Target, run_async


def create(target: Target, topic: str, queues: int, as_json: bool) -> None:
    """Create or change a topic. Raises CliError."""
    groups = run_async(create_topic(target, topic, queues))
    if as_json:
        print_json({"topic": topic, "queues": queues, "groups": groups})
    else:
        print(f"{topic}: {queues} queues in {', '.join(groups)}")


async def create_topic(target: Target, topic: str, queues: int) -> list[str]:
    async with target.clients() as (servers, key, tls), Admin(servers, credentials=key, tls=tls) as admin:
        groups = sorted(await admin.masters())
        if not groups:
            raise CliError("no group has a master now: see `gantry status`")
        try:
            await admin.create_topic(topic, queues=queues)
        except InvalidMessage as error:
            raise CliError(str(error), Exit.USAGE) from None
        return groups


def show(target: Target, all_topics: bool, as_json: bool) -> None:
    """List topics. Raises CliError."""
    rows = run_async(_list(target, all_topics))
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("TOPIC", "QUEUES", "MESSAGES", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(row["topic"], str(row["queues"]), str(row["messages"]))
    console().print(table)


async def _list(target: Target, all_topics: bool) -> list[dict[str, Any]]:
    async with target.clients() as (servers, key, tls), Admin(servers, credentials=key, tls=tls) as admin:
        names = sorted(await admin.topics())
        info = await admin.cluster_info()
        own = set(info.brokers) | set(info.clusters) | {f"{c}_REPLY_TOPIC" for c in info.clusters}
        if not all_topics:
            names = [
                n for n in names
                if n not in SYSTEM_TOPICS and n not in own and not n.startswith((SYSTEM_TOPIC_PREFIX, "%"))
            ]  # fmt: skip
        return list(await asyncio.gather(*(_row(admin, n) for n in names)))


async def _row(admin: Admin, topic: str) -> dict[str, Any]:
    """Topics that a NameServer knows, but no broker holds (any more), have no queues."""
    try:
        table = await admin.topic_stats(topic)
    except (BrokerError, RemotingError):
        return {"topic": topic, "queues": 0, "messages": 0}
    return {
        "topic": topic,
        "queues": len(table),
        "messages": sum(o.max_offset - o.min_offset for o in table.values()),
    }
