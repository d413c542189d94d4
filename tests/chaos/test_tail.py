"""What replication: Async promises, by histories that keep it and histories that break it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from gantry_broker.protocol.message import MAGIC_BLANK, decode_record, encode_record
from gantry_broker.store.log.epochs import EPOCH_PROPERTY

from tests.chaos.checker import check
from tests.chaos.history import History, Led, Log, Place, Round, Sent
from tests.chaos.lineage import FAILOVER, HAND_OVER, RESTART, Lineage, changes_in, epochs_in
from tests.chaos.run import turn
from tests.chaos.tail import judge

SIZE = 100
"""Bytes of a record."""


@dataclass
class Story:
    """Twelve messages on one queue, one after the other. Epoch 1 acknowledged 0 to 7; epoch 2 began at 500 and has 8 to
    11, which lie behind its control record. 5, 6 and 7 went with the failover."""

    history: History
    logs: dict[str, Log]
    lineage: Lineage

    @property
    def findings(self) -> list[str]:
        return check(self.history, self.logs, "b", self.lineage)

    def sent(self, number: int) -> Sent:
        return self.history.sent[b"m%d" % number]

    def went(self) -> set[bytes]:
        return {s.body for s in judge(self.history, self.logs["b"], self.lineage).allowed}

    def forget(self, number: int, behind: bool = True) -> None:
        """It is in nobody's log; what lies behind it moves up or leaves a hole."""
        for log in self.logs.values():
            place = next(p for p, body in log.bodies.items() if body == b"m%d" % number)
            del log.bodies[place]
            log.ends[0] -= behind
        self.history.consumed["g"].pop(b"m%d" % number, None)
        self.history.shown = {p: b for p, b in self.history.shown.items() if b"m%d" % number not in b}


def story() -> Story:
    history, bodies = History(), {}
    for number in range(12):
        first = number < 8
        body, place = b"m%d" % number, Place(0, number if first else number - 3)
        phys = SIZE * number if first else 600 + SIZE * (number - 8)
        history.sent[body] = Sent(body, float(number), number + 0.5, "SEND_OK", place, phys, 1 if first else 2)
        history.tries[body] = 1
        if not 5 <= number <= 7:
            bodies[place] = body
            history.show(place, body, "slave")
    history.consumed = {"g": Counter(bodies.values())}
    history.leaders = {1: {"a"}, 2: {"b"}}
    history.rounds = [
        Round(-1.0, -0.9, (Led("a", 1, 0),)),
        Round(4.6, 4.7, (Led("a", 1, 450),)),
        Round(7.6, 7.7, ()),
        Round(8.6, 8.7, (Led("b", 2, 700),)),
        Round(11.6, 11.7, (Led("b", 2, 1000),)),
    ]
    lineage = Lineage(((1, 0), (2, 500)), 1000, {2: FAILOVER})
    return Story(history, {name: Log(dict(bodies), {0: 9}) for name in "abc"}, lineage)


def test_the_newest_tail_may_go_with_a_failover() -> None:
    told = story()
    assert told.findings == []
    assert told.went() == {b"m5", b"m6", b"m7"}


def test_a_former_master_forwards_over_the_connection_on_which_it_is_master_again() -> None:
    """Later messages reuse the successor's offsets, and all answers came over one connection."""
    told = story()
    for sent in told.history.sent.values():
        told.history.sent[sent.body] = replace(sent, via=1)
    assert told.findings == []
    assert told.went() == {b"m5", b"m6", b"m7"}


def test_nothing_need_go() -> None:
    told = story()
    for number in (5, 6, 7):
        del told.history.sent[b"m%d" % number]
    assert told.findings == []
    assert told.went() == set()


def test_a_whole_leadership_may_go_that_nobody_else_has_heard_of() -> None:
    told = story()
    told.lineage = Lineage(((1, 0), (4, 500)), 1000, {2: RESTART, 3: FAILOVER, 4: RESTART})
    told.history.leaders = {1: {"a"}, 2: {"a"}, 4: {"b"}}
    told.history.rounds = []
    assert told.findings == []


def test_what_an_earlier_try_left_is_not_lost_with_the_one_that_was_acknowledged() -> None:
    told = story()
    for log in told.logs.values():
        log.bodies[Place(0, 9)] = b"m6"
        log.ends[0] = 10
    told.history.consumed["g"][b"m6"] += 1
    assert told.findings == [f"MOVED: b'm6' was SEND_OK at {Place(0, 6)}, where now {b'm9'!r} is"]
    told.history.tries[b"m6"] = 2
    assert told.findings == []
    assert told.went() == {b"m5", b"m7"}


