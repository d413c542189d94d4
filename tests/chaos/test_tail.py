"""The promises of replication Async, by histories that keep them and histories that break them."""

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
    """Twelve messages on one queue, one after the other. Epoch 1 acknowledged 0 to 7. Epoch 2 began at 500 and has 8
    to
    11, behind its control record. The failover lost 5, 6 and 7.
    """

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
        """Remove it from all logs. Later messages move up or leave a hole."""
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


def test_a_failover_may_lose_the_newest_tail() -> None:
    case = story()
    assert case.findings == []
    assert case.went() == {b"m5", b"m6", b"m7"}


def test_a_former_master_forwards_over_the_connection_on_which_it_is_master_again() -> None:
    """Later messages reuse the successor's offsets, and one connection brought all answers."""
    case = story()
    for sent in case.history.sent.values():
        case.history.sent[sent.body] = replace(sent, via=1)
    assert case.findings == []
    assert case.went() == {b"m5", b"m6", b"m7"}


def test_a_history_without_losses_is_correct() -> None:
    case = story()
    for number in (5, 6, 7):
        del case.history.sent[b"m%d" % number]
    assert case.findings == []
    assert case.went() == set()


def test_a_whole_unseen_leadership_may_be_lost() -> None:
    case = story()
    case.lineage = Lineage(((1, 0), (4, 500)), 1000, {2: RESTART, 3: FAILOVER, 4: RESTART})
    case.history.leaders = {1: {"a"}, 2: {"a"}, 4: {"b"}}
    case.history.rounds = []
    assert case.findings == []


def test_a_copy_of_an_earlier_try_is_not_lost_with_the_acknowledged_one() -> None:
    case = story()
    for log in case.logs.values():
        log.bodies[Place(0, 9)] = b"m6"
        log.ends[0] = 10
    case.history.consumed["g"][b"m6"] += 1
    assert case.findings == [f"MOVED: b'm6' was SEND_OK at {Place(0, 6)}, where now {b'm9'!r} is"]
    case.history.tries[b"m6"] = 2
    assert case.findings == []
    assert case.went() == {b"m5", b"m7"}


def test_sends_forwarded_after_a_handover_are_lost_with_the_new_master() -> None:
    """One connection brought all answers, and no forwarded message is left as evidence."""
    case = story()
    case.lineage = Lineage(((1, 0), (2, 450), (3, 500)), 1000, {2: HAND_OVER, 3: FAILOVER})
    case.history.leaders = {1: {"a"}, 2: {"c"}, 3: {"b"}}
    case.history.rounds = []
    assert case.findings == []


def hole(case: Story) -> None:
    case.forget(2)


def hole_of_another_connection(case: Story) -> None:
    """No other message of its connection is left: the messages before and after it are the evidence."""
    case.sent(2).via = 7
    case.forget(2)


def hole_that_was_closed(case: Story) -> None:
    """Another message has its place, and so on until the end."""
    for log in case.logs.values():
        bodies = [log.bodies[Place(0, offset)] for offset in range(9) if offset != 2]
        log.bodies.clear()
        log.bodies.update({Place(0, offset): body for offset, body in enumerate(bodies)})
        log.ends[0] = 8
    case.history.shown = {}


def without_a_failover(case: Story) -> None:
    case.lineage = replace(case.lineage, changes={2: RESTART})


def by_a_handover(case: Story) -> None:
    case.lineage = replace(case.lineage, changes={2: HAND_OVER})
    for number in (5, 6, 7):
        case.sent(number).via = 0
    case.history.rounds[2] = Round(7.6, 7.7, (Led("a", 1, 450),))


def without_a_successor(case: Story) -> None:
    """The last messages are lost, although no member took over afterwards."""
    case.forget(11)


def without_any_change(case: Story) -> None:
    case.lineage = Lineage(((1, 0),), 500)
    case.history.leaders = {1: {"a"}}
    for number in range(8, 12):
        case.forget(number)
        del case.history.sent[b"m%d" % number]
    case.history.rounds = []


def at_an_unknown_time(case: Story) -> None:
    """Over a connection of its own, and between two leaderships; but no leadership ended by a failover."""
    case.sent(7).via = 9
    case.history.rounds = []
    case.lineage = replace(case.lineage, changes={2: RESTART})


def confirmed(case: Story) -> None:
    case.history.rounds.insert(2, Round(6.6, 6.7, (Led("a", 1, 600),)))


