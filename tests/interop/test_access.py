"""Access with official clients, unmodified: right key, wrong key, no right, a key rotated under traffic, mqadmin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.rig import gantry
from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target

ADMIN = {"access_key": "admin", "secret_key": "admin-secret"}
ORDERS = {"access_key": "orders", "secret_key": "orders-secret"}
BILLING = {"access_key": "billing", "secret_key": "billing-secret"}
OLD, NEW = "orders-secret", "orders-secret-2"


def users(*keys: str) -> list[dict[str, Any]]:
    """`keys`: of the user orders, newest first."""
    return [
        {"name": "admin", "keys": [ADMIN["secret_key"]], "super": True},
        {
            "name": "orders",
            "keys": list(keys or (OLD,)),
            "rules": [{"type": "Topic", "name": "Orders", "pattern": "Prefix", "actions": ["Pub"]}],
        },
        {
            "name": "billing",
            "keys": [BILLING["secret_key"]],
            "rules": [
                {"type": "Topic", "name": "Orders", "pattern": "Prefix", "actions": ["Sub"]},
                {"type": "Group", "name": "billing", "pattern": "Prefix", "actions": ["Sub"]},
            ],
        },
    ]


class Guarded:
    """A target whose access table the test sets."""

    def __init__(self, target: Target, http_port: int) -> None:
        self.target = target
        self._http = f"http://127.0.0.1:{http_port}"
        self._version = 0

    def put(self, known: list[dict[str, Any]]) -> None:
        self._version += 1
        table = {"version": self._version, "mode": "Enabled", "users": known}
        answer = httpx.put(f"{self._http}/v1/access", content=json.dumps(table), timeout=30)
        assert answer.json() == {"version": self._version}, answer.text

    def merge(self) -> None:
        """What a control plane does with changes by mqadmin: the users go into the next table, for all members."""
        waiting = httpx.get(f"{self._http}/v1/access/changes", timeout=30).json()["changes"]
        known = {user["name"]: user for user in users()}
        for change in waiting:
            if change["user"] is None:
                known.pop(change["name"], None)
            else:
                known[change["name"]] = change["user"]
        self.put(list(known.values()))


@pytest.fixture(scope="module")
def guarded(java_side: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with gantry.single(folder) as target:
        made = Guarded(target, json.loads((folder / "broker.json").read_text())["http_port"])
        made.put(users())
        yield made


@pytest.fixture(scope="module", params=["49", "55"])
def client(
    request: pytest.FixtureRequest, guarded: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Driver]]:
    """The version of the official client, and a session of it."""
    log = tmp_path_factory.mktemp("driver") / f"{request.param}.log"
    driver = Driver(guarded.target, request.param, "JSON", log)
    # mqadmin of 4.9 takes its keys from this file alone.
    tools = log.parent / f"home-{log.stem}" / "conf" / "tools.yml"
    tools.write_text(f"accessKey: {ADMIN['access_key']}\nsecretKey: {ADMIN['secret_key']}\n")
    made = admin(driver, "updateTopic", "-t", f"Orders{request.param}", "-c", "demo", "-r", 2, "-w", 2)
    assert "success" in made, made
    yield request.param, driver
    driver.close()


def admin(driver: Driver, *words: object, who: dict[str, str] = ADMIN) -> str:
    """The output of a signed mqadmin command."""
    signed = ["--access-key", who["access_key"], "--secret-key", who["secret_key"]]
    return driver.mqadmin(words[0], *signed, *words[1:])


def test_the_right_key_sends_and_consumes(client: tuple[str, Driver]) -> None:
    version, driver = client
    topic = f"Orders{version}"
    for mode in ("sync", "async", "batch"):
        sent = driver.run("produce", topic=topic, run=mode, count=40, mode=mode, **ORDERS)
        assert sent.summary["statuses"] == {"SEND_OK": 40}, sent.lines
    driver.run("produce", topic=topic, run="oneway", count=5, mode="oneway", **ORDERS)
    token = driver.run("produce", topic=topic, run="token", count=5, security_token="a-token", **ORDERS)
    assert token.summary["statuses"] == {"SEND_OK": 5}
    consumed = {"topic": topic, "group": f"billing{version}", "run": "sync", "count": 40, "min_received": 130}
    got = driver.run("consume", **consumed, **BILLING).summary
    assert got["unique"] == 40, got
    assert got["unique"] + got["strangers"] >= 130, got


@pytest.mark.parametrize(
    "who",
    [{"access_key": "orders", "secret_key": "wrong-secret"}, {"access_key": "nobody", "secret_key": OLD}, BILLING, {}],
    ids=["wrong key", "unknown user", "without the right", "unsigned"],
)
def test_others_send_nothing(client: tuple[str, Driver], guarded: Guarded, who: dict[str, str]) -> None:
    version, driver = client
    before = admin(driver, "topicStatus", "-t", f"Orders{version}")
    refused = driver.run("produce", topic=f"Orders{version}", run="refused", count=1, timeout_ms=3000, retries=0, **who)
    assert not refused.of("summary") or not refused.summary["statuses"], refused.lines
    assert "secret" not in json.dumps([line for line in refused.lines if line["event"] == "error"])
    assert admin(driver, "topicStatus", "-t", f"Orders{version}").split() == before.split() or "Last" in before


def test_a_key_is_rotated_under_traffic(client: tuple[str, Driver], guarded: Guarded) -> None:
    """Two keys are valid, then the new one alone. No send of a client with a valid key fails."""
    version, driver = client
    topic = f"Orders{version}"
    running = driver.start("produce", topic=topic, run="rotated", count=3_000, **ORDERS)
    guarded.put(users(NEW, OLD))
    with_new = driver.run("produce", topic=topic, run="new", count=50, access_key="orders", secret_key=NEW)
    assert with_new.summary["statuses"] == {"SEND_OK": 50}
    assert running.finish().summary["statuses"] == {"SEND_OK": 3_000}
    guarded.put(users(NEW))
    old = driver.run("produce", topic=topic, run="old", count=1, timeout_ms=3000, retries=0, **ORDERS)
    assert not old.of("summary") or not old.summary["statuses"], old.lines
    guarded.put(users())


def sends(driver: Driver, topic: str, access_key: str, secret_key: str) -> None:
    """A new user sends once its NameServer knows it, some milliseconds after the broker."""
    for _ in range(20):
        sent = driver.run("produce", topic=topic, run="new", count=5, access_key=access_key, secret_key=secret_key)
        if sent.summary["statuses"] == {"SEND_OK": 5}:
            return
    raise AssertionError(sent.lines)


def test_mqadmin_manages_users(client: tuple[str, Driver], guarded: Guarded) -> None:
    version, driver = client
    broker = guarded.target.broker_address
    if version == "49":
        key = "plain-secret"
        words = ["-a", "plain", "-s", key, "-t", "Orders49=PUB", "-i", "DENY", "-u", "DENY", "-m", "false"]
        out = admin(driver, "updateAclConfig", "-b", broker, *words)
        assert "success" in out, out
        guarded.merge()
        sends(driver, "Orders49", "plain", key)
        assert "success" in admin(driver, "deleteAccessConfig", "-b", broker, "-a", "plain")
        return
    out = admin(driver, "createUser", "-b", broker, "-u", "made", "-p", "made-secret", "-t", "Normal")
    assert "success" in out, out
    rule = ["-s", "User:made", "-r", "Topic:Orders55", "-a", "PUB", "-d", "Allow"]
    out = admin(driver, "createAcl", "-b", broker, *rule)
    assert "success" in out, out
    guarded.merge()
    sends(driver, "Orders55", "made", "made-secret")
    listed = admin(driver, "listUser", "-b", broker) + admin(driver, "listAcl", "-b", broker)
    assert "made" in listed
    assert "Topic:Orders55" in listed
    assert "made-secret" not in listed
    refused = admin(driver, "createUser", "-b", broker, "-u", "thief", "-p", "thief-secret", who=BILLING)
    assert "CODE: 16" in refused, refused
    assert "success" in admin(driver, "deleteUser", "-b", broker, "-u", "made")
