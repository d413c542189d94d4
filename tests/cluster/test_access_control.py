"""The access table reaches every member after changes, restarts and refusals, and before the Secrets are written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest
from gantry_operator.access.decide import Observed, UserResult
from gantry_operator.access.state import AccessState
from gantry_operator.access.wanted import wanted_admin, wanted_user
from gantry_operator.api.security import Security
from gantry_operator.api.user import BrokerUser
from gantry_operator.cluster import access_control as module
from gantry_operator.cluster.access_control import AccessControl
from gantry_operator.cluster.store_unavailable import StoreUnavailable

from tests.support.running import running, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    monkeypatch.setattr(module, "SECRETS_AFTER_S", 0.2)


class Member:
    """A member as the status stream and its HTTP interface show it."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.name, self.url, self.reach = name, f"http://{name}", "ok"
        self.started = 1
        self.table: dict[str, Any] = {"version": 0}
        self.changes: list[dict[str, Any]] = []
        self.refuses = False
        self.forgets = False
        """It accepts a table and does not keep it."""
        self.puts = 0
        self.story = story

    @property
    def status(self) -> dict[str, Any]:
        access = {"version": self.table["version"], "changes": len(self.changes)}
        return {"name": self.name, "started_ms": self.started, "access": access}

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"version": self.table["version"], "changes": self.changes})
        self.puts += 1
        if self.refuses:
            return httpx.Response(503, text="its disk is full")
        table = json.loads(request.content)
        if table["version"] > self.table["version"] and not self.forgets:
            self.table = table
            merged = table["merged"].get(self.name, 0)
            self.changes = [c for c in self.changes if c["number"] > merged]
            self.story.append(f"{self.name} has {table['version']}")
        return httpx.Response(200, json={"version": table["version"]})

    def restart(self) -> None:
        """On an empty disk."""
        self.started += 1
        self.table = {"version": 0}


class Store:
    """Users and Secrets in memory."""

    def __init__(self, story: list[str]) -> None:
        self.users: dict[str, BrokerUser] = {}
        self.secrets: dict[str, Mapping[str, str]] = {}
        self.state = AccessState()
        self.results: Mapping[str, UserResult] = {}
        self.in_force: dict[str, bool] = {}
        self.notes: list[tuple[str, str, str, str]] = []
        self.broken = False
        self.story = story

    def observe(self) -> Observed:
        wanted = [wanted_admin("demo"), *map(wanted_user, self.users.values())]
        return Observed("demo", "Enabled", Security(), wanted, dict(self.secrets))

    async def load(self) -> AccessState:
        return self.state

    async def save(self, state: AccessState) -> None:
        if self.broken:
            raise StoreUnavailable("the API server is away")
        self.state = state
        self.story.append(f"state {state.version}")

    async def write_secret(self, name: str, content: Mapping[str, str]) -> None:
        self.secrets[name] = content
        self.story.append(f"Secret {name}")

    async def write_table(self, table: bytes) -> None:
        self.table = table

    async def report(self, results: Mapping[str, UserResult], in_force: Callable[[str], bool]) -> None:
        self.results, self.in_force = results, {name: in_force(name) for name in results}

    def note(self, kind: str, reason: str, message: str, user: str) -> None:
        self.notes.append((kind, reason, message, user))


class World:
    def __init__(self) -> None:
        self.story: list[str] = []
        self.store = Store(self.story)
        self.members = {n: Member(n, self.story) for n in ("demo-a-0", "demo-a-1")}
        self.now = 0.0
        self.control: AccessControl = None  # type: ignore[assignment]

    def holds(self, version: int) -> bool:
        return all(m.table["version"] == version for m in self.members.values())


