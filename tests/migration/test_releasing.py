"""What a cutover left at brokers of RocketMQ is given back without the cluster: gantry migrate release."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from gantry_broker.client import BrokerError
from gantry_broker.protocol.codes import FORMER_MASTER_ID, RequestCode
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.migrate import release
from gantry_operator.migration import releasing
from gantry_operator.migration.cutover_edge import ACCEPTS_FROM, NEVER_MS
from gantry_operator.migration.releasing import Found, lines, wanted

from benchmarks.rig import rocketmq
from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import Started, until
from benchmarks.rig.wire import Wire
from tests.migration.scene import SMALL, Scene, as_documented, put, scene
from tests.migration.test_state import create, cut_at

SLAVE = "127.0.0.1:10921"


def broker(
    address: str = "s:1", number: int = 0, permission: int = 6, accepts: int = 0, *, name: str = "broker-a",
    config_number: int | None = None, own_address: str | None = None,
) -> Found:  # fmt: skip
    own = number if config_number is None else config_number
    config = {"brokerPermission": str(permission), "brokerId": str(own), ACCEPTS_FROM: str(accepts)}
    config["brokerIP1"], _, config["listenPort"] = (own_address or address).partition(":")
    return Found(name, address, number, config)


ASIDE = broker(number=FORMER_MASTER_ID, permission=0, accepts=NEVER_MS)
SILENT = Found("broker-a", "g:1", 0, None)
GANTRYS = Found("broker-a", "g:1", 0, None, is_gantrys=True)


def states(*found: Found) -> dict[str, str]:
    return {line.address: line.state for line in lines(found)}


def test_what_only_a_cutover_sets_is_given_back() -> None:
    assert states(ASIDE, broker("s:2", 901, 0, NEVER_MS)) == {"s:1": "to release", "s:2": "to release"}
    assert (wanted(ASIDE, 6)["brokerId"], wanted(broker("s:2", 901, 0, NEVER_MS), 7)) == (
        "0", {"brokerId": "1", "brokerPermission": "7", ACCEPTS_FROM: "0"},
    )  # fmt: skip
    # Before the addresses were given to clients it keeps its number; a slave that was away, or a former master under a
    # controller, has its number back and refuses sends.
    for one in (broker(permission=2), broker(permission=0, accepts=NEVER_MS)):
        assert states(one) == {"s:1": "to release"}
        assert wanted(one, 6)["brokerId"] == "0"
    assert states(broker(), broker("s:2", 902, 0)) == {"s:1": "as it was", "s:2": "to release"}


@pytest.mark.parametrize("one", [broker(), broker(permission=4), broker(permission=0), broker(permission=7, number=3)])
def test_what_an_administrator_set_stays(one: Found) -> None:
    (line,) = lines([one])
    assert line.state == "as it was"
    assert f"brokerPermission={one.settings.permission}" in line.note


@pytest.mark.parametrize(
    ("leader", "said"),
    [
        (GANTRYS, "Gantry leads the group at g:1: go back with gantry migrate rollback"),
        (SILENT, "g:1 leads the group and does not answer"),
        (broker("g:1", 0, config_number=FORMER_MASTER_ID), "Gantry passes clients on at g:1"),
        (broker("g:1", own_address="s:1"), "Gantry passes clients on at g:1"),
    ],
)
def test_clients_get_no_second_master(leader: Found, said: str) -> None:
    for one in (ASIDE, broker("s:1", 901, 0, NEVER_MS)):
        found = {line.address: line for line in lines([one, leader, broker("b:1", name="broker-b")])}
        assert (found["s:1"].state, said in found["s:1"].note) == ("refused", True)
        # A request to its address would change the source.
        assert found["g:1"].state in ("refused", "as it was")
    assert states(ASIDE, Found("broker-b", "g:1", 0, None, is_gantrys=True)) == {
        "s:1": "to release",
        "g:1": "as it was",
    }


def test_a_broker_that_does_not_answer_is_named() -> None:
    (line,) = lines([SILENT])
    assert (line.state, "wait for two minutes" in line.note) == ("refused", True)


async def test_a_broker_that_asks_for_other_keys_is_not_taken_for_a_dead_one() -> None:
    class Admin:
        async def runtime_info(self, address: str) -> dict[str, str]:
            if address == "s:2":
                raise OSError("no connection")
            raise BrokerError("BROKER_RUNTIME_INFO", 1, "No accessKey is configured")

    found = [await releasing._ask(cast(Any, Admin()), "broker-a", f"s:{n}", n - 1) for n in (1, 2)]
    first, second = lines(found)
    assert (first.state, second.state) == ("refused", "refused")
    assert "No accessKey is configured" in first.note
    assert "give the keys of an administrator" in first.note
    assert "it does not answer" in second.note
    (aside, _) = lines([replace(ASIDE, address="s:3"), found[0]])[::-1]
    assert (aside.state, "s:1 leads the group, may be Gantry and refuses to answer" in aside.note) == ("refused", True)


def test_words_that_cannot_be_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    for given, said in (
        ({}, "write a manifest, or --name-servers"),
        ({"file": file, "name_servers": "n:1"}, "write a manifest, or --name-servers"),
        ({"name_servers": " ; "}, "names no NameServer"),
        ({"name_servers": "n:1", "permission": 9}, "--permission 9: clients need"),
        ({"name_servers": "n:1", "brokers": ","}, "names no broker"),
        ({"file": file, "secret": "x"}, "are for --name-servers"),
    ):
        words: dict[str, Any] = {"permission": 6, "brokers": None, "secret": None, "ca": None, **given}
        with pytest.raises(CliError, match=re.escape(said)):
            release(**words)


def settings(clients: Driver) -> dict[str, str]:
    """The slave's."""
    text = clients.mqadmin("getBrokerConfig", "-b", SLAVE)
    return {key: value for key, value in re.findall(r"^(\w+)\s*=\s*(\S*)", text, re.M)}


