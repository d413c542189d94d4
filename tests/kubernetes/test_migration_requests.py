"""A cutover from RocketMQ by the resource alone: requests, the record, events, and a restart of the operator."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gantry_broker.protocol.codes import FORMER_MASTER_ID
from gantry_operator.migration import cutover_edge as edges
from gantry_operator.migration import progress, rollback_steps
from gantry_operator.migration.cutover_steps import Finish, Limits, Phase, Refused, Seen, SetSource
from gantry_operator.platforms.kubernetes.api.client import ApiUnavailable
from gantry_operator.platforms.kubernetes.requests import migration_requests as module
from gantry_operator.platforms.kubernetes.requests.migration_request import (
    MIGRATE,
    MIGRATE_RESULT,
    MIGRATION,
    new_request,
    parse_request,
    read_record,
)
from gantry_operator.platforms.kubernetes.requests.migration_requests import MigrationRequests
from gantry_operator.platforms.kubernetes.requests.rollbacks import Sides


def test_a_request_is_read_as_it_was_written() -> None:
    asked = parse_request(new_request("cutover", lag=8, settle_s=2, routes_s=5, timeout_s=30))
    assert (asked.op, asked.limits.lag, asked.limits.settle, asked.timeout_s) == ("cutover", 8 << 20, 2.0, 30.0)
    assert asked.limits.routes == 5.0
    assert parse_request(new_request("abort", timeout_s=0.2)).timeout_s == 1.0
    assert parse_request("cutover").limits == Limits()
    back = parse_request(new_request("rollback", lag=7, settle_s=2, timeout_s=30))
    assert (back.op, back.back.lag, back.back.settle, back.timeout_s) == ("rollback", 7, 2.0, 30.0)
    assert parse_request("rollback").back == rollback_steps.Limits()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "rollback routes=1",
        "rollback lag=9999999999",
        "cutover lag=-1",
        "cutover lag=9999999999",
        "abort timeout=0",
        "cutover settle=x",
        "abort x",
    ],
)
def test_what_is_no_request_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write "):
        parse_request(text)


def test_a_cutover_that_could_only_go_back_is_refused() -> None:
    with pytest.raises(ValueError, match="settle=90 and routes=32 leave no time of timeout=120"):
        parse_request("cutover settle=90")
    assert parse_request("cutover settle=90 timeout=300").timeout_s == 300.0


def test_a_record_that_a_person_has_spoilt_is_refused() -> None:
    assert read_record(None).phase is Phase.FOLLOWING
    for text in ("", "{}", "[]", '{"phase": "x", "since": 0, "groups": {}}'):
        with pytest.raises(Refused, match=MIGRATION):
            read_record(text)


AS_IT_WAS = (6, 0, False)
MOVED = (0, FORMER_MASTER_ID, True)
"""Settings of a source: permission, number, and whether it refuses."""


class Resource:
    """The annotations of a cluster. `lost`: writes that the API server does not answer."""

    def __init__(self, **annotations: str) -> None:
        self.annotations: dict[str, str | None] = dict(annotations)
        self.obj = {"metadata": {"namespace": "n", "name": "x"}}
        self.version = 1
        self.ending = False
        self.lost = 0

    def annotation(self, name: str) -> str | None:
        return self.annotations.get(name)

    async def annotate(self, changes: dict[str, str | None]) -> int:
        if self.lost:
            self.lost -= 1
            raise ApiUnavailable("away")
        self.annotations.update(changes)
        return self.version

    def phase(self) -> Phase:
        return read_record(self.annotations.get(MIGRATION)).phase


class Source:
    """A source with one group, its copy, and what an edge does to them."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.permission, self.number, self.refuses = AS_IT_WAS
        self.leads = False
        self.may_finish = True
        self.unwilling = 0
        """How many times it will not be changed."""
        self.slaves: dict[str, int] = {}
        """Numbers by address."""
        self.opened = 0
        self.changed = asyncio.Event()

    @property
    def settings(self) -> tuple[int, int, bool]:
        return self.permission, self.number, self.refuses

    @asynccontextmanager
    async def open(self) -> AsyncIterator[edges.Edge]:
        self.opened += 1
        yield cast(edges.Edge, self)

    @asynccontextmanager
    async def sides(self) -> AsyncIterator[Sides]:
        raise Refused("there is no rollback here")
        yield

    async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
        return {
            "a": Seen(
                state="leads" if self.leads else "following", copy_end=10, source_end=10, quiet=1.0,
                permission=self.permission, broker_id=self.number, refuses=self.refuses, can_carry=True,
                carries=False, routed=self.leads, brokers=self.slaves,
            )
        }  # fmt: skip

    async def act(self, action: Any) -> None:
        if isinstance(action, SetSource):
            if self.unwilling:
                self.unwilling -= 1
                raise Refused("group a: the source does not answer")
            assert self.resource.phase() is not Phase.FOLLOWING, "it acts before its record is written"
            self.permission, self.number, self.refuses = action.permission, action.broker_id, action.refuses
            self.slaves = {address: number % 900 + action.broker_id for address, number in self.slaves.items()}
            self.changed.set()
        else:
            assert isinstance(action, Finish)
            assert self.resource.phase() is Phase.FINISHING
            self.leads = self.may_finish