@contextlib.asynccontextmanager
async def world(made: World | None = None) -> AsyncIterator[World]:
    made = made or World()

    def answer(request: httpx.Request) -> httpx.Response:
        return made.members[request.url.host].answer(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        made.control = AccessControl(
            made.store, lambda: [m for m in made.members.values() if m.reach == "ok"], client, lambda: made.now
        )  # type: ignore[arg-type]
        async with running(made.control):
            yield made


async def test_the_state_is_kept_first_then_members_then_secrets() -> None:
    async with world() as w:
        await until(lambda: w.store.secrets)
        assert w.story[0] == "state 1"
        assert sorted(w.story[1:3]) == ["demo-a-0 has 1", "demo-a-1 has 1"]
        assert w.story[3] == "Secret demo-admin-user"
        w.store.users["orders"] = BrokerUser.make("orders", "demo")
        w.control.wake()
        await until(lambda: w.store.in_force.get("orders"))
        assert w.holds(2)
        assert w.store.secrets["demo-user-orders"]["accessKey"] == "orders"


async def test_a_restarted_member_gets_the_table_again() -> None:
    async with world() as w:
        await until(lambda: w.holds(1))
        w.members["demo-a-1"].restart()
        await until(lambda: w.holds(1))
        w.members["demo-a-2"] = Member("demo-a-2", w.story)
        await until(lambda: w.holds(1))


async def test_a_member_that_does_not_keep_it_is_asked_again_and_again() -> None:
    async with world() as w:
        w.members["demo-a-1"].forgets = True
        await until(lambda: w.members["demo-a-1"].puts >= 3)
        w.members["demo-a-1"].forgets = False
        await until(lambda: w.holds(1))


async def test_a_refusing_member_delays_no_other() -> None:
    async with world() as w:
        w.members["demo-a-1"].refuses = True
        await until(lambda: w.store.secrets)
        assert w.members["demo-a-0"].table["version"] == 1
        w.store.users["orders"] = BrokerUser.make("orders", "demo")
        w.control.wake()
        await until(lambda: "orders" in w.store.results)
        await until(lambda: w.members["demo-a-0"].table["version"] == 2)
        assert not w.store.in_force["orders"], "a member that answers does not know it"
        w.members["demo-a-1"].refuses = False
        await until(lambda: w.store.in_force["orders"])


async def test_a_member_without_access_tables_is_left_alone() -> None:
    w = World()
    del w.members["demo-a-1"]

    class Old(Member):
        @property
        def status(self) -> dict[str, Any]:
            return {"name": self.name}

    w.members["demo-a-1"] = Old("demo-a-1", w.story)
    async with world(w):
        await until(lambda: w.store.secrets)
        assert w.members["demo-a-1"].puts == 0


async def test_a_change_of_mqadmin_at_one_member_reaches_the_others() -> None:
    async with world() as w:
        await until(lambda: w.holds(1))
        made = {"name": "bob", "keys": ["mqadmins-key"]}
        w.members["demo-a-1"].changes = [{"number": 1, "op": "CreateUser", "name": "bob", "user": made}]
        await until(lambda: w.holds(2))
        assert "bob" in str(w.members["demo-a-0"].table["users"])
        assert w.members["demo-a-1"].changes == [], "the member drops what the table contains"
        assert w.store.state.made[0]["name"] == "bob"


async def test_one_large_change_of_mqadmin_reaches_the_others() -> None:
    """A user with as many rules and networks as it may have: over 1 MiB, which a member cannot divide."""
    sources = [f"255.255.255.{number}/32" for number in range(100)]
    rules = [
        {"type": "Topic", "name": f"topic-{number}", "actions": ["Pub"], "sources": sources} for number in range(500)
    ]
    made = {"name": "bob", "keys": ["mqadmins-key"], "rules": rules}
    assert len(json.dumps(made)) > 1 << 20
    async with world() as w:
        await until(lambda: w.holds(1))
        w.members["demo-a-1"].changes = [{"number": 1, "op": "CreateAcl", "name": "bob", "user": made}]
        await until(lambda: w.holds(2))
        assert w.members["demo-a-1"].changes == []


async def test_a_state_that_cannot_be_stored_reaches_no_member() -> None:
    w = World()
    w.store.broken = True
    async with world(w):
        await until(lambda: w.control.problem)
        assert w.story == []
        assert w.control.problem == "the API server is away"
        w.store.broken = False
        await until(lambda: w.holds(1) and not w.control.problem)


async def test_a_new_process_goes_on_with_the_state() -> None:
    """Ended before its Secrets were written."""
    async with world() as w:
        w.store.users["orders"] = BrokerUser.make("orders", "demo")
        await until(lambda: w.store.secrets.get("demo-user-orders"))
    keys = {n: k.current for n, k in w.store.state.users.items()}
    w.store.secrets = {}
    async with world(w):
        await until(lambda: len(w.store.secrets) == 2)
    assert {n: k.current for n, k in w.store.state.users.items()} == keys
    assert w.holds(w.store.state.version)


async def test_a_key_ends_in_time() -> None:
    async with world() as w:
        w.store.users["orders"] = BrokerUser.make("orders", "demo", rotation={"overlap": "10s"})
        await until(lambda: w.store.secrets.get("demo-user-orders"))
        w.store.users["orders"].metadata.annotations["gantry.dev/rotate"] = "now"
        w.control.wake()
        await until(lambda: w.store.results["orders"].keys == 2 and w.store.in_force["orders"])
        version = w.control.version
        assert ("Normal", "KeyRotated") in [(n[0], n[1]) for n in w.store.notes]
        w.now += 10.0
        await until(lambda: w.holds(version + 1))
        assert [len(u["keys"]) for u in w.members["demo-a-0"].table["users"]] == [1, 1]


async def test_a_table_from_the_future_is_exceeded() -> None:
    w = World()
    for member in w.members.values():
        member.table = {"version": 90}
    async with world(w):
        await until(lambda: w.holds(91))
        w.members["demo-a-0"].table = {"version": 120}
        await until(lambda: w.holds(121))
