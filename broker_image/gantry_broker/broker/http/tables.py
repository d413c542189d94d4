"""GET /v1/tables: topics, groups, offsets and clients of a broker in one answer, for pages about a whole cluster.

A page of 10,000 topics needs one request and not one per row. All values come from tables that exist. Only the age of
unread messages needs the log: one small read for each topic and group that lags, the oldest of its queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gantry_broker.broker.http.rocketmq_metrics import Parts as MetricParts
from gantry_broker.broker.http.rocketmq_metrics import StoreTimes, is_system_group, lags, queue_progress, version_name
from gantry_broker.broker.metadata.attributes import is_compacted
from gantry_broker.broker.metadata.topics import is_system_topic
from gantry_broker.protocol.codes import PREDEFINED_GROUPS

if TYPE_CHECKING:
    from gantry_broker.broker.clients import Client
    from gantry_broker.broker.compaction import Compaction
    from gantry_broker.broker.metadata.tables import Tables


class Parts(MetricParts, Protocol):
    """What these functions use of a member."""

    started_ms: int
    compaction: Compaction


async def broker_tables(broker: Parts, times: StoreTimes, *, ages: bool = True) -> dict[str, Any]:
    """Return the tables. Works in slices: there may be very many topics and groups.

    `ages` False: without the ages of unread messages, which no one asked for.

    `compaction`, of a compacted topic: records and bytes that compaction has looked at, and those that it keeps.

    `settled`: a leader that knows how far its log is confirmed; until then the ends of queues may be too low. `config`:
    of topics and groups, as RocketMQ's protocol has it; a group without one has offsets only. `topics`: queues as
    [first offset, next offset]; `in`: messages of producers since the start of the process. `lags`: by topic and group,
    queues as [queue, next offset of the queue, position of the group]. Over HTTP it has `undelivered` as well.
    """
    tables = broker.meta.working
    topics = await _topics(broker, tables)
    unread, omitted = await lags(broker, times) if ages else ([], 0)
    progress = await _progress(broker, tables, {(lag.topic, lag.group): lag.unread_ms for lag in unread})
    return {
        "now_ms": broker.clock.unix_ms(),
        "started_ms": broker.started_ms,
        "group": broker.config.own_group,
        "settled": broker.role.leading and broker.role.epoch_confirmed,
        "topics": topics,
        "groups": await _groups(broker, tables, (str(row["group"]) for row in progress)),
        "lags": progress,
        "lags_without_age": omitted,
        "consumers": await _consumers(broker),
        "producers": {
            name: _clients(connections.values())
            async for name, connections in broker.slices.sliced(list(broker.clients.producers.items()))
        },
    }


async def _topics(broker: Parts, tables: Tables) -> dict[str, Any]:
    stats = broker.stats
    topics: dict[str, Any] = {}
    async for name, config in broker.slices.sliced(list(tables.topics.items())):
        topics[name] = {
            "perm": config.perm,
            "write_queues": config.write_queues,
            "config": config.to_json(),
            # Each broker has a topic of its own name and one of the cluster's.
            "system": is_system_topic(name) or name in (broker.config.group, broker.config.cluster),
            "in": stats.total("TOPIC_PUT_NUMS", name),
            "bytes_in": stats.total("TOPIC_PUT_SIZE", name),
            **({"compaction": broker.compaction.saved(name)._asdict()} if is_compacted(config.attributes) else {}),
            "queues": [list(broker.archive_reads.bounds(name, q)) for q in range(config.read_queues)],
        }
    return topics


async def _progress(
    broker: Parts, tables: Tables, unread_ms: Mapping[tuple[str, str], int | None]
) -> list[dict[str, Any]]:
    progress = []
    async for key, offsets in broker.slices.sliced(list(tables.offsets.items())):
        topic, _, group = key.rpartition("@")
        rows = [[queue, end, committed] for queue, end, committed, _ in queue_progress(broker, key, offsets)]
        if rows:
            progress.append({
                "topic": topic, "group": group, "queues": rows, "oldest_unread_ms": unread_ms.get((topic, group)),
                "out": broker.stats.total("GROUP_GET_NUMS", key),
            })  # fmt: skip
    return progress


async def _groups(broker: Parts, tables: Tables, with_offsets: Iterable[str]) -> dict[str, Any]:
    groups: dict[str, Any] = {}
    async for name in broker.slices.sliced([*tables.groups, *with_offsets]):
        config = tables.groups.get(name)
        groups[name] = {"system": is_system_group(name) or name in PREDEFINED_GROUPS} | (
            {} if config is None else {"config": config.to_json()}
        )
    return groups


async def _consumers(broker: Parts) -> dict[str, Any]:
    """Return the groups with connected consumers, those of proxies too."""
    consumers: dict[str, Any] = {}
    async for members in broker.slices.sliced(list(broker.clients.consumers.values())):
        consumers[members.name] = {
            "model": members.message_model,
            "subscriptions": {topic: sub.data.expression for topic, sub in list(members.subscriptions.items())},
            "clients": _clients(members.clients.values()),
            "inconsistent": members.inconsistent,
        }
    async for name in broker.slices.sliced(broker.clients.proxied.groups()):
        for client in broker.clients.proxied.of_group(name):
            group = consumers.setdefault(
                name, {"model": "CLUSTERING", "subscriptions": {}, "clients": [], "inconsistent": False}
            )
            group["subscriptions"] = client.topics | group["subscriptions"]
            group["clients"].append({
                "id": client.client_id, "address": client.address, "language": client.language,
                "version": client.version,
            })  # fmt: skip
    return consumers


def _clients(clients: Iterable[Client]) -> list[dict[str, str]]:
    return [
        {"id": c.client_id, "address": c.address, "language": c.language, "version": version_name(c.version)}
        for c in list(clients)
    ]