async def ended(requests: MigrationRequests, end: asyncio.Event) -> None:
    """The request is carried out, or refused."""
    requests.look()
    async with asyncio.timeout(10):
        await end.wait()
    end.clear()


class Cluster:
    """A cluster with a request, its source, and the part of an operator that carries requests out."""

    def __init__(self, request: str, **annotations: str) -> None:
        self.resource = Resource(**{MIGRATE: request}, **annotations)
        self.source = Source(self.resource)
        self.events: list[tuple[str, ...]] = []
        self.end = asyncio.Event()
        self.operator()

    def operator(self, opened: Any = None, **more: Any) -> None:
        """The next operator starts."""
        self.requests = MigrationRequests(
            cast(Any, self.resource), opened or self.source.open, self.source.sides,
            lambda *event: self.events.append(event), self.end.set, **more,
        )  # fmt: skip

    async def ended(self) -> None:
        await ended(self.requests, self.end)

    async def begun(self) -> None:
        """The request is under way: the source is changed."""
        self.requests.look()
        async with asyncio.timeout(10):
            await self.source.changed.wait()

    def ask(self, request: str) -> None:
        self.resource.annotations[MIGRATE] = request

    @property
    def answer(self) -> str:
        return str(self.resource.annotations[MIGRATE_RESULT])

    @property
    def texts(self) -> list[str]:
        return [event[2] for event in self.events]

    @property
    def phase(self) -> Phase:
        return self.resource.phase()


async def test_a_cutover_goes_to_its_end_and_says_each_phase() -> None:
    cluster = Cluster("cutover settle=0 routes=0 #1")
    await cluster.ended()
    assert cluster.answer.startswith("cutover settle=0 routes=0 #1 done: Gantry leads")
    assert cluster.resource.annotations[MIGRATE] is None
    assert cluster.phase is Phase.DONE
    assert cluster.source.settings == MOVED
    assert [text.split(":")[0] for text in cluster.texts] == [
        "readers-off",
        "writes-off",
        "finishing",
        "taking",
        "done",
    ]
    cluster.requests.look()
    assert cluster.source.opened == 1, "it is carried out once"


@pytest.mark.parametrize("fails", [False, True])
async def test_key_value_configuration_is_copied_before_and_behind_the_steps_and_costs_no_cutover(fails: bool) -> None:
    cluster = Cluster("cutover settle=0 routes=0 #1")
    phases = list[int]()

    async def copy_kv(edge: edges.Edge) -> None:
        phases.append(cluster.source.permission)
        if fails:
            raise ApiUnavailable("away")

    cluster.operator(copy_kv=copy_kv)
    await cluster.ended()
    assert (phases, cluster.phase) == ([6, 0], Phase.DONE), "and behind the last one, when NameServers have users"
    assert ("the key-value configuration is not copied to the new NameServers: away" in cluster.texts) == fails


