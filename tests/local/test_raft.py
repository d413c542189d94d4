"""A group in mode Raft under `gantry up`: it elects by itself, the address follows, a switchover is a transfer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest
from gantry_broker.client import Producer, SendStatus

from tests.local.cluster import SILENT_GAP_S, Cluster, Load, check_account, kill, read_all, running

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def raft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(Cluster(tmp_path_factory.mktemp("raft"), nameServers={"replicas": 1}, mode="Raft")) as made:
        yield made


async def test_a_group_with_hardly_anything_to_do_keeps_its_leader(raft: Cluster) -> None:
    before = raft.until("a leader", raft.master)
    async with Producer(raft.name_servers) as producer:
        for number in range(6):
            assert (await producer.send("Idle", b"%d" % number)).status == SendStatus.SEND_OK
            await asyncio.sleep(2.5)
    # A stall of the machine may cause one election. The fault caused one every few seconds.
    assert raft.master()["epoch"] <= before["epoch"] + 1


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


async def test_a_frozen_leader_gives_the_port_up_whenever_it_spoke_last(raft: Cluster) -> None:
    """The group elects before the supervisor counts a member as frozen that reported a moment ago."""
    for number in range(3):
        raft.until("all three answer", lambda: all(m["ready"] for m in raft.members().values()))
        before = raft.master()
        async with Load.on(raft, f"Frozen{number}", f"z{number}") as load:
            await load.more(50)
            kill(before["pid"], signal.SIGSTOP)
            await load.more(100)
        assert raft.master()["name"] != before["name"]
        await check_account(raft, load)
        assert load.gap_s() < SILENT_GAP_S, f"senders waited {load.gap_s():.2f} s"
        raft.until("it was replaced", lambda b=before: raft.members()[b["name"]].get("pid") not in (None, b["pid"]))  # type: ignore[misc]


@pytest.mark.parametrize("named", [True, False], ids=["to a member", "to the best"])
async def test_a_switchover_transfers_the_leadership_once(raft: Cluster, named: bool) -> None:
    raft.until("all three answer", lambda: all(m["ready"] for m in raft.members().values()))
    before = raft.master()
    target = next(m["name"] for m in raft.members().values() if m["role"] == "Slave")
    async with Load.on(raft, f"Transfer{named}", "t", senders=16) as load:
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
    twice = [body for body, count in (await read_all(raft, load.topic, load.promised)).items() if count > 1]
    assert not twice, "what was in flight is stored once: answered by the former leader, or forwarded (rule 23)"
    last = raft.resource()["status"]["lastFailover"]
    assert (last["to"], last["planned"]) == (after["name"], True)


async def test_members_come_and_go_one_at_a_time_without_a_stop(raft: Cluster) -> None:
    """Rule 27, from a user's request: the manifest has another number, and `gantry up` gets it again."""

    def votes() -> list[str]:
        members = raft.members().values()
        if any(not m["ready"] for m in members) or [m["role"] for m in members].count("Master") != 1:
            return []
        return sorted(m["name"] for m in members if m.get("inSync"))

    await asyncio.to_thread(raft.until, "a whole group", lambda: len(votes()) == 3)
    before = {name: m["pid"] for name, m in raft.members().items()}
    async with Load.on(raft, "Changing", "c") as load:
        await load.more(100)
        for count in (5, 3):
            raft.write(nameServers={"replicas": 1}, mode="Raft", brokerGroups=[{"name": "a", "members": count}])
            await asyncio.to_thread(raft.up)
            wanted = [f"t-a-{n}" for n in range(count)]
            assert await asyncio.to_thread(votes) == wanted, "`gantry up` returns once they vote"
            await load.more(100)
    assert load.errors == []
    assert {name: m["pid"] for name, m in raft.members().items()} == before, "no member was restarted"
    await check_account(raft, load)
    removed = [e["message"] for e in raft.events("MemberRemoved")]
    assert removed == ["member 4 has left the group", "member 3 has left the group"]


async def test_the_preferred_member_leads_again(raft: Cluster) -> None:
    before = await asyncio.to_thread(raft.until, "a leader", raft.master)
    other = next(n for n in range(3) if f"t-a-{n}" != before["name"])
    raft.write(
        nameServers={"replicas": 1}, mode="Raft", brokerGroups=[{"name": "a", "members": 3, "preferredMaster": other}]
    )
    async with Load.on(raft, "Preferred", "p") as load:
        await asyncio.to_thread(raft.up)
        await asyncio.to_thread(raft.until, "it leads", lambda: raft.master()["name"] == f"t-a-{other}")
        await load.more(100)
    assert load.errors == []
    await check_account(raft, load)
