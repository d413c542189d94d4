"""Topics, groups, offsets, progress of delays and changed settings: a state machine over control records.

A change is a JSON object in a record of the control topic. The leader appends it to the log and applies it to its
*working* view at once. Every member applies it to its *confirmed* view when the record is confirmed, and writes only
that view to `config/*.json`. So a truncation of the log also undoes the changes in it. The log decides the order, so an
older value cannot replace a newer one. All changes are absolute ("this offset is 12"): a stretch of the log, applied
again from any point before its end, gives the same tables.

Control records expire with their segment. The leader therefore writes all tables into the log once in each segment
(`all_changes`). A follower whose log begins there reads them from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gantry_broker.broker.metadata.creation_limits import MAX_OFFSET_QUEUES, MAX_OFFSETS
from gantry_broker.broker.metadata.offset_owners import OffsetOwners
from gantry_broker.protocol.bodies import DataVersion, SubscriptionGroup, TopicConfig, TopicConfigs
from gantry_broker.protocol.codes import RETRY_PREFIX, SYSTEM_TOPICS, Perm
from gantry_broker.protocol.pop_handle import retry_topic_v1, retry_topic_v2

KIND: Final = "meta"
DRAIN: Final = "drain"
"""The mark of a broker group that leaves its cluster: `CLOSING`, then `CLOSED`."""
CLOSING: Final = "closing"
"""Routes show no permission to write, and sends by an older route still succeed."""
CLOSED: Final = "closed"
"""Sends are refused."""
TIMERS_DELIVERED: Final = "timersDelivered"
"""The mark of a group that was migrated: RocketMQ has delivered its timer messages up to this time, in Unix ms."""
RELEASED: Final = "released"
"""The mark of a group that was rolled back: it stays away from the former cluster's NameServers."""
JOINED: Final = "joined"
"""The mark of a broker group that has the topics and groups of its cluster."""
CHUNK: Final = 200
"""Entries of a table in one control record of `all_changes`."""
QUEUES: Final = 4_096
"""Queues in one control record of offsets, those of one pair of topic and group aside."""
_COUNTED: Final = 10_000
"""Queues that may get offsets until all are counted again."""
_REFUSED: Final = 1_000
"""Queues that get no offset, all of them or those of one owner, until all are counted again."""
_MAX_REFUSED: Final = 10_000
"""Owners whose refusals are counted."""

TOPIC_CHANGES: Final = 4_096
"""Changes of topics that a view remembers for registrations."""

Change = dict[str, Any]
Marks = Mapping[str, str]
Offsets = dict[int, int]


def offset_key(topic: str, group: str) -> str:
    """Return RocketMQ's key in `consumerOffset.json`."""
    return f"{topic}@{group}"


def position(offsets: Mapping[int, int], queue: int, low: int, end: int) -> int:
    """Return where a consumer group goes on in a queue: all from there on is unread. This is the one rule for lags.

    `offsets`: committed ones by queue. A queue without an offset counts from its first message: brokers answer 0 for a
    young queue, and so a consumer begins there whatever its `consumeFromWhere` is. An offset outside of the queue
    counts as its nearest end. `low`, `end`: first and next offset of the queue.
    """
    return min(max(offsets.get(queue, low), low), end)


def route_permission(permission: int, marks: Marks) -> int:
    """Return the permission that routes show. `permission`: the setting `brokerPermission`."""
    return permission & ~Perm.WRITE if marks.get(DRAIN) else permission


def takes_sends(permission: int, marks: Marks) -> bool:
    """Return whether producers may send. Retries, delayed messages and decisions of transactions are no sends: they
    belong to messages that the broker has.
    """
    return bool(permission & Perm.WRITE) and marks.get(DRAIN) != CLOSED


