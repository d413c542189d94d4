"""The promises of `replication: Async` for messages with SEND_OK, each as a check.

1. A message that stays is at the place in its answer. Order, and no duplicates, as with Sync.
2. Only a failover to another member loses messages: not a restart of the master, by kill or stop, and not a handover.
3. A failover loses the newest tail of the old master: no record stays behind a lost record.
4. A confirmed message stays: all members of the in-sync set had it.

The offset of a message that stayed gives the leadership that acknowledged it. For a lost message, the other messages of
its connection give the leadership, or else the messages before and after it, or the only leadership that was seen
before and after it: two masters do not have the group's port at the same time.
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
    """Losses of the newest tail of a master, after a failover to another member."""
    wrong: list[tuple[Sent, str]] = field(default_factory=list)
    """All other losses, each with the reason."""


def stayed(sent: Sent, final: Log) -> bool:
    """Whether the message is at the place in its answer."""
    return sent.place is not None and final.bodies.get(sent.place) == sent.body


def judge(history: History, final: Log, lineage: Lineage) -> Tail:
    """Decide for each lost message whether Async allows the loss. Its body may still be in the log, from an earlier
    try.
    """
    tail = Tail()
    stored = set(final.bodies.values())
    leaderships = Leaderships(history, final, lineage)
    for sent in history.promised():
        if stayed(sent, final):
            continue
        if sent.body in stored and history.tries[sent.body] < 2:
            continue  # The message has moved, which is another finding.
        why = _why_not(history, lineage, sent, leaderships.of(sent))
        if why:
            tail.wrong.append((sent, why))
        elif sent.body not in stored:
            tail.allowed.append(sent)
    return tail


def _why_not(history: History, lineage: Lineage, sent: Sent, epoch: int | None) -> str:
    """Empty: Async allows the loss; otherwise the reason."""
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
    """Offsets that a master reported as confirmed and that the log at the end does not have."""
    reported = set()
    for seen in history.rounds:
        for name, epoch, confirmed in seen.leaders:
            left = lineage.parts_from(epoch)
            if confirmed > left and (name, epoch) not in reported:
                reported.add((name, epoch))
                yield f"UNDONE: {name} had confirmed {confirmed} in epoch {epoch}, which the log leaves at {left}"


class Leaderships:
    """Finds the epoch that acknowledged a lost message."""

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
            # A master that handed over forwards late sends, and returns the answers.
            forwarded = then is not None and self._lineage.changes.get(then) == HAND_OVER
            if not forwarded or sent.phys < self._lineage.parts_from(epoch):
                return epoch
        around = _around(self._by_end, self._by_begin, sent)
        return around if around is not None else _around(self._seen_end, self._seen_begin, sent)


def _around(ended: list[tuple[float, int]], began: list[tuple[float, int]], sent: Sent) -> int | None:
    """The epoch of the last send before and of the first send after, if both have the same."""
    before = bisect_left(ended, (sent.began, -1))
    after = bisect_right(began, (sent.ended, 1 << 62))
    if before == 0 or after == len(began) or ended[before - 1][1] != began[after][1]:
        return None
    return began[after][1]