def stands_aside(made: Scene) -> bool:
    with Wire(SLAVE, 30, made.source.prefix) as wire:
        return b"\nbrokerId=901\n" in b"\n" + wire.call(RequestCode.GET_BROKER_CONFIG, {}).body


@pytest.fixture(params=[("server49", "49"), ("server55", "55")], ids=["4.9.7", "5.5.0"])
def moved(request: pytest.FixtureRequest, java_side: Path, tmp_path: Path) -> Iterator[tuple[Scene, str, str]]:
    server, client = request.param
    with scene(tmp_path, server) as made:
        yield made, server, client


@contextlib.contextmanager
def in_a_cutover(made: Scene, clients: Driver, server: str) -> Iterator[Started]:
    """A source with a slave, in a cutover that was killed after writes ended. Yields the slave."""
    create(made, clients, "Orders")
    put(clients, topic="Orders", count=100, run="run")
    with rocketmq.slave(made.base / "slave", made.source, settings=SMALL, server=server) as slave:
        made.start()
        made.until_following()
        # It has its last end half a second later.
        cut_at(made, "writes-off", lambda: stands_aside(made))
        assert settings(clients)["brokerId"] == "901"
        yield slave


@pytest.mark.timeout(290)
def test_a_slave_that_is_down_at_an_abort_gets_its_settings_back_later(moved: tuple[Scene, str, str]) -> None:
    made, server, client = moved
    clients = made.driver(client)
    with in_a_cutover(made, clients, server) as slave:
        words = [w.decode() for w in Path(f"/proc/{slave.popen.pid}/cmdline").read_bytes().split(b"\0")[:-1]]
        slave.popen.kill()
        slave.popen.wait()
    done = made.migrate("abort")
    assert "has its permission back" in done.stdout
    assert "were down at the abort" in done.stderr
    assert made.status()["groups"]["a"]["lacking"] == [SLAVE]
    assert SLAVE in made.migrate("status").stderr
    put(clients, topic="Orders", first=100, count=10, run="run")
    with Started(
        [*made.source.prefix, *words], made.base / "again.log", rocketmq.environment(made.base / "slave")
    ) as again:
        until("RocketMQ's slave", lambda: "boot success" in again.tail(100_000), 60, [again])
        until("it is in the routes", lambda: "901" in clients.mqadmin("clusterList"), 60, [again])
        before = settings(clients)
        assert before["brokerId"] == "901", "it keeps them in its file"
        assert before["brokerPermission"] in ("0", "2")
        made.until("status names it", lambda s: s["groups"]["a"]["lacking"] == [SLAVE])
        done = made.migrate("abort")
        assert "were down" not in done.stderr
        after = settings(clients)
        assert (after["brokerPermission"], after["brokerId"], after[ACCEPTS_FROM]) == ("6", "1", "0")
        assert made.status()["groups"]["a"]["lacking"] == []


@pytest.mark.timeout(290)
def test_a_source_whose_cluster_is_gone_gets_its_settings_back(moved: tuple[Scene, str, str]) -> None:
    made, server, client = moved
    clients = made.driver(client)
    with in_a_cutover(made, clients, server):
        refused = made.gantry("migrate", "release", "--name-servers", made.source.namesrv, "--yes", check=False)
        assert refused.returncode == 1
        assert "Gantry passes clients on" in refused.stderr
        assert "released" not in refused.stdout
        made.gantry("down", "--dir", str(made.folder))
        shutil.rmtree(made.folder)
        servers = "migrate release --name-servers 192.0.2.10:9876"
        dry = made.gantry("migrate", "release", str(made.file), "--dry-run")
        dry.stdout = dry.stdout.replace(made.source.broker_name, "broker-a")
        as_documented(f"{servers} --dry-run", dry)
        done = made.gantry("migrate", "release", "--name-servers", made.source.namesrv, "--yes")
        done.stdout = done.stdout.replace(made.source.broker_name, "broker-a")
        as_documented(f"{servers} --yes", done)
        assert settings(clients)["brokerId"] == "1"
        sent = clients.run("produce", topic="Orders", first=100, count=10, run="run")
        assert sent.summary["statuses"] in ({"SEND_OK": 10}, {"SLAVE_NOT_AVAILABLE": 10})
        again = made.gantry("migrate", "release", "--name-servers", made.source.namesrv, "--yes")
        assert "nothing was changed" in again.stdout
