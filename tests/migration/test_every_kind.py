"""Official clients of every kind go on through one cutover: nothing acknowledged is lost, each repeat has a reason."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gantry_broker.protocol.codes import RequestCode

from benchmarks.rig.driver import Driver, Line, Running
from benchmarks.rig.wire import Refused, Wire
from tests.migration.scene import Scene, as_documented, scene

PLAIN, ORDERED, RETRIED, WAITING = "Plain", "Ordered", "Retried", "Waiting"
POPPED, POPPED_AGAIN = "Popped", "PoppedAgain"
FAILING = frozenset({RETRIED, POPPED_AGAIN})
"""Topics whose consumers fail at each message once: retries are under way at all times."""
QUEUES = 4
CHECKS = {"transactionCheckInterval": "5000", "transactionTimeOut": "4000"}
PLAN = ("commit", "rollback", "unknown-commit", "unknown-rollback")
"""What a producer decides on its half messages: at once, or when it is asked."""
LEVEL, TIMER_MS = 3, 12_000
WAITS_MS = {"level": 10_000, "timer": TIMER_MS}
INVISIBLE_MS = 20_000
AFTER_S = 8.0
"""How long producers go on behind a cutover."""
LEVELS_MS, TIMERS_MS, DECIDED_MS = 1_000, 10_000, 3_000
"""What was delivered, or decided, so long before the end may come again: docs/migration.md."""
SETTLES_MS = 2_000
"""The end of the source's log is noted after it was quiet, and times are those of commands."""


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_clients_of_every_kind_lose_nothing(java_side: Path, tmp_path: Path, server: str, client: str) -> None:
    with scene(tmp_path, server, CHECKS) as made:
        everything_arrives(made, made.driver(client), modern=client == "55")


class Cutover(NamedTuple):
    """Wall times in ms."""

    begin: float
    """The source refuses sends; one of 5.x stands aside from here on, and delivers nothing that waits."""
    delivers: float
    """The source delivers what is due up to here."""
    ended: float
    """The source's log has its end."""
    led: float
    """Gantry leads."""


def cut_over(made: Scene, *, modern: bool) -> Cutover:
    said = made.migrate("cutover").stdout
    now = time.time() * 1000
    assert "Gantry leads" in said, said
    took = {name: float(seconds) * 1000 for name, seconds in re.findall(r"^([a-z-]+): ([0-9.]+) s$", said, re.M)}
    led = now - took.pop("taking")
    ended = led - took.pop("finishing")
    begin = ended - took["writes-off"]
    return Cutover(begin, begin if modern else ended, ended, led)


class Waits:
    """Producers of messages that wait: by level, by time, and half messages. Each round has producers of its own."""

    def __init__(self, clients: Driver, *, timers: bool) -> None:
        self._clients = clients
        self._kinds: dict[str, dict[str, Any]] = {"level": {"delay_level": LEVEL}}
        if timers:
            self._kinds["timer"] = {"deliver_in_ms": TIMER_MS}
        self.acknowledged: set[str] = set()
        self.rolled_back: set[str] = set()
        self._ended = threading.Event()
        # It answers for the others of its group, which are gone by then.
        self.answering = clients.start("transactions", **self._half("first"), stay_s=280)
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    @staticmethod
    def _half(name: str) -> dict[str, Any]:
        plan = ",".join(PLAN)
        return {"topic": WAITING, "group": "paying", "plan": plan, "keys": f"half-{name}-", "count": len(PLAN)}

    def _send(self) -> None:
        for number in itertools.count():
            if self._ended.wait(1.0):
                return
            for kind, options in self._kinds.items():
                keys = f"{kind}-{number}-"
                done = self._clients.run("produce", topic=WAITING, keys=keys, count=4, each=True, **options)
                self.acknowledged |= {keys + str(line["n"]) for line in done.of("sent")}
            self._take(str(number), self._clients.run("transactions", **self._half(str(number))).of("sent"))

    def _take(self, name: str, lines: Sequence[Line]) -> None:
        for line in lines:
            goes_back = PLAN[line["n"] % len(PLAN)].endswith("rollback")
            (self.rolled_back if goes_back else self.acknowledged).add(f"half-{name}-{line['n']}")

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._take("first", of("sent", self.answering))

    def checked(self) -> dict[str, list[float]]:
        """Return the wall times at which producers were asked, by key."""
        found: dict[str, list[float]] = defaultdict(list)
        for line in of("check", self.answering):
            found[line["keys"]].append(line["wallMs"])
        return found


