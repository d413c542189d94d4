"""A group in mode Raft under `gantry up`: it elects by itself, the address follows, a switchover is a transfer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest
from local_cluster import Cluster, Load, check_account, kill, take_down

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def raft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("raft"), nameServers={"replicas": 1}, mode="Raft")
    try:
        made.up()
        yield made
    finally:
        take_down(made)


async def test_a_killed_leader_is_followed_by_an_elected_one(raft: Cluster) -> None:
    before = raft.until("a leader", raft.master)
    assert not (raft.folder.registry / "a.json").exists(), "nothing is assigned in this mode"
    async with Load.on(raft, "Elected", "e") as load:
        await load.more(100)
        kill(before["pid"], signal.SIGKILL)
        await load.more(200)
    after = raft.until("another leads", lambda: raft.master()["epoch"] > before["epoch"] and raft.master())
    assert after["address"] == before["address"], "clients keep their address"
    await check_account(raft, load)


@pytest.mark.parametrize("named", [True, False], ids=["to a member", "to the best"])
async def test_a_switchover_transfers_the_leadership_once(raft: Cluster, named: bool) -> None:
    raft.until("all three answer", lambda: all(m["ready"] for m in raft.members().values()))
    before = raft.master()
    target = next(m["name"] for m in raft.members().values() if m["role"] == "Slave")
    async with Load.on(raft, "Transfer", f"t{named}") as load:
        await load.more(100)
        done = await asyncio.to_thread(raft.gantry, "switchover", "a", *(["--to", target] if named else []))
        await load.more(100)
    after = raft.master()
    assert after["name"] in done.stdout
    assert after["name"] != before["name"]
    assert after["epoch"] == before["epoch"] + 1, "the new leader was not asked to hand over in its turn"
    assert not named or after["name"] == target
    assert load.errors == []
    await check_account(raft, load)
    last = raft.resource()["status"]["lastFailover"]
    assert (last["to"], last["planned"]) == (after["name"], True)