@dataclass(slots=True)
class Tables:
    """One view of all metadata.

    - `offsets`: "topic@group" to queue to offset
    - `delay`: level to queue offset
    - `timer`: bucket to queue offset
    - `timer_done`: bucket to the delivered offsets above that
    - `settings`: name to (value, the resource's value at the change), see `live_settings`
    - `deletion_watermarks`: topic to the offset of the log below which its deletion hides records
    - `expired`: topic to the offset of the log below which its retention hides records, see `retention`
    - `marks`: what the control plane noted about the broker group, by name (`DRAIN`, `JOINED`)
    - `ends`: topic to queue to the next queue offset, for queues without records
    - `modes`: "topic@group" to (PULL or POP, queues that members share), as SET_MESSAGE_REQUEST_MODE set them
    """

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroup] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    delay: Offsets = field(default_factory=dict)
    timer: Offsets = field(default_factory=dict)
    timer_done: dict[int, set[int]] = field(default_factory=dict)
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    deletion_watermarks: dict[str, int] = field(default_factory=dict)
    expired: dict[str, int] = field(default_factory=dict)
    ends: dict[str, Offsets] = field(default_factory=dict)
    modes: dict[str, tuple[str, int]] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    topic_version: DataVersion = field(default_factory=DataVersion)
    group_version: DataVersion = field(default_factory=DataVersion)
    topic_changes: deque[tuple[int, tuple[str, ...] | None]] = field(
        default_factory=lambda: deque(maxlen=TOPIC_CHANGES), compare=False
    )
    """The last changes of topics: the counter of `topic_version` after each, and the topics; None: all of them. A copy
    begins without any.
    """

    def topics_since(self, counter: int) -> set[str] | None:
        """Return the topics that changed after `topic_version` had this counter; None: not known, or all of them."""
        changes = self.topic_changes
        if counter == self.topic_version.counter:
            return set()
        if not changes or not changes[0][0] - 1 <= counter < self.topic_version.counter:
            return None
        topics: set[str] = set()
        for number, names in reversed(changes):
            if number <= counter:
                break
            if names is None:
                return None
            topics.update(names)
        return topics

    def copy(self, *, shared_offsets: bool = False) -> Tables:
        """Return a copy. It shares the configurations, because they are replaced as a whole and never changed, and
        with `shared_offsets` the offsets of each pair of topic and group, which still change.
        """
        return Tables(
            dict(self.topics),
            dict(self.groups),
            self.offsets.copy() if shared_offsets else {key: dict(value) for key, value in self.offsets.items()},
            dict(self.delay),
            dict(self.timer),
            {bucket: set(done) for bucket, done in self.timer_done.items()},
            dict(self.settings),
            dict(self.deletion_watermarks),
            dict(self.expired),
            {topic: dict(queues) for topic, queues in self.ends.items()},
            dict(self.modes),
            dict(self.marks),
            self.topic_version,
            self.group_version,
        )

    def apply(self, change: Mapping[str, Any]) -> bool:
        """Apply one change; return True when topics, groups, settings or marks changed. Ignores unknown parts."""
        at = int(change.get("at", 0))
        shaped, grouped = self._apply_topics(change, at), self._apply_groups(change, at)
        self._forget_modes(change.get("dropTopics", ()), change.get("dropGroups", ()))
        for key, (mode, share) in change.get("modes", {}).items():
            self.modes[key] = (mode, share)
        settings_changed = "settings" in change or "dropSettings" in change or "marks" in change
        for name in change.get("dropSettings", ()):
            self.settings.pop(name, None)
        for name, (value, base) in change.get("settings", {}).items():
            self.settings[name] = (value, base)
        for name, value in change.get("marks", {}).items():
            if value:
                self.marks[name] = value
            else:
                self.marks.pop(name, None)
        for key in change.get("dropOffsets", ()):
            self.offsets.pop(key, None)
        for key, queues in change.get("offsets", {}).items():
            committed = self.offsets.setdefault(key, {})
            for queue, offset in queues.items():
                committed[int(queue)] = offset
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

    def _apply_topics(self, change: Mapping[str, Any], at: int) -> bool:
        """Apply what a change says of topics; return True when their shape changed."""
        shaped = False
        for value in change.get("topics", ()):
            topic = TopicConfig.from_json(value, stored=True)
            self.topics[topic.name] = topic
            shaped = True
        for name in change.get("dropTopics", ()):
            shaped = self.topics.pop(name, None) is not None or shaped
            if change.get("dropData", 0) > self.deletion_watermarks.get(name, 0):
                self.deletion_watermarks[name] = change["dropData"]
        for name, below in change.get("expired", {}).items():
            if below > self.expired.get(name, 0):
                self.expired[name] = below
        for name, below in change.get("deleted", {}).items():
            if below > self.deletion_watermarks.get(name, 0):
                self.deletion_watermarks[name] = below
        for name, queues in change.get("ends", {}).items():
            self.ends.setdefault(name, {}).update((int(queue), end) for queue, end in queues.items())
        permission = "brokerPermission"
        if shaped or "marks" in change or permission in (*change.get("settings", ()), *change.get("dropSettings", ())):
            # A NameServer takes topics over only with a new version, also when just their permission differs.
            self.topic_version = self.topic_version.next(at)
            named = [value["topicName"] for value in change.get("topics", ())]
            named += change.get("dropTopics", ())
            permissions = len(named) == 0 or "marks" in change or "settings" in change or "dropSettings" in change
            self.topic_changes.append((self.topic_version.counter, None if permissions else tuple(named)))
        return shaped

    def _apply_groups(self, change: Mapping[str, Any], at: int) -> bool:
        """Apply what a change says of groups; return True when one changed."""
        grouped = False
        for value in change.get("groups", ()):
            group = SubscriptionGroup.from_json(value, stored=True)
            self.groups[group.name] = group
            grouped = True
        for name in change.get("dropGroups", ()):
            grouped = self.groups.pop(name, None) is not None or grouped
        if grouped:
            self.group_version = self.group_version.next(at)
        return grouped

    def _forget_modes(self, topics: Sequence[str], groups: Sequence[str]) -> None:
        """Forgets how the groups of dropped topics, and dropped groups, consume."""
        if self.modes and (topics or groups):
            gone_topics, gone_groups = set(topics), set(groups)
            for key in list(self.modes):
                topic, _, group = key.partition("@")
                if topic in gone_topics or group in gone_groups:
                    del self.modes[key]

    def _forget_done(self, bucket: int, progress: int) -> None:
        """Forgets the offsets below `progress`: all of them are delivered."""
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
        """Yield changes that give these tables when they are applied to empty ones, one after the other.

        The tables may change between two of them: each has the values of the moment in which it is taken, so that a
        change that the log has before it is in it, too.

        It leaves out `ends`: the queues themselves have the current ones.
        """
        for names in _chunks(list(self.topics)):
            yield {"at": now_ms, "topics": [self.topics[name].to_json() for name in names if name in self.topics]}
        for names in _chunks(list(self.groups)):
            yield {"at": now_ms, "groups": [self.groups[name].to_json() for name in names if name in self.groups]}
        for keys in _pairs(list(self.offsets), lambda key: len(self.offsets.get(key, ()))):
            yield {"at": now_ms, "offsets": {k: _text_keys(self.offsets[k]) for k in keys if k in self.offsets}}
        if self.delay or self.timer:
            yield {"at": now_ms, "delay": _text_keys(self.delay), "timer": _text_keys(self.timer)}
        for bucket in list(self.timer_done):
            for offsets in _chunks(sorted(self.timer_done.get(bucket, ()))):
                done = self.timer_done.get(bucket, ())
                yield {"at": now_ms, "timerDone": {str(bucket): [offset for offset in offsets if offset in done]}}
        for keys in _chunks(list(self.modes)):
            yield {"at": now_ms, "modes": {key: list(self.modes[key]) for key in keys if key in self.modes}}
        for names in _chunks(list(self.expired)):
            yield {"at": now_ms, "expired": {name: self.expired[name] for name in names if name in self.expired}}
        marks = self.deletion_watermarks  # The archive has messages of topics whose deletion the log no longer has.
        for names in _chunks(list(marks)):
            yield {"at": now_ms, "deleted": {name: marks[name] for name in names if name in marks}}
        if self.settings:
            yield {"at": now_ms, "settings": {name: list(pair) for name, pair in self.settings.items()}}
        if self.marks:
            yield {"at": now_ms, "marks": dict(self.marks)}

    def configs(self) -> TopicConfigs:
        return TopicConfigs(dict(self.topics), self.topic_version)

    def offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return a committed offset; -1: there is none."""
        return self.offsets.get(offset_key(topic, group), {}).get(queue_id, -1)

    def topics_of_group(self, group: str) -> list[str]:
        tail = "@" + group
        return [key[: -len(tail)] for key in self.offsets if key.endswith(tail)]

    def pairs_in_parts(self) -> Iterator[list[tuple[str, str]]]:
        """Yield the pairs of group and topic with offsets in parts: there may be 200,000, which change meanwhile."""
        for keys in _chunks(list(self.offsets)):
            yield [(group, topic) for topic, _, group in [key.rpartition("@") for key in keys]]

    def old_pop_retries(self, group: str, topic: str) -> str | None:
        """Return `%RETRY%group_topic` if 5.x's POP put retries of this group and topic there; otherwise None.

        The name is also that of the retries of a group `group_topic`, and of every other split at a `_`. It counts as
        this group's if no such group is known, and if this group alone has offsets in it: a broker of 5.x commits one
        when it makes the topic (`PopReviveService.initPopRetryOffset`), and setting one needs rights on the group
        `group_topic`.
        """
        name = retry_topic_v1(group, topic)
        if name not in self.topics:
            return None
        whole = name.removeprefix(RETRY_PREFIX)
        if whole in self.groups or offset_key(name, group) not in self.offsets:
            return None
        ends = [at for at, letter in enumerate(whole) if letter == "_" and at != len(group)]
        if any(offset_key(name, other) in self.offsets for other in (whole, *(whole[:at] for at in ends))):
            return None
        return name

    def is_retry_topic(self, group: str, topic: str) -> bool:
        """Return whether a consumer group's retries are in this topic: those of push consumers, or of POP."""
        if topic == RETRY_PREFIX + group or topic.startswith(retry_topic_v2(group, "")):
            return True
        head = retry_topic_v1(group, "")
        return topic.startswith(head) and self.old_pop_retries(group, topic.removeprefix(head)) == topic

    def groups_of_topic(self, topic: str) -> list[str]:
        head = topic + "@"
        return [key[len(head) :] for key in self.offsets if key.startswith(head)]