def of(event: str, running: Running) -> list[Line]:
    """Return what a command has printed so far."""
    while not running.queue.empty():
        running.next(1)
    return [line for line in running.lines if line["event"] == event]


def committed(made: Scene, topic: str) -> dict[int, int]:
    """Return the offsets of a topic's group by queue, as the source has them since the cutover."""
    found = {}
    with Wire(made.source.broker_address, prefix=made.source.prefix) as wire:
        for queue in range(QUEUES):
            where = {"topic": topic, "consumerGroup": f"g_{topic}", "queueId": str(queue)}
            try:
                found[queue] = int(wire.call(RequestCode.QUERY_CONSUMER_OFFSET, where).ext["offset"])
            except Refused:
                found[queue] = 0
    return found


def prepare(made: Scene, clients: Driver, *, pops: bool) -> None:
    for topic in (PLAIN, ORDERED, RETRIED, WAITING, *([POPPED, POPPED_AGAIN] if pops else [])):
        order = ("-o", "true") if topic == ORDERED else ()
        clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", topic, "-r", QUEUES, "-w", QUEUES, *order)
    for topic in (POPPED, POPPED_AGAIN) if pops else ():
        group = ("-b", made.source.broker_address, "-g", f"g_{topic}")
        clients.mqadmin("updateSubGroup", *group)
        said = clients.mqadmin("setConsumeMode", *group, "-t", topic, "-m", "POP", "-q", 0)
        assert "success" in said, said


def read(clients: Driver, *, pops: bool) -> dict[str, Running]:
    """Start consumers of every kind, by topic."""
    kinds: dict[str, dict[str, Any]] = {
        PLAIN: {},
        ORDERED: {"mode": "orderly"},
        RETRIED: {"fail": 1, "delay_retry": 1},
        WAITING: {},
    }
    if pops:
        kinds[POPPED] = {"pop": True, "invisible_ms": INVISIBLE_MS}
        kinds[POPPED_AGAIN] = kinds[POPPED] | {"fail": 1}
    usual = {"count": 1_000_000, "timeout_s": 280, "each": True}
    readers = {
        topic: clients.start("consume", topic=topic, group=f"g_{topic}", **usual, **options)
        for topic, options in kinds.items()
    }
    for reader in readers.values():
        reader.wait_for("started")
    return readers


def write(clients: Driver, *, pops: bool) -> dict[str, Running]:
    """Start producers in their default configuration, by topic."""
    pauses = {PLAIN: 15, ORDERED: 15, RETRIED: 100} | ({POPPED: 60, POPPED_AGAIN: 60} if pops else {})
    writers = {
        topic: clients.start("failover", topic=topic, run=topic, size=300, pause_ms=pause)
        for topic, pause in pauses.items()
    }
    for writer in writers.values():
        writer.wait_for("ok")
    return writers


def everything_arrives(made: Scene, clients: Driver, *, modern: bool) -> None:
    prepare(made, clients, pops=modern)
    readers = read(clients, pops=modern)
    writers = write(clients, pops=modern)
    waits = Waits(clients, timers=modern)
    broker = {name: int(value) for name, value in CHECKS.items()}
    made.write(broker=broker)
    checked = made.gantry("migrate", "check", str(made.file))
    print(checked.stdout)
    if modern:
        as_documented("migrate check migrate.yaml", checked, 1)
    made.start(broker=broker)
    made.until_following()
    at = cut_over(made, modern=modern)
    time.sleep(AFTER_S)
    waits.end()
    acknowledged = {t: {f"{t}-{line['n']}" for line in of("ok", writer)} for t, writer in writers.items()}
    acknowledged[WAITING] = waits.acknowledged

    def missing() -> dict[str, list[str]]:
        found = {}
        for topic, keys in acknowledged.items():
            seen = Counter(line["keys"] for line in of("message", readers[topic]))
            if left := sorted(key for key in keys if seen[key] < (2 if topic in FAILING else 1)):
                found[topic] = left[:8]
        return found

    until(lambda: f"acknowledged and lost: {missing()}", lambda: not missing(), 75)
    clients.run("stop")
    got = {topic: of("message", reader) for topic, reader in readers.items()}
    asked = waits.checked()
    sends = {f"{t}-{x['n']}": x["tries"] for t, w in writers.items() for x in (*of("ok", w), *of("failed", w))}
    assert not {line["keys"] for line in got[WAITING]} & waits.rolled_back
    open_then = {x["keys"] for x in got[WAITING] if x["keys"] in asked and x["bornMs"] < at.ended < x["storeMs"]}
    assert open_then, "no half message was open at the cutover"
    assert all(max(asked[key]) > at.ended for key in open_then), "Gantry asks for them"
    for kind in WAITS_MS:
        for when, late in late_ms(got[WAITING], kind, at).items():
            if late:
                print(
                    f"{kind}, {when}: {len(late)} are late by {late[len(late) // 2]} ms in half, {late[-1]} ms at most"
                )
    for topic, lines in got.items():
        found = [
            (reason(topic, before, line, at, sends), before, line)
            for before, line in repeats(lines, 2 if topic in FAILING else 1)
        ]
        reasons = Counter(why for why, _, _ in found)
        print(f"{topic}: {len(acknowledged[topic])} acknowledged, {len(lines)} received, repeats {dict(reasons)}")
        odd = [(before, line) for why, before, line in found if why is None]
        assert not odd, f"{topic}: {at}; came again: {odd[:5]}"
    for topic in (PLAIN, ORDERED):
        offsets = by_queue(got[topic])
        have = committed(made, topic)
        for queue, seen in offsets.items():
            assert set(again(seen)) <= set(range(have[queue], max(seen) + 1)), "it had committed these"
            assert topic != ORDERED or goes_on(seen, have[queue])


