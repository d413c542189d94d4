"""The checker finds each kind of wrong history, and accepts a correct one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.chaos.checker import check
from tests.chaos.deletions import Deletions
from tests.chaos.history import History, Log, Place, Popped, Sent
from tests.chaos.pops import ORDERLY, POPS

Story = tuple[History, dict[str, Log]]


def right() -> Story:
    """Six messages on two queues. Each send follows the acknowledgement of the one before it. All readers see all."""
    history = History()
    bodies = {}
    for number in range(6):
        body, place = b"m%d" % number, Place(number % 2, number // 2)
        history.sent[body] = Sent(body, float(number), number + 0.5, "SEND_OK", place)
        history.tries[body] = 1
        history.show(place, body, "slave")
        bodies[place] = body
    history.ends = {0: (3, "slave"), 1: (2, "master")}
    history.consumed = {"g": Counter(bodies.values())}
    history.leaders = {1: {"a"}, 2: {"b"}}
    return history, {name: Log(dict(bodies), {0: 3, 1: 3}) for name in ("a", "b")}


def drop(log: Log, body: bytes) -> Place:
    place = next(p for p, b in log.bodies.items() if b == body)
    del log.bodies[place]
    return place


def lost(history: History, logs: dict[str, Log]) -> None:
    for log in logs.values():
        log.ends[drop(log, b"m5").queue] -= 1


def moved(history: History, logs: dict[str, Log]) -> None:
    for log in logs.values():
        log.bodies[Place(0, 0)], log.bodies[Place(0, 1)] = log.bodies[Place(0, 1)], log.bodies[Place(0, 0)]


def out_of_order(history: History, logs: dict[str, Log]) -> None:
    history.sent[b"m0"].began, history.sent[b"m0"].ended = 10.0, 11.0


def twice(history: History, logs: dict[str, Log]) -> None:
    for log in logs.values():
        log.bodies[Place(0, 3)] = b"m1"
        log.ends[0] = 4


def made_up(history: History, logs: dict[str, Log]) -> None:
    for log in logs.values():
        log.bodies[Place(0, 3)] = b"what"
        log.ends[0] = 4


def hole(history: History, logs: dict[str, Log]) -> None:
    history.sent[b"m2"].status = "SendFailed"
    history.shown.pop(Place(0, 1))
    for log in logs.values():
        drop(log, b"m2")


def undone(history: History, logs: dict[str, Log]) -> None:
    history.show(Place(1, 0), b"another", "g")


def end_undone(history: History, logs: dict[str, Log]) -> None:
    history.reported_end(1, 4, "a")


def unseen(history: History, logs: dict[str, Log]) -> None:
    del history.consumed["g"][b"m3"]


def logs_differ(history: History, logs: dict[str, Log]) -> None:
    logs["b"].bodies[Place(1, 2)] = b"m3"


def two_leaders(history: History, logs: dict[str, Log]) -> None:
    history.leaders[2].add("a")


def popped(history: History, *deliveries: tuple[int, int, float], group: str = ORDERLY) -> None:
    """(number of the message, earlier deliveries, time): each pop brings one message; nothing is acknowledged."""
    history.popped[group] = [
        Popped(b"m%d" % number, Place(number % 2, number // 2), times, int(at * 1_000), at)
        for number, times, at in deliveries
    ]


def acked(history: History, number: int, at: float, group: str = ORDERLY) -> None:
    delivery = history.popped[group][number]
    delivery.acking, delivery.acked = at - 0.1, at


def acked_again(history: History, logs: dict[str, Log]) -> None:
    popped(history, (0, 0, 1.0), (0, 1, 5.0), group=POPS)
    acked(history, 0, 2.0, POPS)


def acked_again_at_once(history: History, logs: dict[str, Log]) -> None:
    popped(history, (0, 0, 1.0), (0, 0, 5.0), group=POPS)
    acked(history, 0, 2.0, POPS)


def acked_again_in_order(history: History, logs: dict[str, Log]) -> None:
    popped(history, (0, 0, 1.0), (2, 0, 1.0), (2, 1, 4.6))
    acked(history, 0, 1.5)
    acked(history, 1, 1.5)


def too_early(history: History, logs: dict[str, Log]) -> None:
    popped(history, (0, 0, 1.0), (0, 1, 3.9), group=POPS)


def pops_before_the_acknowledgement(history: History, logs: dict[str, Log]) -> None:
    popped(history, (0, 0, 1.0), (2, 0, 2.0))
    acked(history, 0, 2.5)


def pops_over_a_message(history: History, logs: dict[str, Log]) -> None:
    popped(history, (0, 0, 1.0), (4, 0, 2.0))
    acked(history, 0, 1.5)


def orderly_from_retry(history: History, logs: dict[str, Log]) -> None:
    popped(history, (0, 0, 1.0))
    history.popped[ORDERLY][0].place = None


WRONG: dict[str, tuple[Callable[[History, dict[str, Log]], None], str]] = {
    "lost": (lost, "LOST: b'm5'"),
    "moved": (moved, "MOVED: b'm0'"),
    "out of order": (out_of_order, "OUT OF ORDER: b'm0'"),
    "twice": (twice, "TWICE: b'm1'"),
    "made up": (made_up, "MADE UP: b'what'"),
    "hole": (hole, "HOLE: queue 0"),
    "undone": (undone, "UNDONE: g was shown b'another'"),
    "end undone": (end_undone, "UNDONE: a read that queue 1 ends at 4"),
    "unseen": (unseen, "UNSEEN: group g never saw 1 messages of queue"),
    "logs differ": (logs_differ, "LOGS DIFFER: b has b'm3'"),
    "two leaders": (two_leaders, "TWO LEADERS: epoch 2"),
    "acked again": (acked_again, "ACKED AGAIN: pops got b'm0' for the 2. time"),
    "acked again at once": (acked_again_at_once, "ACKED AGAIN: pops got b'm0' for the 1. time"),
    "acked again in order": (acked_again_in_order, "ACKED AGAIN: pops-orderly got b'm2' for the 2. time"),
    "too early": (too_early, "TOO EARLY: pops got b'm0' again 2.900 s"),
    "a pop before the acknowledgement": (pops_before_the_acknowledgement, "OUT OF ORDER: the orderly group got b'm2'"),
    "a pop over a message": (pops_over_a_message, "OUT OF ORDER: the orderly group got b'm4'"),
    "an orderly pop from the retry topic": (orderly_from_retry, "OUT OF ORDER: the orderly group got b'm0' from"),
}


def test_a_correct_history() -> None:
    history, logs = right()
    assert check(history, logs, "a") == []


def test_correct_pops() -> None:
    history, logs = right()
    popped(history, (0, 0, 1.0), (2, 0, 1.0), (1, 0, 1.0), (0, 1, 4.1), (2, 1, 4.1), (4, 0, 6.0))
    acked(history, 2, 1.5)
    acked(history, 3, 5.0)
    acked(history, 4, 5.0)
    # An answer that comes after the acknowledgement of a later delivery.
    popped(history, (0, 0, 1.0), (0, 1, 4.0), group=POPS)
    acked(history, 1, 4.5, POPS)
    assert check(history, logs, "a") == []


def test_an_orderly_queue_goes_back_to_its_first_unfinished_message() -> None:
    """What was acknowledged behind it comes again, also when one pop has no room for all of it."""
    history, logs = right()
    popped(history, (0, 0, 1.0), (2, 0, 1.0), (4, 0, 1.0), (0, 1, 4.1), (2, 1, 4.1), (4, 1, 4.6), (2, 2, 7.7))
    for number, at in ((1, 1.5), (2, 1.5), (3, 4.5), (4, 4.5), (5, 5.0), (6, 8.0)):
        acked(history, number, at)
    [wrong] = check(history, logs, "a")
    assert wrong.startswith("ACKED AGAIN: pops-orderly got b'm2' for the 3. time"), "nothing before it was unfinished"
    history.popped[ORDERLY][4].acked = float("inf")  # Its second delivery was forgotten: the first one is of the past.
    history.popped[ORDERLY].pop(5)
    assert check(history, logs, "a") == []


def test_pops_with_another_clock_or_of_two_copies_may_come_again() -> None:
    history, logs = right()
    too_early(history, logs)
    assert check(history, logs, "a", clocks_agree=False) == []
    acked_again(history, logs)
    history.tries[b"m0"] = 2
    assert check(history, logs, "a") == []


def test_a_message_sent_twice_may_have_two_copies() -> None:
    history, logs = right()
    twice(history, logs)
    history.tries[b"m1"] = 2
    assert check(history, logs, "a") == []


def test_a_message_without_acknowledgement_may_be_lost() -> None:
    history, logs = right()
    lost(history, logs)
    history.sent[b"m5"].status = "FLUSH_SLAVE_TIMEOUT"
    history.shown.pop(Place(1, 2))
    assert check(history, logs, "a") == []


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_history(kind: str) -> None:
    spoil, finding = WRONG[kind]
    history, logs = right()
    spoil(history, logs)
    assert any(p.startswith(finding) for p in check(history, logs, "a")), check(history, logs, "a")


def test_deleted_messages_stay_away_and_later_ones_are_there() -> None:
    history = History()
    made = Deletions(history)
    made.rounds = [[Sent(b"r%d %d" % (number, n), 0.0, status="SEND_OK") for n in range(2)] for number in range(4)]
    made.gone, made.attempted = 2, 3
    for sends in made.rounds:
        history.tries.update(sent.body for sent in sends)
    last, doubtful = {b"r3 0", b"r3 1"}, {b"r2 0", b"r2 1"}
    assert list(made.check({"a": last, "b": last | doubtful})) == []
    [deleted] = made.check({"a": last, "b": last | {b"r1 1"}})
    assert deleted.startswith("NOT DELETED: b shows b'r1 1'")
    [incomplete] = made.check({"a": {b"r3 1"} | doubtful, "b": last})
    assert incomplete.startswith("DELETED TOO MUCH: b'r3 0'")
    history.tries[b"r1 1"] = 2
    assert list(made.check({"a": last | {b"r1 1"}})) == [], "the second try may have come after the deletion"
