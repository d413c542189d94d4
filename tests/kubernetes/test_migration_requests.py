"""A cutover from RocketMQ by the resource alone: requests, the record, events, and a restart of the operator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from gantry_broker.protocol.codes import FORMER_MASTER_ID
from gantry_operator.migration import edge as edges
from gantry_operator.migration.steps import Finish, Phase, Refused, Seen, SetSource
from gantry_operator.platforms.kubernetes.api.client import ApiUnavailable
from gantry_operator.platforms.kubernetes.migration_request import (
    MIGRATE,
    MIGRATE_RESULT,
    MIGRATION,
    new_request,
    parse_request,
    read_record,
)
from gantry_operator.platforms.kubernetes.migration_requests import MigrationRequests


def test_a_request_is_read_as_it_was_written() -> None:
    asked = parse_request(new_request("cutover", lag_mib=8, settle_s=2, timeout_s=30))
    assert (asked.op, asked.limits.lag, asked.limits.settle, asked.timeout_s) == ("cutover", 8 << 20, 2.0, 30.0)
    assert parse_request(new_request("abort", timeout_s=0.2)).timeout_s == 1.0
    assert parse_request("cutover").limits.lag == 64 << 20


@pytest.mark.parametrize(
    "text",
    ["", "rollback", "cutover lag=-1", "cutover lag=9999999999", "abort timeout=0", "cutover settle=x", "abort x"],
)
def test_what_is_no_request_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write "):
        parse_request(text)


def test_a_record_that_a_person_has_spoilt_is_refused() -> None:
    assert read_record(None).phase is Phase.FOLLOWING
    for text in ("", "{}", "[]", '{"phase": "x", "since": 0, "groups": {}}'):
        with pytest.raises(Refused, match=MIGRATION):
            read_record(text)


class Resource:
    """The annotations of a cluster. `lost`: writes that the API server does not answer."""

    def __init__(self, **annotations: str) -> None:
        self.annotations: dict[str, str | None] = dict(annotations)
        self.obj = {"metadata": {"namespace": "n", "name": "x"}}
        self.version = 1
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
        self.permission, self.number, self.refuses = 6, 0, False
        self.leads = False
        self.may_finish = True
        self.opened = 0
        self.changed = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[edges.Edge]:
        self.opened += 1
        yield cast(edges.Edge, self)

    async def look(self) -> dict[str, Seen]:
        return {
            "a": Seen(
                state="leads" if self.leads else "following", copy_end=10, source_end=10, quiet=1.0,
                permission=self.permission, broker_id=self.number, refuses=self.refuses, can_carry=True,
                carries=False, routed=self.leads,
            )
        }  # fmt: skip

    async def act(self, action: Any) -> None:
        if isinstance(action, SetSource):
            assert self.resource.phase() is not Phase.FOLLOWING, "it acts before its record is written"
            self.permission, self.number, self.refuses = action.permission, action.broker_id, action.refuses
            self.changed.set()
        else:
            assert isinstance(action, Finish)
            assert self.resource.phase() is Phase.FINISHING
            self.leads = self.may_finish


async def ended(requests: MigrationRequests, end: asyncio.Event) -> None:
    requests.look()
    async with asyncio.timeout(10):
        await end.wait()
    end.clear()


async def test_a_cutover_goes_to_its_end_and_says_each_phase() -> None:
    resource, end, said = Resource(**{MIGRATE: "cutover settle=0 #1"}), asyncio.Event(), list[str]()
    source = Source(resource)
    requests = MigrationRequests(cast(Any, resource), source.open, lambda *event: said.append(event[2]), end.set)
    await ended(requests, end)
    assert str(resource.annotations[MIGRATE_RESULT]).startswith("cutover settle=0 #1 done: Gantry leads"), resource
    assert resource.annotations[MIGRATE] is None
    assert resource.phase() is Phase.DONE
    assert (source.permission, source.number, source.refuses) == (0, FORMER_MASTER_ID, True)
    assert [text.split(":")[0] for text in said] == ["readers-off", "writes-off", "finishing", "taking", "done"]
    requests.look()
    assert source.opened == 1, "it is carried out once"


async def test_an_operator_that_takes_over_goes_on_and_an_abort_goes_back_before_the_end() -> None:
    resource, end = Resource(**{MIGRATE: "cutover settle=60 #1"}), asyncio.Event()
    source = Source(resource)

    def new() -> MigrationRequests:
        return MigrationRequests(cast(Any, resource), source.open, lambda *event: None, end.set)

    first = new()
    first.look()
    async with asyncio.timeout(10):
        await source.changed.wait()
    await first.close()
    assert resource.phase() is Phase.READERS_OFF
    assert resource.annotations[MIGRATE] == "cutover settle=60 #1", "the next operator finds the request"
    resource.annotations[MIGRATE] = "abort #2"
    second = new()
    await ended(second, end)
    assert (source.permission, source.number, source.refuses) == (6, 0, False)
    assert resource.phase() is Phase.FOLLOWING
    resource.annotations[MIGRATE] = "cutover settle=0 #3"
    await ended(second, end)
    assert resource.phase() is Phase.DONE


async def test_without_its_record_no_step_is_made() -> None:
    resource, end = Resource(**{MIGRATE: "cutover settle=0 #1"}), asyncio.Event()
    resource.lost = 1
    source = Source(resource)
    requests = MigrationRequests(cast(Any, resource), source.open, lambda *event: None, end.set)
    await ended(requests, end)
    assert (source.permission, resource.phase()) == (6, Phase.FOLLOWING)
    assert resource.annotations[MIGRATE] is not None
    await ended(requests, end)
    assert resource.phase() is Phase.DONE


async def test_what_cannot_be_is_said_in_the_answer_and_an_event() -> None:
    resource, end, said = Resource(**{MIGRATE: "abort #1"}), asyncio.Event(), list[tuple[str, ...]]()
    record = {"phase": "finishing", "since": 0, "groups": {"a": {"permission": 6, "end": 10, "finished": False}}}
    resource.annotations[MIGRATION] = json.dumps(record)
    source = Source(resource)
    requests = MigrationRequests(cast(Any, resource), source.open, lambda *event: said.append(event), end.set)
    await ended(requests, end)
    assert "failed: Gantry may have taken messages" in str(resource.annotations[MIGRATE_RESULT])
    assert said[-1][:2] == ("Warning", "Migration")
    assert resource.phase() is Phase.FINISHING

    @asynccontextmanager
    async def nothing() -> AsyncIterator[edges.Edge]:
        raise Refused("no pod of group a runs")
        yield

    resource.annotations[MIGRATE] = "cutover #2"
    requests = MigrationRequests(cast(Any, resource), nothing, lambda *event: None, end.set)
    await ended(requests, end)
    assert resource.annotations[MIGRATE_RESULT] == "cutover #2 failed: no pod of group a runs"
