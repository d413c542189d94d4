"""What a migration would bring, from what the source says: what comes, what comes changed, what does not, what stops
it. `findings` is pure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.migration.guarding import ENABLED, REFUSED
from gantry_broker.broker.migration.pops import REVIVE_GROUP, revive_topics
from gantry_broker.broker.migration.source import Look, Source, guarded
from gantry_broker.protocol.codes import (
    DLQ_PREFIX,
    ORDER_TOPIC_NAMESPACE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
)
from gantry_broker.settings import BrokerSettings

from gantry_operator.cluster.amounts import duration, size
from gantry_operator.migration import users as users_of
from gantry_operator.migration.cutover_edge import FAILURES, SourcePlace, settings_in
from gantry_operator.migration.cutover_steps import altered

HALF_GROUP: Final = "CID_RMQ_SYS_TRANS"
BYTES_S: Final = 50e6
"""Bytes a second that a copy is expected to take, for the expected time."""
OTHER_HANDSHAKE: Final = ("V5_0_", "V5_1_0")
"""Versions whose controller mode has another handshake. Source: `AutoSwitchHAClient` of 5.0.0, 5.1.0 and 5.1.1."""
Kind = Literal["comes", "changed", "missing", "refused"]


class Finding(NamedTuple):
    """One item."""

    kind: Kind
    item: str
    amount: str
    note: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the source of one group."""

    look: Look
    tables: Tables
    timers_ms: int | None
    """None: it has no timer."""
    bounds: Mapping[str, Mapping[int, tuple[int, int]]]
    """By topic and queue: the first and the next queue offset, of the topics in which messages wait."""
    ordered: int
    """Topics with an order configuration in the NameServer's KV table."""
    ha_problem: str
    """Why the HA port cannot be reached; empty: it can."""
    users: users_of.Found | None = field(default_factory=users_of.Found)
    """None: it does not give them."""


def findings(
    facts: Facts, settings: BrokerSettings, authentication: str | None, *, dropped: bool = False
) -> list[Finding]:
    """All items of one group. `settings`, `authentication`: those of the new brokers. `dropped`: the manifest drops the
    source's access control.
    """
    look, tables = facts.look, facts.tables
    config = look.settings
    lines = [
        Finding("comes", "log", size(look.end - look.start), f"about {duration((look.end - look.start) / BYTES_S)}"),
        Finding("comes", "topics", str(len(tables.topics)), "with attributes, retries and dead letters: "
                f"{_count(tables, RETRY_PREFIX)} and {_count(tables, DLQ_PREFIX)}"),
        Finding("comes", "consumer groups", str(len(tables.groups)), f"{len(tables.offsets)} pairs of topic and group"),
    ]  # fmt: skip
    delayed = _waiting(facts, SCHEDULE_TOPIC, {level - 1: offset for level, offset in tables.delay.items()})
    lines.append(Finding("comes", "delayed by level", delayed, "those of the last second may come again"))
    if facts.timers_ms is not None:
        lines.append(Finding("comes", "timer messages", "in the log", "those of the last ten seconds may come again"))
    half = {0: tables.offset(TRANS_HALF_TOPIC, HALF_GROUP, 0)}
    lines.append(Finding("comes", "half messages", _waiting(facts, TRANS_HALF_TOPIC, half), "they are checked again"))
    for topic in revive_topics(tables.topics):
        read = {queue: tables.offset(topic, REVIVE_GROUP, queue) for queue in facts.bounds.get(topic, {})}
        lines.append(Finding("changed", "POP in flight", _waiting(facts, topic, read), "records; what is open "
                             "comes again, with all behind it"))  # fmt: skip
    if facts.ordered:
        lines.append(
            Finding(
                "comes",
                "order configuration",
                str(facts.ordered),
                "kept up to date until the cutover",
            )
        )
    if guarded(config):
        lines += _users(facts.users)
        if authentication != ENABLED:
            note = "dropAccessControl: everybody may do everything after the cutover" if dropped else REFUSED
            lines.append(Finding("changed" if dropped else "refused", "signatures", authentication or "-", note))
    if config.get("messageStorePlugIn"):
        lines.append(
            Finding("missing", "tiered storage", "-", f"only the local log comes: {config['messageStorePlugIn']}")
        )
    if config.get("enableLmq") == "true" or config.get("enableMultiDispatch") == "true":
        lines.append(Finding("missing", "light queues (%LMQ%)", "-", "their messages come as those of their topics"))
    if look.controlled and not look.version.startswith(OTHER_HANDSHAKE):
        lines.append(
            Finding(
                "comes", "controller mode", "-", "as a learner: the copy has what each broker of the SyncStateSet has"
            )
        )
    levels = config.get("messageDelayLevel", settings.messageDelayLevel)
    if levels != settings.messageDelayLevel:
        lines.append(Finding("changed", "delay levels", "-", f"write spec.broker.messageDelayLevel: {levels}"))
    return [*lines, *_refusals(facts, settings)]