async def test_a_spec_that_locks_clients_out_is_refused_before_the_first_step_and_not_later() -> None:
    cluster = Cluster("cutover settle=0 routes=0 #1")

    async def check(edge: edges.Edge) -> None:
        raise Refused("clients have no keys")

    cluster.operator(check=check)
    await cluster.ended()
    assert cluster.answer.endswith("failed: clients have no keys")
    assert (cluster.source.permission, cluster.phase) == (6, Phase.FOLLOWING)
    record = {"phase": "readers-off", "since": 0, "groups": {"a": {"permission": 6, "end": None, "finished": False}}}
    cluster.resource.annotations |= {MIGRATION: json.dumps(record), MIGRATE: "cutover settle=0 routes=0 #2"}
    await cluster.ended()
    assert cluster.phase is Phase.DONE


async def test_an_operator_that_takes_over_goes_on_and_an_abort_goes_back_before_the_end() -> None:
    cluster = Cluster("cutover settle=60 routes=0 timeout=300 #1")
    await cluster.begun()
    await cluster.requests.close()
    assert cluster.phase is Phase.READERS_OFF
    assert cluster.resource.annotations[MIGRATE] == "cutover settle=60 routes=0 timeout=300 #1", (
        "the next operator finds the request"
    )
    cluster.ask("abort #2")
    cluster.operator()
    await cluster.ended()
    assert cluster.source.settings == AS_IT_WAS
    assert cluster.phase is Phase.FOLLOWING
    cluster.ask("cutover settle=0 routes=0 #3")
    await cluster.ended()
    assert cluster.phase is Phase.DONE


async def test_without_its_record_no_step_is_made() -> None:
    cluster = Cluster("cutover settle=0 routes=0 #1")
    cluster.resource.lost = 1
    await cluster.ended()
    assert (cluster.source.permission, cluster.phase) == (6, Phase.FOLLOWING)
    assert cluster.resource.annotations[MIGRATE] is not None
    await cluster.ended()
    assert cluster.phase is Phase.DONE


async def test_what_cannot_be_is_said_in_the_answer_and_an_event() -> None:
    cluster = Cluster("abort #1")
    record = {"phase": "finishing", "since": 0, "groups": {"a": {"permission": 6, "end": 10, "finished": False}}}
    cluster.resource.annotations[MIGRATION] = json.dumps(record)
    await cluster.ended()
    assert "failed: Gantry may have taken messages" in cluster.answer
    assert cluster.events[-1][:2] == ("Warning", "Migration")
    assert cluster.phase is Phase.FINISHING

    @asynccontextmanager
    async def nothing() -> AsyncIterator[edges.Edge]:
        raise Refused("the cluster has no spec.bootstrap.fromRocketMQ")
        yield

    cluster.ask("cutover #2")
    cluster.operator(nothing)
    await cluster.ended()
    assert cluster.answer == "cutover #2 failed: the cluster has no spec.bootstrap.fromRocketMQ"


class Troubled(Source):
    """A source whose copy's pod is away now and then, and whose operator is killed: after some looks and actions."""

    def __init__(self, resource: Resource, rng: random.Random) -> None:
        super().__init__(resource)
        self.rng = rng
        self.killed = asyncio.Event()
        self.left = 0
        self.phases: set[Phase] = set()

    def spend(self) -> None:
        """Count one thing. Raises CancelledError where the operator is killed."""
        self.phases.add(self.resource.phase())
        self.left -= 1
        if self.left < 0:
            self.killed.set()
            raise asyncio.CancelledError

    async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
        self.spend()
        (seen,) = (await super().look()).values()
        if self.rng.random() < 0.2:
            seen = replace(seen, state=None, copy_end=None, problem="no member answers")
        return {"a": seen}

    async def act(self, action: Any) -> None:
        self.spend()
        if self.rng.random() < 0.2:
            raise Refused("group a: no member runs")
        await super().act(action)
        if self.rng.random() < 0.2:
            self.killed.set()
            raise asyncio.CancelledError


