"""Seeded histories of timer messages against a plain model: sends, recalls, new leaders, expired segments, pauses.

`TIMER_SEED=17 python -m pytest tests/broker/test_timer_histories.py` plays one history.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.message import decode_records

from tests.broker.test_timers import ALWAYS, MINUTE, Clock, _expire

if TYPE_CHECKING:
    from tests.broker.conftest import Bench

STEPS = 220
SEEDS = [int(os.environ["TIMER_SEED"])] if "TIMER_SEED" in os.environ else [1, 2, 3, 4]


class History:
    def __init__(self, bench: Bench, clock: Clock, seed: int) -> None:
        self.bench, self.clock, self.rng = bench, clock, random.Random(seed)
        self.second = 0
        self.due: dict[str, int] = {}
        """Key to the second at which the message is due."""
        self.recalled: set[str] = set()
        self.delivered: dict[str, int] = {}
        self.offset = 0

    async def send(self) -> None:
        rng = self.rng
        delay = rng.choice((rng.randint(1, 90), rng.randint(60, 7_200), rng.randint(3_600, 40 * 86_400)))
        key = f"k{len(self.due)}"
        text = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{MINUTE + (self.second + delay) * 1_000}"
        assert (await self.bench.send(key.encode(), properties=text)).code == 0
        self.due[key] = self.second + delay

    async def recall(self) -> None:
        waiting = [key for key, at in self.due.items() if at > self.second and key not in self.recalled]
        if waiting:
            key = self.rng.choice(waiting)
            at = MINUTE + self.due[key] * 1_000
            text = f"TIMER_DELIVER_MS\x01{at}\x02TIMER_DEL_UNIQKEY\x01{key}"
            assert (await self.bench.send(b"0", properties=text)).code == 0
            self.recalled.add(key)

    async def lead(self) -> None:
        await self.bench.lead()

    async def wait(self) -> None:
        """Passes time, in some steps or, as without a leader, in one."""
        rng = self.rng
        total = rng.choice((rng.randint(1, 70), rng.randint(60, 4_000), rng.randint(3_600, 3 * 86_400)))
        for _ in range(1 if rng.random() < 0.3 else 4):
            self.second += max(total // 4, 1)
            await self.run()

    async def run(self) -> None:
        for _ in range(4):
            await self.clock.pass_to(self.bench, self.second)
        await self.read()

    async def expire(self) -> None:
        for _ in range(3):
            await self.bench.send(b"f" * 200_000, topic="F")
        _expire(self.bench)

    async def read(self) -> None:
        while True:
            answer = await self.bench.ask(11, self.bench.pull_ext(offset=self.offset))
            records = decode_records(answer.body) if answer.body else []
            if not records:
                return
            for record in records:
                key = record.body.decode()
                assert key not in self.delivered, f"{key} came twice"
                assert self.due[key] <= self.second, f"{key} came {self.due[key] - self.second} s early"
                self.delivered[key] = self.second
                self.offset = record.queue_offset + 1

    def check(self) -> None:
        for key, at in self.due.items():
            if key in self.recalled:
                assert key not in self.delivered, f"{key} was recalled"
            elif at <= self.second:
                assert key in self.delivered, f"{key} was due at {at}, it is {self.second}"


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_message_comes_once_and_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    clock = Clock(monkeypatch)
    clock.ms = MINUTE
    await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=ALWAYS)
    if seed % 2:
        await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=5")
    history = History(bench, clock, seed)
    steps = (history.send, history.recall, history.lead, history.wait, history.expire)
    for _ in range(STEPS):
        await history.rng.choices(steps, (10, 3, 1, 5, 2))[0]()
        history.check()
    history.second = max([*history.due.values(), history.second])
    for _ in range(60):
        history.second += 3_600
        await history.run()
    history.check()
    assert len(history.delivered) + len(history.recalled) == len(history.due)
    assert len(history.delivered) > 20