def _users(read: users_of.Found | None) -> list[Finding]:
    if read is None:
        return [Finding("missing", "users and rules", "-", "the source does not give them: gantry user import")]
    return [
        Finding("changed", "users and rules", str(len(read.users)), "gantry migrate users creates them"),
        *(Finding("missing", f"user {name}", "-", why) for name, why in sorted(read.left_out.items())),
        *(Finding("missing", "of users", "-", text) for text in read.notes),
    ]


def _refusals(facts: Facts, settings: BrokerSettings) -> list[Finding]:
    look, lines = facts.look, list[Finding]()
    if (
        look.settings.get("transRocksDBEnable") == "true"
        and look.settings.get("transWriteOriginTransHalfEnable") != "true"
    ):
        lines.append(
            Finding(
                "refused", "half messages", "-", "they are in RocksDB only (transRocksDBEnable), where no copy finds "
                "them: set transWriteOriginTransHalfEnable=true (mqadmin updateBrokerConfig), and wait until those "
                "that wait now are checked",
            )
        )  # fmt: skip
    if not look.version.startswith(("V4_9_", "V5_")):
        lines.append(Finding("refused", "version", look.version or "?", "4.9 and 5.x are followed"))
    if look.controlled and look.version.startswith(OTHER_HANDSHAKE):
        lines.append(
            Finding(
                "refused",
                "controller mode",
                look.version,
                "5.1.1 and later are followed: gantry migrate start --by messages",
            )
        )
    settings_now = settings_in(look.settings)
    is_known = None not in (settings_now.permission, settings_now.broker_id, settings_now.refuses)
    if is_known and (problem := altered(settings_now)):
        lines.append(Finding("refused", "settings", str(settings_now.permission), problem))
    if facts.ha_problem:
        lines.append(Finding("refused", "HA port", f"{look.ha[0]}:{look.ha[1]}", facts.ha_problem))
    if look.segment_size != settings.mappedFileSizeCommitLog:
        lines.append(
            Finding("refused", "segments", str(settings.mappedFileSizeCommitLog),
                    f"write spec.broker.mappedFileSizeCommitLog: {look.segment_size}, as the source has it")
        )  # fmt: skip
    return lines


def _count(tables: Tables, prefix: str) -> int:
    return sum(name.startswith(prefix) for name in tables.topics)


def _waiting(facts: Facts, topic: str, read: Mapping[int, int]) -> str:
    """How many records of a topic wait; a dash where it is not known."""
    queues = facts.bounds.get(topic)
    if queues is None:
        return "-"
    return str(sum(max(end - max(read.get(queue, 0), low), 0) for queue, (low, end) in queues.items()))


async def ask(place: SourcePlace, broker: str, cluster: str | None) -> Facts:
    """Ask the source of one group. Raises MigrationError, SourceBroken."""
    source = Source(list(place.name_servers), broker, cluster=cluster, credentials=place.credentials, tls=place.tls)
    async with source:
        look = await source.look()
        tables = await source.tables(look.address)
        timers = await source.timers_delivered_ms(look.address)
        bounds: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in (SCHEDULE_TOPIC, TRANS_HALF_TOPIC, *revive_topics(tables.topics)):
            with contextlib.suppress(MigrationError):
                bounds[topic] = await source.bounds(look.address, topic)
        users = None
        with contextlib.suppress(MigrationError):
            users = await users_of.ask(source, look.address, look.settings)
        ordered = 0
        with contextlib.suppress(*FAILURES):
            ordered = len(await source.admin.kv_table(ORDER_TOPIC_NAMESPACE))
    problem = ""
    try:
        async with asyncio.timeout(3):
            _, writer = await asyncio.open_connection(*look.ha)
            writer.close()
    except (OSError, TimeoutError) as error:
        problem = f"it cannot be reached: {error or 'no answer'}"
    return Facts(look, tables, timers, bounds, ordered, problem, users)


async def brokers_of(place: SourcePlace) -> Sequence[str]:
    """Return the names of the source's brokers. Raises MigrationError."""
    source = Source(list(place.name_servers), "", credentials=place.credentials, tls=place.tls)
    async with source:
        try:
            return sorted((await source.admin.cluster_info()).brokers)
        except FAILURES as error:
            raise MigrationError(f"the source's NameServers do not answer: {error}") from error