def until(what: Callable[[], str], wanted: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not wanted():
        assert time.monotonic() < deadline, what()
        time.sleep(0.3)


def by_queue(lines: Sequence[Line]) -> dict[int, list[int]]:
    """Return the offsets of each queue in the order in which a consumer had them."""
    found: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        found[line["queue"]].append(line["offset"])
    return found


def again(offsets: Sequence[int]) -> Iterator[int]:
    return (offset for offset, count in Counter(offsets).items() if count > 1)


def goes_on(offsets: Sequence[int], committed: int) -> bool:
    """Whether each message comes behind the one before it, but for ways back to what was committed, or later."""
    return all(b == a + 1 or committed <= b <= a for a, b in itertools.pairwise(offsets))


def repeats(lines: Sequence[Line], usual: int) -> Iterator[tuple[Line, Line]]:
    """Yield what came more often than its consumer asked for, each with what came before."""
    seen: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if len(seen[line["keys"]]) >= usual:
            yield seen[line["keys"]][-1], line
        seen[line["keys"]].append(line)


def late_ms(lines: Sequence[Line], kind: str, at: Cutover) -> dict[str, list[int]]:
    """Return how late delayed messages of a kind were stored for their first delivery, by when that was due."""
    first: dict[str, tuple[int, int]] = {}
    for line in lines:
        if line["keys"].partition("-")[0] == kind:
            due = line["bornMs"] + WAITS_MS[kind]
            first[line["keys"]] = min((line["storeMs"] - due, due), first.get(line["keys"], (1 << 62, 0)))
    found: dict[str, list[int]] = {"due while the source's log ends": [], "due before or after": []}
    for late, due in first.values():
        found["due while the source's log ends" if at.begin <= due <= at.led else "due before or after"].append(late)
    return {when: sorted(late) for when, late in found.items()}


def reason(topic: str, before: Line, line: Line, at: Cutover, sends: Mapping[str, int]) -> str | None:
    """Return why a message came again; None: it should not have."""
    if sends.get(line["keys"], 1) > 1 and before["offset"] != line["offset"]:
        return "its producer sent it again"
    if topic in (PLAIN, ORDERED):
        return "not committed"  # Its offset is compared with the group's below.
    if topic in (POPPED, POPPED_AGAIN):
        # A source of 5.x that stands aside stores no acknowledgement, and what is behind in a queue comes, too.
        stood_aside = at.begin - INVISIBLE_MS <= before["wallMs"] <= at.ended
        return "popped, and not acknowledged at the source" if stood_aside else None
    kind = line["keys"].partition("-")[0]
    stops, before_ms = (at.ended, DECIDED_MS) if kind == "half" else (at.delivers, LEVELS_MS)
    since = stops - (TIMERS_MS if kind == "timer" else before_ms)
    # Both may have waited while consumers got nothing: then they come side by side.
    first = min(before["storeMs"], line["storeMs"])
    return "delivered shortly before the end" if since - SETTLES_MS <= first <= at.ended else None