@pytest.mark.parametrize("seed", range(40))
async def test_operators_and_pods_die_at_each_step_and_the_next_ones_go_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POLL_S", "PAUSED_POLL_S"):
        monkeypatch.setattr(edges, name, 0.0)
    rng, operators, aborted = random.Random(seed), 0, False
    cluster = Cluster("cutover settle=0 routes=0 #1")
    cluster.source = source = Troubled(cluster.resource, rng)
    while cluster.phase is not Phase.DONE:
        operators += 1
        assert operators < 300, cluster.resource.annotations
        source.killed.clear()
        source.left = rng.randrange(1, 6)
        cluster.operator()
        cluster.requests.look()
        waits = [asyncio.create_task(event.wait()) for event in (cluster.end, source.killed)]
        async with asyncio.timeout(20):
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await cluster.requests.close()
        cluster.end.clear()
        if cluster.resource.annotations[MIGRATE] is None and cluster.phase is not Phase.DONE:
            # It was refused before it began, or gone back from.
            assert cluster.phase is Phase.FOLLOWING, cluster.resource.annotations
            assert cluster.source.settings == AS_IT_WAS
            cluster.ask(f"cutover settle=0 routes=0 #{operators}")
        elif not aborted and cluster.phase in (Phase.READERS_OFF, Phase.WRITES_OFF) and rng.random() < 0.2:
            aborted = True
            cluster.ask(f"abort #{operators}")
    assert cluster.source.leads
    assert cluster.source.settings == MOVED


async def test_past_the_point_of_no_return_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("cutover settle=0 routes=0 #1")
    drives = 0

    async def late(edge: Any, record: Any, limits: Any, save: Any, **more: Any) -> Any:
        nonlocal drives
        drives += 1
        if drives == 2:
            await save(replace(record, phase=Phase.FINISHING))
        if drives < 5:
            raise Refused(f"not done after {more['timeout']:g} s")
        return replace(record, phase=Phase.DONE)

    monkeypatch.setattr(module, "drive", late)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    await cluster.ended()
    assert cluster.answer.endswith("failed: not done after 120 s")
    cluster.ask("cutover settle=0 routes=0 #2")
    await cluster.ended()
    assert drives == 5
    assert cluster.answer.startswith("cutover settle=0 routes=0 #2 done")
    assert sum("there is no way back" in text for text in cluster.texts) == 3


