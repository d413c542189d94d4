"""The confirmed tables in `config/*.json`, in RocketMQ's own formats, and back.

`gantryTables.json` is written last: it holds how far the others are in the log (`applied`, and of which `epoch` it is
there) and what RocketMQ has no file for. Older files beside a newer position cannot be, and newer files beside an older
position do no harm: applying the records from there again gives the same tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from gantry_broker.broker.metadata.tables import Metadata, Tables
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BodyError, DataVersion, Fields, SubscriptionGroup, TopicConfigs
from gantry_broker.store.files import atomic_write
from gantry_broker.store.log.epochs import LeaderEpochs

log = logging.getLogger(__name__)

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAY: Final = "delayOffset.json"
OWN: Final = "gantryTables.json"
NOT_ALL: Final = -2
"""In place of the epoch, when the tables must be rebuilt from the log."""


class Snapshot(NamedTuple):
    """The tables, the position in the log that they are at, and the epoch in which that was written; -1: not known."""

    tables: Tables
    applied: int
    epoch: int


def epoch_before(leader_epochs: LeaderEpochs, applied: int) -> int:
    """The epoch in force below the position `applied`; -1: there is none."""
    return max((e.epoch for e in leader_epochs if e.start < applied), default=-1)


class Frozen(NamedTuple):
    """The confirmed tables of one moment, which another thread may read while the broker goes on."""

    confirmed: Tables
    applied: int

    @classmethod
    def of(cls, meta: Metadata) -> Frozen:
        return cls(meta.confirmed.copy(), meta.applied)


def render(meta: Metadata | Frozen, leader_epochs: LeaderEpochs) -> dict[str, bytes]:
    """The files' contents, in the order in which they are to be written. `history`: that of the log."""
    tables = meta.confirmed
    return {
        TOPICS: fastjson.dumps(tables.configs().to_json()),
        GROUPS: fastjson.dumps(
            {
                "dataVersion": tables.group_version.to_json(),
                "subscriptionGroupTable": {name: group.to_json() for name, group in tables.groups.items()},
            }
        ),
        OFFSETS: fastjson.dumps({"offsetTable": tables.offsets}),
        DELAY: fastjson.dumps({"offsetTable": tables.delay}),
        # Plain JSON, which is written and read many times as fast as RocketMQ's: `ends` names every queue.
        OWN: orjson.dumps(
            {
                "applied": meta.applied,
                "epoch": epoch_before(leader_epochs, meta.applied),
                "timer": tables.timer,
                "timerDone": {bucket: sorted(done) for bucket, done in tables.timer_done.items()},
                "settings": tables.settings,
                "deletionWatermarks": tables.deletion_watermarks,
                "ends": tables.ends,
            },
            option=orjson.OPT_NON_STR_KEYS,
        ),
    }


def write(directory: Path, files: dict[str, bytes]) -> None:
    """Writes what differs from the disk, the former content to `.bak` as RocketMQ does. Blocks. Raises OSError."""
    for name, data in files.items():
        path = directory / name
        try:
            before: bytes | None = path.read_bytes()
        except FileNotFoundError:
            before = None
        if before == data:
            continue
        if before is not None:
            atomic_write(path.with_name(name + ".bak"), before, durable=False)
        atomic_write(path, data)


def load(directory: Path) -> Snapshot | None:
    """None: there is no snapshot. Raises OSError.

    A file that cannot be read is replaced by its `.bak`; with neither, that table is empty, which is said in the log.
    A store of RocketMQ has no position: 0, and nothing of ours is in its log.
    """
    tables = Tables()
    found = False
    for name, read in (
        (TOPICS, _read_topics),
        (GROUPS, _read_groups),
        (OFFSETS, _read_offsets),
        (DELAY, _read_delay),
    ):
        found = _load(directory, name, lambda value, read=read: read(tables, value)) or found  # type: ignore[misc]
    own = [0, -1]

    def read_own(value: Any) -> None:
        fields = Fields(value, OWN)
        # Without `deletionWatermarks` these tables miss deletions that the log has.
        own[:] = fields.number("applied", 0), fields.number("epoch", -1) if "deletionWatermarks" in value else NOT_ALL
        tables.timer = _numbers(fields, "timer")
        tables.timer_done = {int(k): {int(o) for o in v} for k, v in fields.map("timerDone").items()}
        tables.settings = {str(name): (str(pair[0]), str(pair[1])) for name, pair in fields.map("settings").items()}
        tables.deletion_watermarks = {str(name): int(below) for name, below in fields.map("deletionWatermarks").items()}
        tables.ends = _by_queue(fields, "ends")

    found = _load(directory, OWN, read_own) or found
    return Snapshot(tables, *own) if found else None


def _load(directory: Path, name: str, read: Callable[[Any], None]) -> bool:
    for path in (directory / name, directory / f"{name}.bak"):
        try:
            read(fastjson.loads(path.read_bytes()))
            return True
        except FileNotFoundError:
            continue
        except (fastjson.JsonError, BodyError, ValueError) as error:
            log.error("%s cannot be read: %s", path, error)
    return False


def _read_topics(tables: Tables, value: Any) -> None:
    configs = TopicConfigs.from_json(value)
    tables.topics, tables.topic_version = configs.topics, configs.version


def _read_groups(tables: Tables, value: Any) -> None:
    fields = Fields(value, GROUPS)
    groups = [
        SubscriptionGroup.from_json(item, str(name)) for name, item in fields.map("subscriptionGroupTable").items()
    ]
    tables.groups = {group.name: group for group in groups}
    tables.group_version = DataVersion.from_json(fields.map("dataVersion") or None)


def _read_offsets(tables: Tables, value: Any) -> None:
    tables.offsets = _by_queue(Fields(value, OFFSETS), "offsetTable")


def _read_delay(tables: Tables, value: Any) -> None:
    tables.delay = _numbers(Fields(value, DELAY), "offsetTable")


def _by_queue(fields: Fields, name: str) -> dict[str, dict[int, int]]:
    return {str(key): {int(q): int(o) for q, o in queues.items()} for key, queues in fields.map(name).items()}


def _numbers(fields: Fields, name: str) -> dict[int, int]:
    return {int(key): int(item) for key, item in fields.map(name).items()}
