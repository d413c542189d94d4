"""A real broker group whose old messages are in its archive only."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gantry_broker.client import Admin
from gantry_broker.config import ArchiveConfig
from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.message import tags_hash
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.archive.s3 import S3Server
from tests.support.broker_group import Group, MakeGroup, until

SEGMENT = 1 << 20
TOPIC = "Old"
QUEUES = 2
COUNT = 3_000
HOUR_MS = 3_600_000
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 20_000,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "fileReservedTime": 1,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
}
HOST = b"\x7f\0\0\1\0\0\0\1"


def body(number: int) -> bytes:
    """The body of a message, in the form by which the driver of the official clients recognizes its own."""
    return b"r#%d#" % number + b"x" * 1_000


def fill(folder: Path) -> int:
    """Write messages that were stored some hours ago, and return the store time of the first (ms)."""
    begun = int(time.time() * 1000) - 10 * HOUR_MS
    store = MessageStore.open(StoreConfig(folder, BrokerSettings.model_validate(SETTINGS)))
    store.appender.begin_epoch(1, b'{"kind":"epoch","epoch":1}', begun)
    store.indexer.confirm(store.log.end)
    for first in range(0, COUNT, 100):
        puts = []
        for number in range(first, first + 100):
            properties = f"KEYS\x01key{number}\x02TAGS\x01t{number % 2}\x02UNIQ_KEY\x01unique{number}".encode()
            put = Put(TOPIC, number % QUEUES, 0, 0, begun + number, HOST, body(number), properties)
            put.tags_hash, put.keys = tags_hash(f"t{number % 2}"), (f"unique{number}", f"key{number}")
            puts.append(put)
        store.appender.put(puts, begun + number)
        store.indexer.confirm(store.log.end)
    store.close()
    return begun


async def old_group(
    make_group: MakeGroup,
    server: S3Server,
    folder: Path,
    bucket: str,
    members: int = 1,
    *,
    port: int = 0,
    **options: Any,
) -> tuple[Group, int]:
    """Start a group and wait until most of its messages are in the archive only. Returns it and the first store time.

    `port`: where the object store is reached; 0: its own.
    """  # fmt: skip
    begun = fill(folder / "m0")
    archive = ArchiveConfig(
        url=server.bucket(bucket), endpoint=f"http://127.0.0.1:{port or server.port}", uid="u-1", interval_s=1,
        credentials=server.credentials(folder / "keys"),
    )  # fmt: skip
    options["settings"] = {**SETTINGS, **options.get("settings", {})}
    group = await make_group(members, archive=archive, **options)
    if options.get("mode") != "Raft":  # Which elects its leader.
        group.leadership = LeadershipRecord(epoch=1)
        await group.lead(0)
        if members > 1:
            await group.all_in_sync()
    await group.registered()
    return group, begun


async def wait_until_old(group: Group, admin: Admin) -> None:
    """Wait until retention has removed what is archived, and each member knows that."""

    async def removed() -> bool:
        for member in group.members:
            await admin.ask(member.address, RequestCode.DELETE_EXPIRED_COMMITLOG)
        statuses = [await member.status() for member in group.members]
        starts = [status.start for status in statuses]
        reads = [status.archive.reads_to if status.archive is not None else 0 for status in statuses]
        return all(start >= 2 * SEGMENT and to >= start for start, to in zip(starts, reads, strict=True))

    await until(removed, "the first segments are in the archive only", 90)
