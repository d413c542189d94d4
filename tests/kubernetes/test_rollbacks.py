"""A rollback to RocketMQ by the resource alone: requests, the record, events, and a restart of the operator."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gantry_broker.protocol.codes import FORMER_MASTER_ID
from gantry_operator.migration import cutover_steps, rollback_edge
from gantry_operator.migration.cutover_steps import Refused, SetSource
from gantry_operator.migration.rollback_steps import MoveOffsets, Phase, Record, Seen, SetGantry
from gantry_operator.platforms.kubernetes.requests import rollbacks as module
from gantry_operator.platforms.kubernetes.requests.migration_request import (
    MIGRATE,
    MIGRATE_RESULT,
    MIGRATION,
    ROLLBACK,
    read_rollback,
)
from gantry_operator.platforms.kubernetes.requests.migration_requests import MigrationRequests
from gantry_operator.platforms.kubernetes.requests.rollbacks import Sides

from tests.kubernetes.test_migration_requests import Resource, ended

DONE = json.dumps(
    cutover_steps.Record(cutover_steps.Phase.DONE, 1.0, {"a": cutover_steps.Group(permission=6, end=10)}).to_json()
)
ASIDE, HOME = (0, FORMER_MASTER_ID, True), (6, 0, False)


class Copy:
    """Messages that are here and there."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.missing: int | None = None

    async def round(self) -> None:
        self.world.copied = self.world.written
        self.missing = 0

    def sent(self) -> int:
        return self.world.copied

    def expired(self) -> int:
        return 0


