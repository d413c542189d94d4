"""The confirmed tables in `config/*.json`, in RocketMQ's own formats, and back.

`gantryTables.json` is written last. It has the position of all files in the log (`applied`, and the `epoch` at this
position), and the tables for which RocketMQ has no file. So other files are never older than the position. Newer files
do no harm: the records from the position on, applied again, give the same tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from gantry_broker.broker.metadata.tables import Metadata, Tables, offset_key
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import DataVersion, RequestMode, SubscriptionGroup, TopicConfigs
from gantry_broker.protocol.fields import BodyError, Fields
from gantry_broker.store.files import atomic_write
from gantry_broker.store.log.epochs import LeaderEpochs
from gantry_broker.store.sealed import seal, unseal

log = logging.getLogger(__name__)

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAY: Final = "delayOffset.json"
MODES: Final = "messageRequestMode.json"
"""Only RocketMQ 5.x has it: the modes of ours are in `OWN`."""
OWN: Final = "gantryTables.json"
_REQUIRED: Final = {
    TOPICS: "topicConfigTable", GROUPS: "subscriptionGroupTable", OFFSETS: "offsetTable", DELAY: "offsetTable",
    MODES: "messageRequestModeMap", OWN: "applied",
}  # fmt: skip
"""The field that each file has, also one of RocketMQ with an empty table."""
NOT_ALL: Final = -2
"""In place of the epoch: the tables must be rebuilt from the log."""


class Snapshot(NamedTuple):
    """The tables, their position in the log, and the epoch at that position; -1: not known."""

    tables: Tables
    applied: int
    epoch: int


def epoch_before(leader_epochs: LeaderEpochs, applied: int) -> int:
    """Return the epoch of the record before the position `applied`; -1: there is none."""
    return max((e.epoch for e in leader_epochs if e.start < applied), default=-1)


class Frozen(NamedTuple):
    """The confirmed tables of one moment. Another thread may read them while the broker continues, after `settled`."""

    confirmed: Tables
    applied: int

    @classmethod
    def of(cls, meta: Metadata) -> Frozen:
        return cls(meta.confirmed.copy(shared_offsets=True), meta.applied)

    def settled(self) -> Frozen:
        """Return tables whose offsets no one changes any more. In another thread: there may be a million of them.

        An offset may be newer than `applied`: the records from there on, which a start reads again, have it, too.
        """
        tables = self.confirmed
        tables.offsets = {key: dict(queues) for key, queues in tables.offsets.items()}  # each copy is one step
        return self


def render(meta: Metadata | Frozen, leader_epochs: LeaderEpochs) -> dict[str, bytes]:
    """Return the contents of the files, in the order of writing. `leader_epochs`: those of the log."""
    tables = meta.confirmed
    files = {
        TOPICS: fastjson.dumps(tables.configs().to_json()),
        GROUPS: fastjson.dumps(
            {
                "dataVersion": tables.group_version.to_json(),
                "subscriptionGroupTable": {name: group.to_json() for name, group in tables.groups.items()},
            }
        ),
        OFFSETS: fastjson.dumps({"offsetTable": tables.offsets}),
        DELAY: fastjson.dumps({"offsetTable": tables.delay}),
        # Plain JSON is written and read many times as fast as RocketMQ's form, and `ends` names every queue.
        OWN: orjson.dumps(
            {
                "applied": meta.applied,
                "epoch": epoch_before(leader_epochs, meta.applied),
                "timer": tables.timer,
                "timerDone": {bucket: sorted(done) for bucket, done in tables.timer_done.items()},
                "settings": tables.settings,
                "marks": tables.marks,
                "deletionWatermarks": tables.deletion_watermarks,
                "expired": tables.expired,
                "ends": tables.ends,
                "modes": tables.modes,
            },
            option=orjson.OPT_NON_STR_KEYS,
        ),
    }
    return {name: seal(data) for name, data in files.items()}


def write(directory: Path, files: dict[str, bytes]) -> None:
    """Write the files that differ from the disk, and the former content to `.bak` as RocketMQ does. Blocks.

    Raises OSError.
    """
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
    """Read the snapshot; None: there is none, or it cannot be used and the log has all of it. Raises OSError.

    The log has our tables: a damaged or missing file makes the start rebuild them all, since a `.bak` is older than the
    position of the others. A store of RocketMQ has position 0, and its log has no control records: there the `.bak`
    file replaces an unreadable one. If it is unreadable too, the table stays empty, and an error is logged.
    """
    tables = Tables()
    read_names: set[str] = set()
    ours = (directory / OWN).exists()
    for name, read in (
        (TOPICS, read_topics),
        (GROUPS, read_groups),
        (OFFSETS, read_offsets),
        (DELAY, read_delay),
    ):
        if _load(directory, name, lambda value, read=read: read(tables, value), with_bak=not ours):  # type: ignore[misc]
            read_names.add(name)
    if not ours:
        _load(directory, MODES, lambda value: read_modes(tables, value), with_bak=True)
    own = [0, -1]

    def read_own(value: Any) -> None:
        fields = Fields(value, OWN)
        # Without `deletionWatermarks` these tables miss deletions that the log has.
        own[:] = fields.long("applied", 0), fields.long("epoch", -1) if "deletionWatermarks" in value else NOT_ALL
        tables.timer = _numbers(fields, "timer")
        tables.timer_done = {int(k): {int(o) for o in v} for k, v in fields.map("timerDone").items()}
        tables.settings = {str(name): (str(pair[0]), str(pair[1])) for name, pair in fields.map("settings").items()}
        tables.marks = {str(name): str(value) for name, value in fields.map("marks").items()}
        tables.deletion_watermarks = {str(name): int(below) for name, below in fields.map("deletionWatermarks").items()}
        tables.expired = {str(name): int(below) for name, below in fields.map("expired").items()}
        tables.ends = _by_queue(fields, "ends")
        tables.modes = {str(key): (str(pair[0]), int(pair[1])) for key, pair in fields.map("modes").items()}

    if ours and (not _load(directory, OWN, read_own, with_bak=False) or len(read_names) < 4):
        log.error("the snapshots in %s are damaged or incomplete: the tables are rebuilt from the log", directory)
        return Snapshot(Tables(), 0, NOT_ALL)
    usable = bool(read_names) or ours
    return Snapshot(tables, *own) if usable else None


def _load(directory: Path, name: str, read: Callable[[Any], None], *, with_bak: bool) -> bool:
    for path in (directory / name, *([directory / f"{name}.bak"] if with_bak else [])):
        try:
            value = fastjson.loads(unseal(path.read_bytes()))
            if not isinstance(value, dict) or _REQUIRED[name] not in value:
                raise BodyError(f"it has no {_REQUIRED[name]}")  # Not an empty table.
            read(value)
            return True
        except FileNotFoundError:
            continue
        except (fastjson.JsonError, BodyError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            log.error("%s cannot be read: %s", path, error)
    return False


def read_topics(tables: Tables, value: Any) -> None:
    """Take the topics of `topics.json`, which GET_ALL_TOPIC_CONFIG answers, too. Raises BodyError."""
    configs = TopicConfigs.from_json(value, stored=True)
    tables.topics, tables.topic_version = configs.topics, configs.version


def read_groups(tables: Tables, value: Any) -> None:
    """Take the groups of `subscriptionGroup.json`. Raises BodyError."""
    fields = Fields(value, GROUPS)
    groups = [
        SubscriptionGroup.from_json(item, str(name), stored=True)
        for name, item in fields.map("subscriptionGroupTable").items()
    ]
    tables.groups = {group.name: group for group in groups}
    tables.group_version = DataVersion.from_json(fields.map("dataVersion") or None)


def read_offsets(tables: Tables, value: Any) -> None:
    """Take the offsets of `consumerOffset.json`. Raises BodyError, ValueError."""
    tables.offsets = _by_queue(Fields(value, OFFSETS), "offsetTable")


def read_delay(tables: Tables, value: Any) -> None:
    """Take the progress of delays of `delayOffset.json`. Raises BodyError, ValueError."""
    tables.delay = _numbers(Fields(value, DELAY), "offsetTable")


def read_modes(tables: Tables, value: Any) -> None:
    """Take the modes of `messageRequestMode.json`, which GET_ALL_MESSAGE_REQUEST_MODE answers, too. Raises BodyError,
    AttributeError.
    """
    modes = {}
    for groups in Fields(value, MODES).map(_REQUIRED[MODES]).values():
        for item in groups.values():
            mode = RequestMode.from_json(item)
            modes[offset_key(mode.topic, mode.group)] = (mode.mode, mode.share)
    tables.modes = modes


def modes_file(tables: Tables) -> bytes:
    """Return the content of RocketMQ's `messageRequestMode.json`."""
    by_topic: dict[str, dict[str, dict[str, Any]]] = {}
    for key, (mode, share) in tables.modes.items():
        topic, _, group = key.partition("@")
        by_topic.setdefault(topic, {})[group] = RequestMode(topic, group, mode, share).to_json()
    return fastjson.dumps({_REQUIRED[MODES]: by_topic})


def _by_queue(fields: Fields, name: str) -> dict[str, dict[int, int]]:
    return {str(key): {int(q): int(o) for q, o in queues.items()} for key, queues in fields.map(name).items()}


def _numbers(fields: Fields, name: str) -> dict[int, int]:
    return {int(key): int(item) for key, item in fields.map(name).items()}