def test_what_an_old_master_forwards_after_it_handed_over_goes_with_the_new_one() -> None:
    """All of it came over one connection, and nothing that was forwarded is left to tell by."""
    told = story()
    told.lineage = Lineage(((1, 0), (2, 450), (3, 500)), 1000, {2: HAND_OVER, 3: FAILOVER})
    told.history.leaders = {1: {"a"}, 2: {"c"}, 3: {"b"}}
    told.history.rounds = []
    assert told.findings == []


def hole(told: Story) -> None:
    told.forget(2)


def hole_of_another_connection(told: Story) -> None:
    """Nothing else that came over its connection is left: it is told by what was before and after it."""
    told.sent(2).via = 7
    told.forget(2)


def hole_that_was_closed(told: Story) -> None:
    """Its place has another message, and so on until the end."""
    for log in told.logs.values():
        bodies = [log.bodies[Place(0, offset)] for offset in range(9) if offset != 2]
        log.bodies.clear()
        log.bodies.update({Place(0, offset): body for offset, body in enumerate(bodies)})
        log.ends[0] = 8
    told.history.shown = {}


def without_a_failover(told: Story) -> None:
    told.lineage = replace(told.lineage, changes={2: RESTART})


def by_a_hand_over(told: Story) -> None:
    told.lineage = replace(told.lineage, changes={2: HAND_OVER})
    for number in (5, 6, 7):
        told.sent(number).via = 0
    told.history.rounds[2] = Round(7.6, 7.7, (Led("a", 1, 450),))


def by_nobody(told: Story) -> None:
    """The last ones, though nobody took over afterwards."""
    told.forget(11)


def without_any_change(told: Story) -> None:
    told.lineage = Lineage(((1, 0),), 500)
    told.history.leaders = {1: {"a"}}
    for number in range(8, 12):
        told.forget(number)
        del told.history.sent[b"m%d" % number]
    told.history.rounds = []


def nobody_knows_when(told: Story) -> None:
    """Over a connection of its own, and between two leaderships; but no leadership ended by a failover."""
    told.sent(7).via = 9
    told.history.rounds = []
    told.lineage = replace(told.lineage, changes={2: RESTART})


def confirmed(told: Story) -> None:
    told.history.rounds.insert(2, Round(6.6, 6.7, (Led("a", 1, 600),)))


def confirmed_by_one_who_is_forgotten(told: Story) -> None:
    told.history.rounds.insert(3, Round(7.8, 7.9, (Led("c", 2, 900),)))
    told.lineage = Lineage(((1, 0), (3, 500)), 1000, {2: FAILOVER, 3: FAILOVER})


def shown(told: Story) -> None:
    told.history.show(Place(0, 5), b"m5", "g")


def told_of(told: Story) -> None:
    told.history.told_end(0, 10, "a")


def twice(told: Story) -> None:
    for log in told.logs.values():
        log.bodies[Place(0, 9)] = b"m1"
        log.ends[0] = 10


def out_of_order(told: Story) -> None:
    told.sent(0).began, told.sent(0).ended = 20.0, 21.0


def out_of_order_in_the_tail(told: Story) -> None:
    """One master gave two that went the wrong places."""
    told.sent(5).place, told.sent(6).place = told.sent(6).place, told.sent(5).place


def moved(told: Story) -> None:
    for log in told.logs.values():
        log.bodies[Place(0, 0)], log.bodies[Place(0, 1)] = log.bodies[Place(0, 1)], log.bodies[Place(0, 0)]


def unseen(told: Story) -> None:
    del told.history.consumed["g"][b"m9"]


def slave_differs(told: Story) -> None:
    told.logs["a"].bodies[Place(0, 5)] = b"m5"