def _pairs(keys: list[str], queues: Callable[[str], int]) -> Iterator[list[str]]:
    """Yield pairs of topic and group in parts of at most `CHUNK` pairs and about `QUEUES` queues."""
    part: list[str] = []
    size = 0
    for key in keys:
        more = queues(key)
        if part and (len(part) >= CHUNK or size + more > QUEUES):
            yield part
            part, size = [], 0
        part.append(key)
        size += more
    if part:
        yield part


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def _above(start: int, watermarks: Mapping[str, int]) -> dict[str, int]:
    return {topic: below for topic, below in watermarks.items() if below > start}


def _text_keys(table: Mapping[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in table.items()}


def encode_change(change: Change) -> bytes:
    return orjson.dumps({"kind": KIND, **change})


def decode_change(body: bytes) -> Change | None:
    """Return the change in a control record; None: the record is of another kind (the beginning of an epoch)."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and value.get("kind") == KIND else None


class Metadata:
    """The two views, and the offsets to write. On a follower `working` is `confirmed` itself."""

    def __init__(self, base: Tables) -> None:
        """Begin empty. `base`: the tables of an empty log, with the system topics and groups."""
        self._base = base
        self.confirmed = base.copy()
        self.working = self.confirmed
        self.applied = 0
        """The confirmed view holds every control record below this offset of the log."""
        self.changed = False
        """The confirmed view is newer than its snapshot."""
        self.on_drop: Callable[[str, int], None] = lambda topic, below: None
        """Called when the deletion of a topic, or the end of its records' retention, is confirmed: its records below
        that offset are hidden.
        """
        self.on_ends: Callable[[str, int, int], None] = lambda topic, queue_id, end: None
        """Called with the queue ends of a confirmed record: a queue whose records have expired continues there."""
        self.on_commit: Callable[[str, int, int], None] = lambda key, queue_id, offset: None
        """Called with each committed offset that differs from the last: key of topic and group, queue, offset."""
        self._dirty: dict[str, set[int]] = {}
        self._room = 0
        """Queues that may get offsets before all are counted again."""
        self._free = 0
        """Queues below the limit, as far as they are counted."""
        self._refused: dict[str, int] = {}
        """Owner to queues that get none before all are counted again; "": of all owners."""
        self.offset_owners = OffsetOwners()

    @property
    def leading(self) -> bool:
        return self.working is not self.confirmed

    def load(self, tables: Tables, applied: int) -> None:
        """Start from a snapshot, and add the system topics and groups that it lacks."""
        for name, topic in self._base.topics.items():
            tables.topics.setdefault(name, topic)
        for name, group in self._base.groups.items():
            tables.groups.setdefault(name, group)
        self.confirmed = self.working = tables
        self.applied = applied

    def clear(self) -> None:
        """Forgets everything, because the log was truncated below the snapshot. The caller applies records again."""
        self.confirmed = self.working = self._base.copy()
        self.applied = 0
        self.changed = True
        self._dirty.clear()

    def confirm(self, phys: int, body: bytes) -> bool:
        """Apply the confirmed control record at `phys`.

        Returns True when topics, groups or settings changed in the confirmed view.
        """
        if phys < self.applied:
            return False
        self.applied = phys + 1
        change = decode_change(body)
        if change is None:
            return False
        self.changed = True
        shaped = self.confirmed.apply(change)
        self._report_watermarks((*change.get("dropTopics", ()), *change.get("expired", ()), *change.get("deleted", ())))
        self._report_ends({topic: self.confirmed.ends[topic] for topic in change.get("ends", ())})
        return shaped

    def report(self) -> None:
        """Report all watermarks and queue ends to a newly opened store."""
        self._report_watermarks({**self.confirmed.deletion_watermarks, **self.confirmed.expired})
        self._report_ends(self.confirmed.ends)

    def _report_watermarks(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for table in (self.confirmed.deletion_watermarks, self.confirmed.expired):
                if topic in table:
                    self.on_drop(topic, table[topic])

    def _report_ends(self, ends: Mapping[str, Offsets]) -> None:
        for topic, queues in ends.items():
            for queue, end in queues.items():
                self.on_ends(topic, queue, end)

    def forget_deletions(self, start: int) -> None:
        """Forgets the watermarks at or below `start`, the start of the log."""
        for tables in (self.confirmed, self.working):
            tables.deletion_watermarks = _above(start, tables.deletion_watermarks)
            tables.expired = _above(start, tables.expired)

    def lead(self, tail: Iterable[bytes]) -> None:
        """Take the leader's view: the confirmed one and the control records that are not confirmed yet (`tail`)."""
        self.working = self.confirmed.copy()
        self._dirty.clear()
        self._forget_counts()
        for body in tail:
            change = decode_change(body)
            if change is not None:
                self.working.apply(change)
        # Later records get queue offsets after those that `tail` counts.
        self._report_ends(self.working.ends)

    def follow(self) -> None:
        """Take the follower's view, without unconfirmed changes."""
        self.working = self.confirmed
        self._dirty.clear()
        self._forget_counts()

    def _forget_counts(self) -> None:
        self._room = self._free = 0
        self._refused.clear()
        self.offset_owners.clear()

    def change(self, change: Change, owner: str = "") -> bool:
        """Apply a change that the leader has appended, for whose new offsets `owner` pays; return as `Tables.apply`."""
        for key in change.get("dropOffsets", ()):
            self.offset_owners.forget(key)
            self._free += len(self.working.offsets.get(key, ()))
            self._refused.clear()
        for key, queues in change.get("offsets", {}).items():
            committed = self.working.offsets.get(key, {})
            new = sum(int(queue) not in committed for queue in queues)
            self.offset_owners.pay(key, owner, new)
            self._room, self._free = max(self._room - new, 0), self._free - new
        return self.working.apply(change)

    def commit_offset(self, topic: str, group: str, queue_id: int, offset: int, owner: str = "") -> bool:
        """Note a consumer's progress. The next `take_dirty` returns it for the log. `owner`: the user or address that
        pays for a new queue; empty: nobody. Return False if there is no room for it: a pull that commits beside its own
        work goes on; a request that commits is refused.
        """
        return self.commit_offset_of(offset_key(topic, group), queue_id, offset, owner)

    def commit_offset_of(self, key: str, queue_id: int, offset: int, owner: str = "") -> bool:
        """As `commit_offset`, by the key of topic and group."""
        queues = self.working.offsets.get(key)
        if queues is None:
            if self.no_room_for_offsets((key,), owner=owner):
                return False
            queues = {}
        before = queues.get(queue_id)
        if before != offset:
            if before is None:
                if not self._take_room(key, owner):
                    return False
                self.offset_owners.pay(key, owner)
                if not queues:
                    self.working.offsets[key] = queues
            queues[queue_id] = offset
            dirty = self._dirty.get(key)
            if dirty is None:
                self._dirty[key] = {queue_id}
            else:
                dirty.add(queue_id)
            self.on_commit(key, queue_id, offset)
        return True

    def _take_room(self, key: str, owner: str) -> bool:
        """Return whether one more queue may have an offset. All are counted from time to time only."""
        if self._room > 0 and self._has_share(owner):
            self._room -= 1
            self._free -= 1
            return True
        if key.partition("@")[0] in SYSTEM_TOPICS:
            return True
        for name in {"", owner}:
            if left := self._refused.get(name):
                self._refused[name] = left - 1
                return False
        self._count()
        if self._room > 0 and self._has_share(owner):
            self._room -= 1
            self._free -= 1
            return True
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused["" if self._room <= 0 else owner] = _REFUSED
        return False

    def _has_share(self, owner: str) -> bool:
        return not owner or self.offset_owners.queues.get(owner, 0) < self._free

    def _count(self) -> None:
        self._free = MAX_OFFSET_QUEUES - self._queues_with_offsets()
        self._room = min(self._free, _COUNTED)

    def _queues_with_offsets(self) -> int:
        return sum(map(len, self.working.offsets.values()))

    def no_room_for_offsets(self, keys: Iterable[str], queues: int = 0, owner: str = "") -> str:
        """Return why these pairs of topic and group may not get offsets, of `queues` further queues in all; empty: they
        may. Those of the broker itself always may. `owner`: as in `commit_offset`.
        """
        offsets = self.working.offsets
        if queues:
            self._count()
            own = self.offset_owners.queues.get(owner, 0)
            if queues > self._free:
                have = MAX_OFFSET_QUEUES - self._free
                return f"{have} queues have offsets, {queues} more are asked for, the limit is {MAX_OFFSET_QUEUES}"
            if owner and own + queues > self._free:
                return f"{owner} brought offsets of {own} queues and asks for {queues} more; {self._free} are free"
        if len(offsets) < MAX_OFFSETS // 2:
            return ""
        new = sum(key not in offsets and key.partition("@")[0] not in SYSTEM_TOPICS for key in keys)
        free = MAX_OFFSETS - len(offsets)
        if new > free:
            return f"{len(offsets)} pairs of topic and group have offsets, the limit is {MAX_OFFSETS}: delete some"
        own = self.offset_owners.pairs.get(owner, 0)
        if new and own + new > free:
            return f"{owner} brought offsets of {own} pairs of topic and group, and {free} more have room: delete some"
        return ""

    def take_dirty(self, now_ms: int, most: int | None = None) -> list[Change]:
        """Return the offsets that changed since the last call, those of about `most` queues; None: all."""
        if most is None:
            dirty, self._dirty = self._dirty, {}
            return self._offsets_of(dirty, now_ms)
        dirty = {}
        left = most
        while left > 0 and self._dirty:
            key = next(iter(self._dirty))
            dirty[key] = self._dirty.pop(key)
            left -= len(dirty[key])
        return self._offsets_of(dirty, now_ms)

    def take_dirty_of(self, queues_of: Mapping[str, set[int]], now_ms: int) -> list[Change]:
        """Return the offsets of these queues, by key, that changed since they were last taken."""
        dirty = {}
        for key, queues in queues_of.items():
            changed = self._dirty.get(key, set())
            if taken := changed & queues:
                dirty[key] = taken
                changed -= taken
                if not changed:
                    del self._dirty[key]
        return self._offsets_of(dirty, now_ms)

    def _offsets_of(self, dirty: Mapping[str, set[int]], now_ms: int) -> list[Change]:
        offsets = self.working.offsets
        changes: list[Change] = []
        for keys in _pairs(list(dirty), lambda key: len(dirty[key])):
            part = {key: {str(q): offsets[key][q] for q in dirty[key] if q in offsets.get(key, {})} for key in keys}
            changes.append({"at": now_ms, "offsets": part})
        return changes

    @property
    def has_dirty(self) -> bool:
        """Whether offsets wait to be written."""
        return bool(self._dirty)

    def put_back(self, changes: list[Change]) -> None:
        """Take back changes that the log refused (a full disk)."""
        for change in changes:
            for key, queues in change["offsets"].items():
                self._dirty.setdefault(key, set()).update(int(q) for q in queues)
