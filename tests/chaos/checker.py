"""Checks a whole history against the logs of all members at the end, and returns the faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from tests.chaos.history import History, Log, Sent
from tests.chaos.lineage import Lineage
from tests.chaos.pops import check_pops
from tests.chaos.tail import Leaderships, confirmed_undone, judge, stayed

SHOWN = 5
"""This many findings of one kind are written out."""


def check(
    history: History, logs: Mapping[str, Log], leader: str, lineage: Lineage | None = None, *, clocks_agree: bool = True
) -> list[str]:
    """Return the faults in words; an empty list means none. `logs` is by member; `leader` leads at the end.
    `lineage`: given with replication Async, which promises less (`tail`). `clocks_agree`: no clock was changed.
    """
    final = logs[leader]
    kinds = (
        *(_promised(history, final) if lineage is None else _promised_by_async(history, final, lineage)),
        _once(history, final),
        _nothing_undone(history, final),
        _every_group_saw_it(history, final),
        *(check_pops(history, final, clocks_agree=clocks_agree) if lineage is None else ()),
        _logs_agree(logs, leader),
        _one_leader_an_epoch(history),
    )
    return list(chain.from_iterable(_some(found) for found in kinds))


def _promised(history: History, final: Log) -> tuple[Iterator[str], ...]:
    return _promised_is_there(history, final), _in_order(history.promised())


def _promised_by_async(history: History, final: Log, lineage: Lineage) -> tuple[Iterator[str], ...]:
    """Records may be lost, and later records may reuse their offsets. Order holds for the records that stayed, and for
    the records of one connection under one leadership. A connection alone does not suffice: a former leader forwards
    its writes, and may lead again.
    """
    kept = [s for s in history.promised() if stayed(s, final)]
    leaderships = Leaderships(history, final, lineage)
    masters: dict[tuple[int, int], list[Sent]] = {}
    for sent in history.promised():
        epoch = lineage.at(sent.phys) if stayed(sent, final) else leaderships.of(sent)
        if sent.via and epoch is not None:
            masters.setdefault((sent.via, epoch), []).append(sent)
    went = judge(history, final, lineage).wrong
    lost = (f"LOST: {sent.body!r} was SEND_OK at {sent.place}, offset {sent.phys}, {why}" for sent, why in went)
    moved = _moved(history, final, tries=2)  # Of several copies, the acknowledged one may be lost.
    orders = chain.from_iterable(_in_order(sends) for sends in (kept, *masters.values()))
    return lost, moved, orders, confirmed_undone(history, lineage)


def _some(found: Iterator[str]) -> list[str]:
    listed = list(found)
    more = [f"... and {len(listed) - SHOWN} more of this kind"] if len(listed) > SHOWN else []
    return listed[:SHOWN] + more


def missing(history: History, final: Log) -> list[Sent]:
    """Messages with SEND_OK that are not in the log."""
    stored = set(final.bodies.values())
    return [sent for sent in history.promised() if sent.body not in stored]


def _promised_is_there(history: History, final: Log) -> Iterator[str]:
    """Every message with SEND_OK is in the log, at the place in the answer."""
    for sent in missing(history, final):
        yield f"LOST: {sent.body!r} was SEND_OK at {sent.place} and is not in the log"
    yield from _moved(history, final)


def _moved(history: History, final: Log, tries: float = float("inf")) -> Iterator[str]:
    """Messages with fewer copies than `tries` that are in the log at another place than the answer said."""
    stored = set(final.bodies.values())
    for sent in history.promised():
        if sent.body in stored and not stayed(sent, final) and history.tries[sent.body] < tries:
            there = None if sent.place is None else final.bodies.get(sent.place)
            yield f"MOVED: {sent.body!r} was SEND_OK at {sent.place}, where now {there!r} is"


def _in_order(sends: list[Sent]) -> Iterator[str]:
    """A send that began after an acknowledgement for the same queue comes after the acknowledged message."""
    queues: dict[int, list[Sent]] = {}
    for sent in sends:
        if sent.place is not None:
            queues.setdefault(sent.place.queue, []).append(sent)
    for of_queue in queues.values():
        by_end = sorted(of_queue, key=lambda s: s.ended)
        done, last = 0, None
        for sent in sorted(of_queue, key=lambda s: s.began):
            while by_end[done].ended < sent.began:
                if last is None or _offset(by_end[done]) > _offset(last):
                    last = by_end[done]
                done += 1
            if last is not None and _offset(sent) <= _offset(last):
                yield f"OUT OF ORDER: {sent.body!r} at {sent.place} was sent after {last.body!r} at {last.place}"


def _offset(sent: Sent) -> int:
    assert sent.place is not None
    return sent.place.offset


def _once(history: History, final: Log) -> Iterator[str]:
    """No message has more copies than sends, every message was sent, and queues have no holes."""
    for body, times in Counter(final.bodies.values()).items():
        if body not in history.sent:
            yield f"MADE UP: {body!r} is in the log, and no client sent it"
        elif times > history.tries[body]:
            yield f"TWICE: {body!r} is in the log {times} times and was sent {history.tries[body]} times"
    held = Counter(place.queue for place in final.bodies)
    for queue, end in final.ends.items():
        if held[queue] != end:
            yield f"HOLE: queue {queue} ends at {end} and has {held[queue]} messages"


def _nothing_undone(history: History, final: Log) -> Iterator[str]:
    """Every message that a reader got is in the log at that place, and each place showed one message only."""
    for place, bodies in history.shown.items():
        for body, reader in bodies.items():
            if final.bodies.get(place) != body:
                yield f"UNDONE: {reader} was shown {body!r} at {place}, where now {final.bodies.get(place)!r} is"
    for queue, (end, reader) in history.ends.items():
        if end > final.ends.get(queue, 0):
            yield f"UNDONE: {reader} read that queue {queue} ends at {end}; it ends at {final.ends.get(queue, 0)}"


def _every_group_saw_it(history: History, final: Log) -> Iterator[str]:
    for group, seen in history.consumed.items():
        for queue, end in final.ends.items():
            missed = sorted(p for p, body in final.bodies.items() if p.queue == queue and body not in seen)
            if missed:
                yield (f"UNSEEN: group {group} never saw {len(missed)} messages of queue {queue}, which ends at {end}; "
                       f"the first is {final.bodies[missed[0]]!r} at {missed[0].offset}")  # fmt: skip


def _logs_agree(logs: Mapping[str, Log], leader: str) -> Iterator[str]:
    for name, log in logs.items():
        if log == logs[leader]:
            continue
        for place in sorted(set(log.bodies) | set(logs[leader].bodies)):
            mine, its = log.bodies.get(place), logs[leader].bodies.get(place)
            if mine != its:
                yield f"LOGS DIFFER: {name} has {mine!r} at {place}, {leader} has {its!r}"
        if log.ends != logs[leader].ends:
            yield f"LOGS DIFFER: {name} ends at {log.ends}, {leader} at {logs[leader].ends}"


def _one_leader_an_epoch(history: History) -> Iterator[str]:
    for epoch, names in history.leaders.items():
        if len(names) > 1:
            yield f"TWO LEADERS: epoch {epoch} was led by {', '.join(sorted(names))}"