WRONG: dict[str, tuple[Callable[[Story], None], str]] = {
    "hole": (hole, "LOST: b'm2' was SEND_OK at Place(queue=0, offset=2), offset 200, and the log goes on behind it"),
    "hole of another connection": (hole_of_another_connection, "LOST: b'm2'"),
    "hole that was closed": (hole_that_was_closed, "LOST: b'm2'"),
    "without a failover": (without_a_failover, "LOST: b'm5' was SEND_OK at Place(queue=0, offset=5), offset 500, "
                           "and epoch 1 was followed by restart, which loses nothing"),
    "by a hand-over": (by_a_hand_over, "LOST: b'm5'"),
    "by nobody": (by_nobody, "LOST: b'm11' was SEND_OK at Place(queue=0, offset=8), offset 900, and the log goes on"),
    "without any change": (without_any_change, "LOST: b'm7' was SEND_OK at Place(queue=0, offset=7), offset 700, "
                           "and the master of epoch 1, which acknowledged it, leads to the end"),
    "nobody knows when": (nobody_knows_when, "LOST: b'm7' was SEND_OK at Place(queue=0, offset=7), offset 700, "
                          "and there was no failover"),
    "confirmed": (confirmed, "UNDONE: a had confirmed 600 in epoch 1, which the log leaves at 500"),
    "confirmed by one who is forgotten": (confirmed_by_one_who_is_forgotten, "UNDONE: c had confirmed 900 in epoch 2"),
    "shown": (shown, "UNDONE: g was shown b'm5'"),
    "told of": (told_of, "UNDONE: a was told that queue 0 ends at 10"),
    "twice": (twice, "TWICE: b'm1'"),
    "out of order": (out_of_order, "OUT OF ORDER: b'm0'"),
    "out of order in the tail": (out_of_order_in_the_tail, "OUT OF ORDER: b'm6'"),
    "moved": (moved, "MOVED: b'm0'"),
    "unseen": (unseen, "UNSEEN: group g never saw 1 messages"),
    "slave differs": (slave_differs, "LOGS DIFFER: a has b'm5'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_history(kind: str) -> None:
    spoil, finding = WRONG[kind]
    told = story()
    spoil(told)
    assert any(found.startswith(finding) for found in told.findings), told.findings


def test_what_async_may_lose_is_a_fault_of_sync() -> None:
    told = story()
    assert [f[:11] for f in check(told.history, told.logs, "b") if f.startswith("LOST")] == ["LOST: b'm5'"] * 1 + [
        "LOST: b'm6'",
        "LOST: b'm7'",
    ]


def test_epochs_are_read_from_the_log_past_the_fillers_of_its_segments() -> None:
    def record(at: int, properties: bytes) -> bytes:
        return encode_record(
            topic=b"t", body=b"x", properties=properties, queue_id=0, queue_offset=0, phys_offset=at,
            born_ms=0, born_host=bytes(8), store_ms=0, store_host=bytes(8),
        )  # fmt: skip

    def epoch(at: int, number: int) -> bytes:
        return record(at, f"{EPOCH_PROPERTY}\x01{number}\x02".encode())

    log = epoch(0, 1)
    log += record(len(log), b"")
    log += (64).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big") + bytes(56)
    second = len(log)
    log += epoch(second, 3)
    assert decode_record(log, second).phys_offset == second
    assert epochs_in(log) == ((1, 0), (3, second))


def test_how_an_epoch_came_about_is_told_by_the_events() -> None:
    def event(reason: str, kind: str, message: str) -> dict[str, str]:
        return {"reason": reason, "type": kind, "message": message}

    assert changes_in(
        [
            event("Bootstrap", "Normal", "c-a-0 begins"),
            event("FailoverStarted", "Warning", "c-a-1 becomes master in epoch 2: the process of c-a-0 is gone"),
            event("FailoverStarted", "Normal", "c-a-1 becomes master in epoch 3: c-a-1 restarted in epoch 2"),
            event("SwitchoverStarted", "Normal", "c-a-0 becomes master in epoch 4: asked for"),
        ]
    ) == {2: FAILOVER, 3: RESTART, 4: HAND_OVER}


def test_a_lineage_tells_where_it_leaves_a_master() -> None:
    lineage = Lineage(((1, 0), (2, 500), (5, 800)), 1000, {})
    assert [lineage.at(o) for o in (0, 499, 500, 799, 800, 999)] == [1, 1, 2, 2, 5, 5]
    assert [lineage.parts_from(e) for e in (1, 2, 3, 4, 5)] == [500, 800, 800, 800, 1000]
    assert [lineage.after(e) for e in (1, 2, 3, 5)] == [2, 5, 5, None]


def test_every_third_run_is_of_async_and_the_others_keep_their_seeds() -> None:
    options = argparse.Namespace(first=5, replication=None, mode=None)
    assert [turn(n, options) for n in range(7)] == [
        (5, "Sync"), (6, "Sync"), (6, "Async"), (7, "Sync"), (8, "Sync"), (8, "Async"), (9, "Sync"),
    ]  # fmt: skip
    options.replication = "Async"
    assert [turn(n, options) for n in range(2)] == [(5, "Async"), (6, "Async")]
    options = argparse.Namespace(first=5, replication=None, mode="Raft")
    assert [turn(n, options) for n in range(3)] == [(5, "Sync"), (6, "Sync"), (7, "Sync")]
