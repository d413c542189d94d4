"""Topics, groups, offsets, delays' progress and changed settings: a state machine over control records.

A change is a JSON object in a record of the control topic. The master appends it to the log and applies it to its
*working* view at once; every member applies it to its *confirmed* view when the record is confirmed, and only that
view is written to `config/*.json`. So what is cut from the log is cut from the tables too, and an older value cannot
replace a newer one: the log's order decides. All changes are absolute ("this offset is 12"), so applying a stretch
of the log again from any point before its end gives the same tables.

Control records expire with their segment. The master therefore writes all tables into the log once per segment
(`all_changes`), and a follower that starts an empty log learns them from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from gantry_broker.protocol.bodies import DataVersion, SubscriptionGroup, TopicConfig, TopicConfigs

KIND: Final = "meta"
CHUNK: Final = 500
"""Entries of a table in one control record of `all_changes`."""

Change = dict[str, Any]
Offsets = dict[int, int]


def offset_key(topic: str, group: str) -> str:
    """RocketMQ's key of `consumerOffset.json`."""
    return f"{topic}@{group}"


@dataclass(slots=True)
class Tables:
    """One view of all metadata. `offsets`: "topic@group" to queue to offset; `delay`: level to queue offset;
    `timer`: bucket to queue offset; `timer_done`: bucket to what was delivered above that; `settings`: name to (value,
    what the resource said then), see `live_settings`; `deletion_watermarks`: topic to the offset of the log below which
    its deletion hides records; `ends`: topic to queue to the next queue offset, for queues without records."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroup] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    delay: Offsets = field(default_factory=dict)
    timer: Offsets = field(default_factory=dict)
    timer_done: dict[int, set[int]] = field(default_factory=dict)
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    deletion_watermarks: dict[str, int] = field(default_factory=dict)
    ends: dict[str, Offsets] = field(default_factory=dict)
    topic_version: DataVersion = field(default_factory=DataVersion)
    group_version: DataVersion = field(default_factory=DataVersion)

    def copy(self) -> Tables:
        """Configurations are replaced as a whole, never changed in place, so they are shared."""
        return Tables(
            dict(self.topics),
            dict(self.groups),
            {key: dict(value) for key, value in self.offsets.items()},
            dict(self.delay),
            dict(self.timer),
            {bucket: set(done) for bucket, done in self.timer_done.items()},
            dict(self.settings),
            dict(self.deletion_watermarks),
            {topic: dict(queues) for topic, queues in self.ends.items()},
            self.topic_version,
            self.group_version,
        )

    def apply(self, change: Mapping[str, Any]) -> bool:
        """Applies one change; True: topics, groups or settings changed. Parts it does not know are left alone."""
        at = int(change.get("at", 0))
        shaped = False
        for value in change.get("topics", ()):
            topic = TopicConfig.from_json(value)
            self.topics[topic.name] = topic
            shaped = True
        for name in change.get("dropTopics", ()):
            shaped = self.topics.pop(name, None) is not None or shaped
            if change.get("dropData", 0) > self.deletion_watermarks.get(name, 0):
                self.deletion_watermarks[name] = change["dropData"]
        for name, queues in change.get("ends", {}).items():
            self.ends.setdefault(name, {}).update((int(queue), end) for queue, end in queues.items())
        if shaped:
            self.topic_version = self.topic_version.next(at)
        grouped = False
        for value in change.get("groups", ()):
            group = SubscriptionGroup.from_json(value)
            self.groups[group.name] = group
            grouped = True
        for name in change.get("dropGroups", ()):
            grouped = self.groups.pop(name, None) is not None or grouped
        if grouped:
            self.group_version = self.group_version.next(at)
        settings_changed = "settings" in change or "dropSettings" in change
        for name in change.get("dropSettings", ()):
            self.settings.pop(name, None)
        for name, (value, base) in change.get("settings", {}).items():
            self.settings[name] = (value, base)
        for key in change.get("dropOffsets", ()):
            self.offsets.pop(key, None)
        for key, queues in change.get("offsets", {}).items():
            known = self.offsets.setdefault(key, {})
            for queue, offset in queues.items():
                known[int(queue)] = offset
        for bucket, delivered in change.get("timerDone", {}).items():
            self.timer_done.setdefault(int(bucket), set()).update(delivered)
        for bucket, offset in change.get("timer", {}).items():
            self._forget_done(int(bucket), offset)
        for table, name in ((self.delay, "delay"), (self.timer, "timer")):
            for queue, offset in change.get(name, {}).items():
                if offset < 0:
                    table.pop(int(queue), None)
                else:
                    table[int(queue)] = offset
        return shaped or grouped or settings_changed

    def _forget_done(self, bucket: int, progress: int) -> None:
        """Everything below `progress` was delivered, and need not be named any more."""
        done = self.timer_done.get(bucket)
        if done is None:
            return
        if 0 <= progress - self.timer.get(bucket, 0) <= len(done):
            done.difference_update(range(self.timer.get(bucket, 0), progress))
        else:
            done = self.timer_done[bucket] = {offset for offset in done if 0 <= progress <= offset}
        if not done:
            del self.timer_done[bucket]

    def all_changes(self, now_ms: int) -> Iterator[Change]:
        """Changes that, applied to empty tables, give these.

        `ends` and `deletion_watermarks` are left out: the queues know their ends better, and the log still has a
        deletion where it matters.
        """
        for part in _chunks(list(self.topics.values())):
            yield {"at": now_ms, "topics": [t.to_json() for t in part]}
        for groups in _chunks(list(self.groups.values())):
            yield {"at": now_ms, "groups": [g.to_json() for g in groups]}
        for keys in _chunks(list(self.offsets)):
            yield {"at": now_ms, "offsets": {k: _text_keys(self.offsets[k]) for k in keys}}
        if self.delay or self.timer:
            yield {"at": now_ms, "delay": _text_keys(self.delay), "timer": _text_keys(self.timer)}
        for bucket, done in self.timer_done.items():
            for offsets in _chunks(sorted(done)):
                yield {"at": now_ms, "timerDone": {str(bucket): offsets}}
        if self.settings:
            yield {"at": now_ms, "settings": {name: list(pair) for name, pair in self.settings.items()}}

    def configs(self) -> TopicConfigs:
        return TopicConfigs(dict(self.topics), self.topic_version)

    def offset(self, topic: str, group: str, queue_id: int) -> int:
        """-1: never committed."""
        return self.offsets.get(offset_key(topic, group), {}).get(queue_id, -1)

    def topics_of_group(self, group: str) -> list[str]:
        tail = "@" + group
        return [key[: -len(tail)] for key in self.offsets if key.endswith(tail)]

    def topics_of_groups(self) -> dict[str, list[str]]:
        """`topics_of_group` of all groups, in one pass: there may be thousands."""
        found: dict[str, list[str]] = {}
        for key in self.offsets:
            topic, _, group = key.rpartition("@")
            found.setdefault(group, []).append(topic)
        return found

    def groups_of_topic(self, topic: str) -> list[str]:
        head = topic + "@"
        return [key[len(head) :] for key in self.offsets if key.startswith(head)]


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def _text_keys(table: Mapping[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in table.items()}


def encode_change(change: Change) -> bytes:
    return orjson.dumps({"kind": KIND, **change})


def decode_change(body: bytes) -> Change | None:
    """None: another kind of control record (the beginning of an epoch)."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and value.get("kind") == KIND else None