def confirmed_by_a_former_member(case: Story) -> None:
    case.history.rounds.insert(3, Round(7.8, 7.9, (Led("c", 2, 900),)))
    case.lineage = Lineage(((1, 0), (3, 500)), 1000, {2: FAILOVER, 3: FAILOVER})


def shown(case: Story) -> None:
    case.history.show(Place(0, 5), b"m5", "g")


def ends_undone(case: Story) -> None:
    case.history.reported_end(0, 10, "a")


def twice(case: Story) -> None:
    for log in case.logs.values():
        log.bodies[Place(0, 9)] = b"m1"
        log.ends[0] = 10


def out_of_order(case: Story) -> None:
    case.sent(0).began, case.sent(0).ended = 20.0, 21.0


def out_of_order_in_the_tail(case: Story) -> None:
    """One master acknowledged two messages in the wrong order."""
    case.sent(5).place, case.sent(6).place = case.sent(6).place, case.sent(5).place


def moved(case: Story) -> None:
    for log in case.logs.values():
        log.bodies[Place(0, 0)], log.bodies[Place(0, 1)] = log.bodies[Place(0, 1)], log.bodies[Place(0, 0)]


def unseen(case: Story) -> None:
    del case.history.consumed["g"][b"m9"]


def slave_differs(case: Story) -> None:
    case.logs["a"].bodies[Place(0, 5)] = b"m5"


WRONG: dict[str, tuple[Callable[[Story], None], str]] = {
    "hole": (hole, "LOST: b'm2' was SEND_OK at Place(queue=0, offset=2), offset 200, and the log goes on behind it"),
    "hole of another connection": (hole_of_another_connection, "LOST: b'm2'"),
    "hole that was closed": (hole_that_was_closed, "LOST: b'm2'"),
    "without a failover": (without_a_failover, "LOST: b'm5' was SEND_OK at Place(queue=0, offset=5), offset 500, "
                           "and epoch 1 was followed by restart, which loses nothing"),
    "by a handover": (by_a_handover, "LOST: b'm5'"),
    "without a successor": (without_a_successor, "LOST: b'm11' was SEND_OK at Place(queue=0, offset=8), offset 900, "
                            "and the log goes on"),
    "without any change": (without_any_change, "LOST: b'm7' was SEND_OK at Place(queue=0, offset=7), offset 700, "
                           "and the master of epoch 1, which acknowledged it, leads to the end"),
    "at an unknown time": (at_an_unknown_time, "LOST: b'm7' was SEND_OK at Place(queue=0, offset=7), offset 700, "
                          "and there was no failover"),
    "confirmed": (confirmed, "UNDONE: a had confirmed 600 in epoch 1, which the log leaves at 500"),
    "confirmed by a former member": (confirmed_by_a_former_member, "UNDONE: c had confirmed 900 in epoch 2"),
    "shown": (shown, "UNDONE: g was shown b'm5'"),
    "ends undone": (ends_undone, "UNDONE: a read that queue 0 ends at 10"),
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
    case = story()
    spoil(case)
    assert any(found.startswith(finding) for found in case.findings), case.findings


def test_losses_that_async_allows_are_faults_with_sync() -> None:
    case = story()
    assert [f[:11] for f in check(case.history, case.logs, "b") if f.startswith("LOST")] == ["LOST: b'm5'"] * 1 + [
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


def test_events_give_the_cause_of_an_epoch() -> None:
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


def test_a_lineage_gives_its_divergence_from_a_master() -> None:
    lineage = Lineage(((1, 0), (2, 500), (5, 800)), 1000, {})
    assert [lineage.at(o) for o in (0, 499, 500, 799, 800, 999)] == [1, 1, 2, 2, 5, 5]
    assert [lineage.parts_from(e) for e in (1, 2, 3, 4, 5)] == [500, 800, 800, 800, 1000]
    assert [lineage.after(e) for e in (1, 2, 3, 5)] == [2, 5, 5, None]


def test_every_third_run_is_async_and_the_others_keep_their_seeds() -> None:
    options = argparse.Namespace(first=5, replication=None, mode=None)
    assert [turn(n, options) for n in range(7)] == [
        (5, "Sync"), (6, "Sync"), (6, "Async"), (7, "Sync"), (8, "Sync"), (8, "Async"), (9, "Sync"),
    ]  # fmt: skip
    options.replication = "Async"
    assert [turn(n, options) for n in range(2)] == [(5, "Async"), (6, "Async")]
    options = argparse.Namespace(first=5, replication=None, mode="Raft")
    assert [turn(n, options) for n in range(3)] == [(5, "Sync"), (6, "Sync"), (7, "Sync")]
