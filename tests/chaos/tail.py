"""What `replication: Async` promises of the messages that were SEND_OK, each as a check.

1. What stays, stays where the answer said that it is; order, and nothing twice, as with Sync.
2. Only a failover to another member takes anything: not the master's restart, be it killed or stopped, nor a hand-over.
3. What a failover takes is the newest tail of what the old master had: no record stays that lies behind one that went.
4. What was confirmed stays: all members of the in-sync set had it.

Under which leadership a message was acknowledged is told by its offset if it stayed. One that went was acknowledged by
the leadership that others were which came over the same connection, or else that others were before and after it, or
that alone was seen before and after it: two masters do not have the group's port at the same time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.chaos.history import History, Log, Sent
from tests.chaos.lineage import FAILOVER, HAND_OVER, Lineage


@dataclass
class Tail:
    """SEND_OK that are not in the log at the end."""

    allowed: list[Sent] = field(default_factory=list)
    """The newest tail of a master that was followed by another one after a failure."""
    wrong: list[tuple[Sent, str]] = field(default_factory=list)
    """With what is wrong about it."""


def stayed(sent: Sent, final: Log) -> bool:
    """Where it was said to be."""
    return sent.place is not None and final.bodies.get(sent.place) == sent.body


def judge(history: History, final: Log, lineage: Lineage) -> Tail:
    """Of each that went, whether it may have. Its body may be there all the same, from an earlier try."""
    tail = Tail()
    stored = set(final.bodies.values())
    leaderships = Leaderships(history, final, lineage)
    for sent in history.promised():
        if stayed(sent, final):
            continue
        if sent.body in stored and history.tries[sent.body] < 2:
            continue  # It has moved, which is another finding.
        why = _why_not(history, lineage, sent, leaderships.of(sent))
        if why:
            tail.wrong.append((sent, why))
        elif sent.body not in stored:
            tail.allowed.append(sent)
    return tail


def _why_not(history: History, lineage: Lineage, sent: Sent, epoch: int | None) -> str:
    """Empty: Async allows that it went."""
    if epoch is None:
        unknown = {e for e, _ in lineage.epochs} - set(lineage.changes)
        failed_over = FAILOVER in lineage.changes.values() or len(unknown) > 1
        return "" if failed_over else "and there was no failover"
    if sent.phys < lineage.parts_from(epoch):
        return f"and the log goes on behind it until {lineage.parts_from(epoch)} in the same epoch {epoch}: a hole"
    then = lineage.after(epoch)
    if then is None:
        return f"and the master of epoch {epoch}, which acknowledged it, leads to the end"
    between = {e for e in range(epoch + 1, then) if e in lineage.changes or e in history.leaders}
    kinds = {lineage.changes.get(e, FAILOVER) for e in (*between, then)}
    if FAILOVER not in kinds:
        return f"and epoch {epoch} was followed by {' and '.join(sorted(kinds))}, which loses nothing"
    return ""


def confirmed_undone(history: History, lineage: Lineage) -> Iterator[str]:
    """What a master said to be confirmed is in the log at the end."""
    told = set()
    for seen in history.rounds:
        for name, epoch, confirmed in seen.leaders:
            left = lineage.parts_from(epoch)
            if confirmed > left and (name, epoch) not in told:
                told.add((name, epoch))
                yield f"UNDONE: {name} had confirmed {confirmed} in epoch {epoch}, which the log leaves at {left}"


class Leaderships:
    """Finds out which epoch acknowledged what is not there any more."""

    def __init__(self, history: History, final: Log, lineage: Lineage) -> None:
        self._lineage = lineage
        there = [s for s in history.promised() if stayed(s, final)]
        self._by_end = sorted((s.ended, lineage.at(s.phys)) for s in there)
        self._by_begin = sorted((s.began, lineage.at(s.phys)) for s in there)
        self._via: dict[int, set[int]] = {}
        for sent in there:
            if sent.via:
                self._via.setdefault(sent.via, set()).add(lineage.at(sent.phys))
        rounds = [(r.began, r.ended, r.leaders[0].epoch) for r in history.rounds if len(r.leaders) == 1]
        self._seen_end = [(ended, epoch) for _, ended, epoch in rounds]
        self._seen_begin = [(began, epoch) for began, _, epoch in rounds]

    def of(self, sent: Sent) -> int | None:
        over = self._via.get(sent.via, set())
        if len(over) == 1:
            epoch = next(iter(over))
            then = self._lineage.after(epoch)
            # A master that handed over forwards what still comes, and the answers come from it.
            forwarded = then is not None and self._lineage.changes.get(then) == HAND_OVER
            if not forwarded or sent.phys < self._lineage.parts_from(epoch):
                return epoch
        around = _around(self._by_end, self._by_begin, sent)
        return around if around is not None else _around(self._seen_end, self._seen_begin, sent)


def _around(ended: list[tuple[float, int]], began: list[tuple[float, int]], sent: Sent) -> int | None:
    """The epoch of the last that was over before and of the first that began after, if they have the same."""
    before = bisect_left(ended, (sent.began, -1))
    after = bisect_right(began, (sent.ended, 1 << 62))
    if before == 0 or after == len(began) or ended[before - 1][1] != began[after][1]:
        return None
    return began[after][1]