class Metadata:
    """The two views, and what must still be written. `working` is `confirmed` itself on a member that only follows."""

    def __init__(self, base: Tables) -> None:
        """`base`: what exists without any record, the system topics and groups."""
        self._base = base
        self.confirmed = base.copy()
        self.working = self.confirmed
        self.applied = 0
        """The confirmed view holds every control record below this offset of the log."""
        self.changed = False
        """The confirmed view is newer than its snapshot."""
        self.on_drop: Callable[[str, int], None] = lambda topic, below: None
        """Called when the deletion of a topic is confirmed: its records below that offset are shown no more."""
        self.on_ends: Callable[[str, int, int], None] = lambda topic, queue_id, end: None
        """Called with queue ends that a confirmed record tells: where a queue goes on whose records have expired."""
        self._dirty: dict[str, set[int]] = {}

    @property
    def leading(self) -> bool:
        return self.working is not self.confirmed

    def load(self, tables: Tables, applied: int) -> None:
        """Starts from a snapshot: what it lacks of the system's own is added."""
        for name, topic in self._base.topics.items():
            tables.topics.setdefault(name, topic)
        for name, group in self._base.groups.items():
            tables.groups.setdefault(name, group)
        self.confirmed = self.working = tables
        self.applied = applied

    def clear(self) -> None:
        """Forgets everything, because the log was truncated below the snapshot; the records are applied again."""
        self.confirmed = self.working = self._base.copy()
        self.applied = 0
        self.changed = True
        self._dirty.clear()

    def confirm(self, phys: int, body: bytes) -> bool:
        """A control record at `phys` was confirmed; True: topics, groups or settings changed in the confirmed view."""
        if phys < self.applied:
            return False
        self.applied = phys + 1
        change = decode_change(body)
        if change is None:
            return False
        self.changed = True
        shaped = self.confirmed.apply(change)
        self._report_watermarks(change.get("dropTopics", ()))
        self._report_ends({topic: self.confirmed.ends[topic] for topic in change.get("ends", ())})
        return shaped

    def report(self) -> None:
        """Reports all that is known of queues to a store that was opened just now."""
        self._report_watermarks(self.confirmed.deletion_watermarks)
        self._report_ends(self.confirmed.ends)

    def _report_watermarks(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if topic in self.confirmed.deletion_watermarks:
                self.on_drop(topic, self.confirmed.deletion_watermarks[topic])

    def _report_ends(self, ends: Mapping[str, Offsets]) -> None:
        for topic, queues in ends.items():
            for queue, end in queues.items():
                self.on_ends(topic, queue, end)

    def forget_deletions(self, start: int) -> None:
        """Forgets the watermarks at or below `start`, the begin of the log."""
        for tables in (self.confirmed, self.working):
            tables.deletion_watermarks = {
                topic: below for topic, below in tables.deletion_watermarks.items() if below > start
            }

    def lead(self, tail: Iterable[bytes]) -> None:
        """Becomes master: the working view is the confirmed one and the control records not yet confirmed (`tail`)."""
        self.working = self.confirmed.copy()
        self._dirty.clear()
        for body in tail:
            change = decode_change(body)
            if change is not None:
                self.working.apply(change)
        # Records that are given numbers from now on come after those that `tail` counts.
        self._report_ends(self.working.ends)

    def follow(self) -> None:
        """Is no longer master: what was not confirmed is undone."""
        self.working = self.confirmed
        self._dirty.clear()

    def commit_offset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """A consumer's progress; written to the log with the next `take_dirty`."""
        key = offset_key(topic, group)
        queues = self.working.offsets.setdefault(key, {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._dirty.setdefault(key, set()).add(queue_id)

    def take_dirty(self, now_ms: int, most: int | None = None) -> list[Change]:
        """The offsets that changed since the last call, of at most so many pairs of topic and group; None: all."""
        dirty = self._dirty
        if most is None or len(dirty) <= most:
            self._dirty = {}
        else:
            dirty = {key: self._dirty.pop(key) for key in list(islice(self._dirty, most))}
        offsets = self.working.offsets
        changes: list[Change] = []
        for keys in _chunks(list(dirty)):
            part = {key: {str(q): offsets[key][q] for q in dirty[key] if q in offsets.get(key, {})} for key in keys}
            changes.append({"at": now_ms, "offsets": part})
        return changes

    @property
    def has_dirty(self) -> bool:
        """Whether offsets still have to be written."""
        return bool(self._dirty)

    def put_back(self, changes: list[Change]) -> None:
        """Keeps changes to be written that the log refused (a full disk)."""
        for change in changes:
            for key, queues in change["offsets"].items():
                self._dirty.setdefault(key, set()).update(int(q) for q in queues)