@pytest.fixture
def seconds_of_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes a second of the clock, and no time."""
    looks = itertools.count()
    monkeypatch.setattr(edges, "time", SimpleNamespace(monotonic=lambda: next(looks), time=time.time))
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    for name in ("POLL_S", "PAUSED_POLL_S"):
        monkeypatch.setattr(edges, name, 0.0)


async def test_an_abort_is_heard_while_a_cutover_is_under_way() -> None:
    cluster = Cluster("cutover settle=60 routes=0 timeout=3600 #1")
    await cluster.begun()
    cluster.ask("abort #2")
    async with asyncio.timeout(10):
        await cluster.end.wait()
    cluster.end.clear()
    assert "#1 failed: a newer request calls it off" in cluster.answer
    assert cluster.resource.annotations[MIGRATE] == "abort #2"
    await cluster.ended()
    assert cluster.source.settings == AS_IT_WAS
    assert cluster.phase is Phase.FOLLOWING


async def test_a_cutover_that_is_not_done_in_time_gives_the_source_its_writes_back(
    monkeypatch: pytest.MonkeyPatch, seconds_of_looks: None
) -> None:
    """Nobody looks at night: a source must not refuse its producers until somebody comes."""
    cluster = Cluster("cutover settle=0 routes=0 timeout=30 #1")
    plain = cluster.source.look

    async def late(*, brokers: bool = False) -> dict[str, Seen]:
        (seen,) = (await plain()).values()
        if cluster.phase is Phase.WRITES_OFF:
            seen = replace(seen, state=None, problem="the copy is not connected to the source")
        return {"a": seen}

    monkeypatch.setattr(cluster.source, "look", late)
    await cluster.ended()
    assert "failed: not done after 30 s, in phase writes-off: group a: the copy is not connected" in cluster.answer
    assert "The source has its settings back" in cluster.answer
    assert cluster.source.settings == AS_IT_WAS
    assert cluster.phase is Phase.FOLLOWING


async def test_an_abort_is_tried_until_the_source_has_its_settings_also_by_the_next_operator(
    seconds_of_looks: None,
) -> None:
    record = {"phase": "aborting", "since": 0, "groups": {"a": {"permission": 6, "end": 10, "finished": False}}}
    for request in ("abort timeout=10 #1", "cutover settle=0 routes=0 timeout=10 #2"):
        cluster = Cluster(request, **{MIGRATION: json.dumps(record)})
        source = cluster.source
        source.permission, source.number, source.refuses = MOVED
        source.unwilling = 30
        await cluster.ended()
        assert any("it is tried on: the source has not all of its settings back" in text for text in cluster.texts), (
            cluster.texts
        )
        assert cluster.source.settings == AS_IT_WAS
        assert cluster.phase is Phase.FOLLOWING


async def test_a_cluster_that_is_deleted_in_a_cutover_gives_the_source_its_writes_back() -> None:
    """Its record goes with it: nobody would know what the source lacks."""
    cluster = Cluster("cutover settle=60 routes=0 timeout=300 #1")
    await cluster.begun()
    cluster.resource.ending, cluster.resource.lost = True, 1_000
    await cluster.requests.give_back()
    assert cluster.source.settings == AS_IT_WAS

    @asynccontextmanager
    async def gone() -> AsyncIterator[edges.Edge]:
        raise Refused("Secret keys has no accessKey and secretKey")
        yield

    cluster.operator(gone)
    await cluster.requests.give_back()
    assert "Secret keys has no accessKey" in cluster.texts[-1]
    assert "run gantry migrate release --name-servers" in cluster.texts[-1]
    cluster.resource, before = Resource(), list(cluster.events)
    cluster.operator(gone)
    await cluster.requests.give_back()
    assert cluster.events == before, "nothing had begun"


async def test_a_slave_that_was_down_at_an_abort_is_named_until_a_later_one_gives_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = itertools.count()  # Each look at the clock is a second later.
    monkeypatch.setattr(
        edges, "time", SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + next(later))
    )
    cluster = Cluster("cutover settle=60 routes=0 timeout=300 #1")
    cluster.source.slaves = {"s:1": 1}
    await cluster.begun()
    cluster.source.slaves = {}
    cluster.ask("abort #2")
    await cluster.ended()
    await cluster.ended()
    assert (
        cluster.answer.startswith("abort #2: done")
        or "done: the copies follow the source; these brokers" in cluster.answer
    )
    assert "group a: s:1. Start them, then annotate gantry.dev/migrate=abort" in cluster.answer
    assert any("s:1" in text for text in cluster.texts)
    record = read_record(cluster.resource.annotation(MIGRATION))
    assert (record.phase, dict(record.groups["a"].brokers)) == (Phase.FOLLOWING, {"s:1": 1})
    assert "these brokers of the source were down" in progress.status_of(record, {"a": None}, None).message
    # It is back, with what it had.
    cluster.source.slaves = {"s:1": 901}
    cluster.ask("abort #3")
    await cluster.ended()
    assert cluster.source.slaves == {"s:1": 1}
    assert "s:1" not in cluster.answer
    assert read_record(cluster.resource.annotation(MIGRATION)).groups == {}