class World:
    """The former broker with its NameServer, and Gantry. What a rollback does to them outlives its operator."""

    def __init__(self, resource: Resource, rng: random.Random | None = None) -> None:
        self.resource, self.rng = resource, rng
        self.source, self.gantry, self.released, self.moved = ASIDE, 6, False, False
        self.written, self.copied = 5, 0
        self.no_copy = 0
        """How many times the copy cannot go on."""
        self.left: int | None = None
        """Looks and actions until the operator is killed."""
        self.killed = asyncio.Event()
        self.acted = asyncio.Event()
        self.silenced = asyncio.Event()
        """Gantry gives and takes nothing."""
        self.copy: Copy | None = None
        self.befores: list[Mapping[str, cutover_steps.Group]] = []
        self.said: list[tuple[str, str, str]] = []

    def phase(self) -> Phase:
        return read_rollback(self.resource.annotations.get(ROLLBACK)).phase

    def spend(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.killed.set()
            raise asyncio.CancelledError

    @asynccontextmanager
    async def open(self, before: Mapping[str, cutover_steps.Group]) -> AsyncIterator[Sides]:
        self.copy, self.moved = None, False
        self.befores.append(before)
        yield Sides(cast(Any, self), cast(Any, "the state"))

    @asynccontextmanager
    async def no_edge(self) -> AsyncIterator[Any]:
        raise Refused("it asks for a cutover")
        yield

    @asynccontextmanager
    async def copying(self, state: object, phase: Phase) -> AsyncIterator[None]:
        assert (state, phase) == ("the state", self.phase())
        if self.no_copy:
            self.no_copy -= 1
            raise Refused("the former broker does not answer")
        self.copy = Copy(self)
        yield

    async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
        self.spend()
        permission, number, refuses = self.source
        return {
            "a": Seen(
                gantry=self.gantry, released=self.released, listed=not self.released, permission=permission,
                broker_id=number, refuses=refuses, returned=self.released and self.source == HOME,
                missing=None if self.copy is None else self.copy.missing, quiet=1.0,
                whole=self.copy is not None and self.copy.missing is not None, moved=self.moved,
            )
        }  # fmt: skip

    async def act(self, action: Any) -> None:
        self.spend()
        assert self.phase() is not Phase.NONE, "it acts before its record is written"
        if self.rng is not None and self.rng.random() < 0.2:
            raise Refused("group a: nobody answers")
        if isinstance(action, SetSource):
            self.source = (action.permission, action.broker_id, action.refuses)
            assert self.source != HOME or self.released, "two masters"
        elif isinstance(action, SetGantry):
            self.gantry = action.permission
            if not self.gantry:
                self.silenced.set()
        elif isinstance(action, MoveOffsets):
            assert (self.gantry, self.copied) == (0, self.written), "offsets move before the end"
            self.moved = True
        else:
            self.released = action.on
        self.acted.set()
        if self.rng is not None and self.rng.random() < 0.2:
            self.killed.set()
            raise asyncio.CancelledError

    def requests(self, end: asyncio.Event) -> MigrationRequests:
        return MigrationRequests(
            cast(Any, self.resource), self.no_edge, self.open, lambda *event: self.said.append(event), end.set
        )


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name in ((rollback_edge, "POLL_S"), (rollback_edge, "ROUND_S"), (module, "AGAIN_S")):
        monkeypatch.setattr(where, name, 0.0)


@pytest.fixture
def seconds_of_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes a second of the clock, and no time."""
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds), time=time.time)
    for where in (rollback_edge, module):
        monkeypatch.setattr(where, "time", clock)


def asked(request: str, phase: Phase = Phase.NONE) -> World:
    """A cluster that has taken over, with a rollback in a phase."""
    resource = Resource(**{MIGRATE: request, MIGRATION: DONE})
    if phase is not Phase.NONE:
        groups = module.rollback_steps.begin(
            Record(), {}, {"a": Seen(gantry=6, permission=0, broker_id=FORMER_MASTER_ID)}, 1.0, cut_over=True
        ).groups
        resource.annotations[ROLLBACK] = json.dumps(Record(phase, 1.0, groups).to_json())
    return World(resource)


async def test_a_rollback_goes_to_its_end_and_says_each_phase() -> None:
    world, end = asked("rollback settle=0 #1"), asyncio.Event()
    await ended(world.requests(end), end)
    assert (world.source, world.gantry, world.released, world.moved) == (HOME, 0, True, True)
    assert world.phase() is Phase.DONE
    answer = str(world.resource.annotations[MIGRATE_RESULT])
    assert answer.startswith("rollback settle=0 #1 done: the source leads again; 5 messages are copied. Next: "), answer
    assert world.resource.annotations[MIGRATE] is None
    assert {name: group.end for name, group in world.befores[0].items()} == {"a": 10}, "it copies from the cutover on"
    phases = [text.split(":")[0] for _, _, text in world.said]
    assert phases == [
        "copying-back", "gantry-writes-off", "gantry-readers-off", "offsets", "leaving", "returning", "rolled-back",
    ]  # fmt: skip
    assert ["--abort" in text for _, _, text in world.said] == [True] * 5 + [False] * 2


async def test_before_the_end_of_a_cutover_there_is_nothing_to_roll_back() -> None:
    world, end = asked("rollback #1"), asyncio.Event()
    del world.resource.annotations[MIGRATION]
    await ended(world.requests(end), end)
    assert "failed: the cutover is not done" in str(world.resource.annotations[MIGRATE_RESULT])
    assert (world.phase(), world.source) == (Phase.NONE, ASIDE)
    assert world.said[-1][0] == "Warning"


async def test_a_record_that_a_person_has_spoilt_stops_it() -> None:
    world, end = asked("rollback #1"), asyncio.Event()
    world.resource.annotations[ROLLBACK] = '{"phase": "x"}'
    await ended(world.requests(end), end)
    assert f"the annotation {ROLLBACK} is no record" in str(world.resource.annotations[MIGRATE_RESULT])
    assert (world.source, world.gantry) == (ASIDE, 6)


async def test_an_abort_is_heard_while_a_rollback_is_under_way() -> None:
    world, end = asked("rollback settle=60 timeout=3600 #1"), asyncio.Event()
    requests = world.requests(end)
    requests.look()
    async with asyncio.timeout(10):
        await world.silenced.wait()
    world.resource.annotations[MIGRATE] = "abort #2"
    async with asyncio.timeout(10):
        await end.wait()
    end.clear()
    assert "#1 failed: a newer request calls it off" in str(world.resource.annotations[MIGRATE_RESULT])
    await ended(requests, end)
    assert (world.source, world.gantry, world.released) == (ASIDE, 6, False)
    assert "#2 done: Gantry leads" in str(world.resource.annotations[MIGRATE_RESULT])
    assert world.phase() is Phase.NONE
    world.resource.annotations[MIGRATE] = "rollback settle=0 #3"
    await ended(requests, end)
    assert (world.phase(), world.source) == (Phase.DONE, HOME)


@pytest.mark.parametrize("phase", [Phase.RETURNING, Phase.ABORTING])
async def test_where_there_is_no_other_way_it_is_tried_until_it_is_done(phase: Phase, seconds_of_looks: None) -> None:
    world, end = asked("rollback timeout=10 #1", phase), asyncio.Event()
    world.released = phase is Phase.RETURNING
    world.gantry = 0
    plain, away = world.act, 25

    async def late(action: Any) -> None:
        nonlocal away
        away -= 1
        if away >= 0:
            raise Refused("group a: nobody answers")
        await plain(action)

    world.act = late  # type: ignore[method-assign]
    await ended(world.requests(end), end)
    tried = [text for kind, _, text in world.said if kind == "Warning" and "it is tried on" in text]
    assert tried, world.said
    assert "nobody answers" in tried[0]
    answer = str(world.resource.annotations[MIGRATE_RESULT])
    if phase is Phase.RETURNING:
        assert (world.source, world.phase()) == (HOME, Phase.DONE)
        assert "done: the source leads again" in answer
    else:
        assert (world.gantry, world.source, world.phase()) == (6, ASIDE, Phase.NONE)
        assert "failed: an abort of the rollback was under way, and is done" in answer


async def test_after_a_restart_a_copy_that_cannot_go_on_is_waited_for() -> None:
    world, end = asked("rollback settle=0 #1", Phase.WRITES_OFF), asyncio.Event()
    world.gantry, world.no_copy = 4, 3
    await ended(world.requests(end), end)
    assert (world.phase(), world.source, world.no_copy) == (Phase.DONE, HOME, 0)


async def test_clients_do_not_wait_for_a_copy_that_never_goes_on(seconds_of_looks: None) -> None:
    world, end = asked("rollback timeout=5 #1", Phase.WRITES_OFF), asyncio.Event()
    world.gantry, world.no_copy = 4, 1_000
    await ended(world.requests(end), end)
    answer = str(world.resource.annotations[MIGRATE_RESULT])
    assert "failed: the copy could not go on, in phase gantry-writes-off: the former broker does not answer" in answer
    assert (world.gantry, world.source, world.phase()) == (6, ASIDE, Phase.NONE)


async def test_nobody_waits_for_a_copy_that_does_not_begin(seconds_of_looks: None) -> None:
    world, end = asked("rollback timeout=5 #1"), asyncio.Event()
    world.no_copy = 1_000
    await ended(world.requests(end), end)
    assert "failed: the copy could not go on, in phase copying-back" in str(world.resource.annotations[MIGRATE_RESULT])
    assert (world.gantry, world.phase()) == (6, Phase.COPYING)
    world.no_copy = 0
    world.resource.annotations[MIGRATE] = "rollback settle=0 #2"
    await ended(world.requests(end), end)
    assert world.phase() is Phase.DONE


async def test_a_cluster_that_is_deleted_says_what_the_source_lacks() -> None:
    world, end = asked("rollback settle=60 timeout=300 #1"), asyncio.Event()
    requests = world.requests(end)
    requests.look()
    async with asyncio.timeout(10):
        await world.acted.wait()
    world.resource.ending = True
    await requests.give_back()
    assert "a rollback was under way" in world.said[-1][2]
    assert "gantry migrate release" in world.said[-1][2]


@pytest.mark.parametrize("seed", range(40))
async def test_operators_die_at_each_step_and_the_next_ones_go_on(seed: int) -> None:
    rng, end = random.Random(seed), asyncio.Event()
    world = asked("rollback settle=0 #0")
    world.rng, operators, aborted = rng, 0, False
    while world.phase() is not Phase.DONE:
        operators += 1
        assert operators < 300, world.resource.annotations
        world.killed.clear()
        world.left = rng.randrange(1, 8)
        requests = world.requests(end)
        requests.look()
        waits = [asyncio.create_task(event.wait()) for event in (end, world.killed)]
        async with asyncio.timeout(20):
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await requests.close()
        end.clear()
        phase = world.phase()
        if world.resource.annotations[MIGRATE] is None and phase is not Phase.DONE:
            assert phase in (Phase.NONE, Phase.COPYING), world.resource.annotations
            assert (world.gantry, world.released) == (6, False)
            world.resource.annotations[MIGRATE] = f"rollback settle=0 #{operators}"
        elif not aborted and phase in module.rollback_steps.PAUSED and rng.random() < 0.3:
            aborted, world.resource.annotations[MIGRATE] = True, f"abort #{operators}"
    assert (world.source, world.gantry, world.released) == (HOME, 0, True)
