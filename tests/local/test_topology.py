"""Groups side by side, a slave that dies, and a group whose in-sync set is lost for good."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.cluster import GAP_S, Cluster, Load, check_account, kill, one_group, read_all, running


@pytest.fixture
def dual(tmp_path: Path) -> Iterator[Cluster]:
    """Two groups of one member each."""
    groups = [{"name": "a", "members": 1}, {"name": "b", "members": 1}]
    with running(Cluster(tmp_path, nameServers={"replicas": 1}, brokerGroups=groups)) as made:
        yield made


async def test_with_two_masters_sends_go_on_to_the_other_one(dual: Cluster) -> None:
    """The records of the first one are available again when it runs."""
    first = dual.master("a")
    async with Load.on(dual, "Dual", "d") as load:
        await load.more(100)
        kill(dual.supervisor_pid(), signal.SIGSTOP)  # Otherwise it would start again at once.
        try:
            kill(first["pid"], signal.SIGKILL)
            await load.more(300)
        finally:
            kill(dual.supervisor_pid(), signal.SIGCONT)
        await asyncio.to_thread(dual.until, "it leads again", lambda: dual.master("a")["epoch"] > first["epoch"])
        await load.more(100)
    assert load.errors == []
    await check_account(dual, load)
    assert all(member["maxOffset"] > 0 for member in dual.members().values())


@pytest.fixture
def unclean(tmp_path: Path) -> Iterator[Cluster]:
    with running(Cluster(tmp_path, **one_group(2), failover={"unclean": True, "detectionTimeout": "1500ms"})) as made:
        yield made


async def test_unclean_gives_up_records_of_the_lost_set_and_reports_the_amount(unclean: Cluster) -> None:
    unclean.until("all members are in sync", unclean.whole)
    kept = await promised(unclean, "kept")
    before = unclean.master()
    # By its name: on a busy machine a member may not have answered just now, and then its role is unknown.
    other = next(m for m in unclean.members().values() if m["name"] != before["name"])
    kill(other["pid"], signal.SIGSTOP)
    unclean.until("the slave left the set", lambda: unclean.members()[other["name"]].get("inSync") is False)
    given_up = await promised(unclean, "given up")
    kill(before["pid"], signal.SIGSTOP)
    kill(other["pid"], signal.SIGCONT)
    [event] = unclean.until("the one that lacks them leads", lambda: unclean.events("UncleanFailoverStarted"), 60)
    said = re.search(r"gives up at least (\d+) bytes", event["message"])
    assert said is not None, event
    assert int(said[1]) > 0, "the master's last report had some of them"
    unclean.until("the former master follows", unclean.whole, 60)
    assert unclean.master()["name"] == other["name"]
    # In every queue these come after the position of the others.
    new = await promised(unclean, "new")
    seen = await read_all(unclean, "Unclean", kept | new)
    assert kept | new <= set(seen)
    assert given_up.isdisjoint(seen)


async def promised(cluster: Cluster, tag: str) -> set[bytes]:
    async with Load.on(cluster, "Unclean", tag) as load:
        await load.more(50)
    return load.promised


async def test_a_slave_that_dies_is_not_noticed_by_senders_and_readers(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, nameServers={"replicas": 1})) as cluster:
        cluster.until("all members are in sync", cluster.whole)
        slave = next(m for m in cluster.members().values() if m["role"] == "Slave")
        async with Load.on(cluster, "SlaveDies", "s") as load:
            await load.more(100)
            reading = asyncio.create_task(read_all(cluster, "SlaveDies", set(load.promised)))
            kill(slave["pid"], signal.SIGKILL)
            await load.more(200)
            await reading
        assert load.errors == []
        assert load.gap_s() < GAP_S
        await check_account(cluster, load)
        cluster.until("it is in sync again", cluster.whole)
        assert cluster.members()[slave["name"]]["role"] == "Slave"
