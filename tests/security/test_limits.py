"""The decisions behind the limits: descriptors, connections, hosts. And the operator's own pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import httpx
import pytest
from gantry_broker import descriptors
from gantry_broker.broker.http.metrics_page import MetricsPage
from gantry_broker.exposition import Family
from gantry_broker.http.hosts import AllowedHosts, host_of
from gantry_broker.http.limits import (
    BODY_S,
    CLOSING_S,
    HEAD_S,
    IDLE_S,
    STALLED_S,
    Phase,
    State,
    most_dispensable,
    overdue,
)
from gantry_broker.timeslice import TimeSlices
from gantry_operator.platforms.kubernetes.monitoring.health_server import DEAF_S, HealthServer


@pytest.mark.parametrize("limit", [1_024, 4_096, 65_536, 1 << 20])
def test_no_use_of_descriptors_takes_all(limit: int) -> None:
    found = descriptors.divide(limit)
    bursts = descriptors.BACKLOG + descriptors.LISTENERS * found.remoting_backlog
    assert found.queue_files + found.http + found.remoting + bursts <= limit * 7 / 8
    assert found.http <= limit / 8
    assert found.remoting >= limit / 4 or found.remoting == descriptors.MAX_REMOTING


def test_as_many_connections_as_ever_where_the_system_allows_them() -> None:
    assert descriptors.divide(1 << 20).remoting == descriptors.MAX_REMOTING


@pytest.mark.parametrize(
    ("phase", "limit"), [(Phase.HEAD, HEAD_S), (Phase.BODY, BODY_S), (Phase.IDLE, IDLE_S), (Phase.CLOSING, CLOSING_S)]
)
def test_each_phase_has_its_time(phase: Phase, limit: float) -> None:
    state = State(phase, 100.0)
    assert not overdue(state, 100.0 + limit - 0.1)
    assert overdue(state, 100.0 + limit)
    state.enter(phase, 200.0)
    assert overdue(state, 200.0), "the same phase goes on"


def test_an_answer_may_take_for_ever_while_the_client_takes_it() -> None:
    state = State(Phase.ANSWER, 0.0)
    assert not overdue(state, 1e6)
    state.wrote(10, 1e6)
    state.wrote(10, 1e6 + STALLED_S - 1)
    assert not overdue(state, 1e6 + STALLED_S - 1)
    assert overdue(state, 1e6 + STALLED_S)
    state.wrote(0, 1e6 + STALLED_S)
    assert not overdue(state, 1e6 + STALLED_S)


@dataclass
class Waiting:
    state: State
    address: str = "192.0.2.1"

    def look(self, now: float) -> None:
        """Nothing to see."""

    def end(self, status: str) -> None:
        """Nothing to close."""


def test_the_one_that_waits_longest_makes_room() -> None:
    old, new = Waiting(State(Phase.HEAD, 1.0)), Waiting(State(Phase.HEAD, 2.0))
    trusted = Waiting(State(Phase.IDLE, 0.0, trusted=True))
    busy, closing = Waiting(State(Phase.ANSWER, 0.0)), Waiting(State(Phase.CLOSING, 3.0))
    assert most_dispensable([new, old, trusted, busy]) is old
    assert most_dispensable([trusted, busy]) is trusted
    assert most_dispensable([busy]) is None
    assert most_dispensable([new, old, closing]) is closing
    stalled = Waiting(State(Phase.ANSWER, 5.0, stalled_since=6.0))
    assert most_dispensable([busy, stalled]) is stalled, "its client does not read"
    assert most_dispensable([busy, stalled, new]) is new


def test_an_address_with_many_connections_closes_its_own() -> None:
    flood = [Waiting(State(Phase.HEAD, 10.0 + n), "192.0.2.9") for n in range(5)]
    old = Waiting(State(Phase.HEAD, 1.0), "192.0.2.1")
    assert most_dispensable([old, *flood]) is flood[0]
    stalled = [Waiting(State(Phase.ANSWER, 3.0, stalled_since=3.0), "192.0.2.9") for _ in range(3)]
    reader = Waiting(State(Phase.ANSWER, 0.0, stalled_since=1.0), "192.0.2.1")
    assert most_dispensable([reader, *stalled]) is stalled[0]
    newcomer = Waiting(State(Phase.HEAD, 20.0), "192.0.2.1")
    assert most_dispensable([newcomer, *stalled]) is stalled[0], "who reads nothing pays for who has just come"


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"), ("LOCALHOST:80", "localhost"), ("a.b.:1", "a.b"), ("[::1]:80", "::1"),
        ("127.0.0.1", "127.0.0.1"), ("", None), ("a b", None), ("a/b", None), ("a:port", None), ("[x]", None),
        ("a@b", None), ("a" * 300, None),
    ],
)  # fmt: skip
def test_the_host_in_a_header(header: str, host: str | None) -> None:
    assert host_of(header) == host


def test_names_are_allowed_one_by_one_and_addresses_all() -> None:
    hosts = AllowedHosts(["demo-a-0.demo-a.mq.svc:10911"])
    assert all(map(hosts.allows, ("demo-a-0.demo-a.mq.svc", "10.0.0.7:1", "[fe80::1]", "localhost:10921")))
    refused = ("demo-a-0.demo-a.mq.svc.evil.example", "demo-a-0", "127.0.0.1.evil.example", "999.0.0.1")
    assert not any(map(hosts.allows, refused))


async def test_a_page_that_is_expensive_is_made_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = [0.0], [0.0]
    made: list[float] = []

    async def make() -> list[Family]:
        made.append(now[0])
        now[0] += 0.5
        used[0] += 0.5
        return [Family("made", "gauge", "How often.", [({}, len(made))])]

    monkeypatch.setattr(
        "gantry_broker.broker.http.metrics_page.time",
        SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: used[0]),
    )
    page = MetricsPage(make, TimeSlices(), 0.1)
    first = await page("")
    assert first[0].endswith(b"made 1.0\n")
    now[0] = 4.9
    assert await page("") == first
    now[0] = 5.0
    assert (await page(""))[0].endswith(b"made 2.0\n")
    assert made == [0.0, 5.0]


@dataclass
class Heard:
    heard_at: float


async def test_the_operators_own_pages_have_the_same_limits() -> None:
    names = ["gantry-operator.gantry-system.svc"]
    async with HealthServer(0, "127.0.0.1", names) as server, httpx.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{server.port}"
        assert (await client.get(f"{url}/livez")).text == "ok\n"
        assert (await client.get(f"{url}/readyz")).status_code == 200
        assert "gantry_operator_leader" in (await client.get(f"{url}/metrics")).text
        assert (await client.get(f"{url}/nothing")).status_code == 404
        assert (await client.get(f"{url}/metrics", headers={"Host": "evil.example"})).status_code == 421
        assert (await client.get(f"{url}/metrics", headers={"Host": f"{names[0]}:8080"})).status_code == 200
        deaf: Mapping[str, object] = {"Pod": Heard(-2 * DEAF_S)}
        server.follow(deaf)  # type: ignore[arg-type]
        answer = await client.get(f"{url}/livez")
        assert (answer.status_code, "Pod" in answer.text) == (500, True)
        half = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        assert (await client.get(f"{url}/readyz")).status_code == 200
        for _, writer in half:
            writer.transport.abort()
