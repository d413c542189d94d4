"""Mode Raft with real stores and sockets: a group that elects its leader itself."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gantry_broker.contracts.leadership import MemberId
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.replication import wire
from gantry_broker.replication.core import Role
from gantry_broker.replication.members import ids
from gantry_broker.replication.raft import RaftReplica
from gantry_broker.replication.raft_messages import RaftRequest, RaftRequestKind

from tests.replication.group import Node
from tests.support.patience import SLOW
from tests.support.present import present
from tests.support.running import until


@asynccontextmanager
async def raft_group(root: Path, count: int = 3) -> AsyncIterator[list[Node]]:
    nodes = [Node(root, member, mode="Raft") for member in range(count)]
    addresses = {node.member: await node.listen() for node in nodes}
    for node in nodes:
        node.options["members"] = addresses
        await node.start()
    try:
        yield nodes
    finally:
        for node in nodes:
            if node.up:
                await node.stop()


def leader_of(nodes: list[Node]) -> Node | None:
    leaders = [n for n in nodes if n.up and n.service.role is Role.MASTER]
    return max(leaders, key=lambda n: n.service.epoch, default=None)


async def elected(nodes: list[Node], seconds: float = 8.0) -> Node:
    await until(lambda: leader_of(nodes) is not None, "a leader", seconds)
    return present(leader_of(nodes))


async def kill(node: Node) -> None:
    await node.stop(clean=False)


async def answer_fetch(node: Node) -> None:
    port = int(node.address.rpartition(":")[2])
    node.server = node.make_server(port)
    await node.start()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with raft_group(tmp_path) as made:
        yield made


async def test_a_group_elects_a_leader_and_a_majority_confirms(nodes: list[Node]) -> None:
    leader = await elected(nodes)
    assert await leader.put(b"a") is SendStatus.SEND_OK
    await until(lambda: all(n.bodies() == [b"a"] for n in nodes), "all have it")
    await until(lambda: all(n.store.state.confirmed == leader.store.log.end for n in nodes), "all know it confirmed")
    status = leader.service.status_fields()
    assert (status["role"], status["epoch"], len(status["in_sync"])) == ("Master", 1, 3)


async def test_the_leader_dies_and_nothing_is_lost(nodes: list[Node]) -> None:
    bodies = []
    for turn in range(3):
        leader = await elected(nodes)
        for number in range(10):
            body = b"%d-%d" % (turn, number)
            assert await leader.put(body) is SendStatus.SEND_OK
            bodies.append(body)
        await kill(leader)
        assert (await elected(nodes)).bodies() == bodies
        await answer_fetch(leader)
        await until(lambda leader=leader: leader.service.role is Role.SLAVE, "the old leader follows")
    await until(lambda: all(n.bodies() == bodies for n in nodes), "all have everything")


async def test_a_transfer_moves_the_leadership_in_a_moment(nodes: list[Node]) -> None:
    leader = await elected(nodes)
    assert await leader.put(b"a") is SendStatus.SEND_OK
    target = next(n for n in nodes if n is not leader)
    started = asyncio.get_running_loop().time()
    answer = await leader.service.handover(target.service.me, leader.service.epoch)
    assert answer.ready, answer.reason
    assert asyncio.get_running_loop().time() - started < 1.0 * SLOW
    assert leader_of(nodes) is target
    assert leader.service.handed_to == target.address
    assert not leader.service.writes_paused
    assert await target.put(b"b") is SendStatus.SEND_OK
    await until(lambda: all(n.bodies() == [b"a", b"b"] for n in nodes), "all have it")


async def test_rule_24_without_a_majority_a_leader_steps_down(nodes: list[Node]) -> None:
    leader = await elected(nodes)
    assert await leader.put(b"a") is SendStatus.SEND_OK
    for node in nodes:
        if node is not leader:
            await kill(node)
    assert await leader.put(b"b", timeout_ms=400) is SendStatus.FLUSH_SLAVE_TIMEOUT
    await until(lambda: leader.service.role is not Role.MASTER, "it steps down", 6)


async def test_rule_26_a_member_that_lost_its_disk_joins_as_a_learner_and_is_added(nodes: list[Node]) -> None:
    leader = await elected(nodes)
    for number in range(20):
        assert await leader.put(b"%d" % number) is SendStatus.SEND_OK
    lost = next(n for n in nodes if n is not leader)
    before = lost.service.me
    await kill(lost)
    shutil.rmtree(lost.root)
    await answer_fetch(lost)
    assert lost.service.me != before
    core = leader.service.core
    assert isinstance(core, RaftReplica)
    await until(lambda: lost.service.me in ids(core.members), "its new disk is a member", 10)
    assert before not in ids(core.members)
    assert len(core.members) == 3
    assert lost.bodies() == leader.bodies()


async def test_rule_27_a_member_is_removed_through_the_log(nodes: list[Node]) -> None:
    leader = await elected(nodes)
    assert await leader.put(b"a") is SendStatus.SEND_OK
    gone = next(n for n in nodes if n is not leader)
    await kill(gone)
    assert await leader.service.remove_member(gone.member) == ""
    assert await leader.put(b"b") is SendStatus.SEND_OK
    core = leader.service.core
    assert isinstance(core, RaftReplica)
    assert {v.id.member for v in core.members} == {n.member for n in nodes if n is not gone}
    end = leader.store.log.end
    assert await leader.service.remove_member(gone.member) == "", "it has left already"
    assert leader.store.log.end == end
    follower = next(n for n in nodes if n is not leader and n is not gone)
    for number in (gone.member, leader.member):
        assert await follower.service.remove_member(number), "it does not lead, so it cannot know"


async def test_all_members_restart(nodes: list[Node]) -> None:
    leader = await elected(nodes)
    assert await leader.put(b"a") is SendStatus.SEND_OK
    epoch = leader.service.epoch
    for node in nodes:
        await kill(node)
    for node in nodes:
        await answer_fetch(node)
    leader = await elected(nodes)
    assert leader.service.epoch > epoch
    assert await leader.put(b"b") is SendStatus.SEND_OK
    await until(lambda: all(n.bodies() == [b"a", b"b"] for n in nodes), "all have everything")


async def test_all_members_restart_on_other_ports(nodes: list[Node]) -> None:
    """The log names the addresses at which they were added; no process is there any more."""
    leader = await elected(nodes)
    assert await leader.put(b"a") is SendStatus.SEND_OK
    for node in nodes:
        await kill(node)
    held = [await asyncio.start_server(lambda r, w: w.close(), *n.address.split(":")) for n in nodes]
    for node in nodes:
        node.server = node.make_server(0)
    addresses = {node.member: await node.listen() for node in nodes}
    for node in nodes:
        node.options["members"] = addresses
        await node.start()
    leader = await elected(nodes)
    assert await leader.put(b"b") is SendStatus.SEND_OK
    await until(lambda: all(n.bodies() == [b"a", b"b"] for n in nodes), "all have everything")
    for server in held:
        server.close()


@pytest.mark.parametrize("differs", [{"cluster": "other"}, {"group_address": "c-g-master.elsewhere.svc:10911"}])
async def test_a_member_of_another_group_at_a_known_address_gets_no_part(
    tmp_path: Path, differs: dict[str, str]
) -> None:
    """A port or a pod's address may be given to another cluster's broker, or to that of a cluster of the same name in
    another namespace: it neither votes nor leads here.
    """
    async with raft_group(tmp_path / "ours") as nodes:
        leader = await elected(nodes)
        assert await leader.put(b"a") is SendStatus.SEND_OK
        epoch = leader.service.epoch
        stranger = Node(tmp_path / "other", 2, mode="Raft", **differs)
        stranger.options["members"] = {**leader.options["members"], 2: await stranger.listen()}  # type: ignore[dict-item]
        await stranger.start()
        try:
            # Its pre-vote and its search for a leader have gone round some times by then.
            await asyncio.sleep(3.0)
            assert stranger.service.role is Role.WAITING
            assert (stranger.bodies(), stranger.service.epoch) == ([], 0)
            assert leader_of(nodes) is leader
            assert leader.service.epoch == epoch
        finally:
            await stranger.stop()


def test_a_poll_of_a_member_that_does_not_say_its_groups_address_counts() -> None:
    """While members are replaced by newer ones, one by one, they must go on together."""
    request = RaftRequest(RaftRequestKind.VOTE, 3, MemberId(1, "b"), "b:1")
    frame = wire.raft_request_frame(request, "c/g", "here:1")
    assert wire.not_of_group(frame, "c/g", "here:1") == ""
    assert "at there:1" in wire.not_of_group(frame, "c/g", "there:1")
    del frame.ext["groupAddress"]
    assert wire.not_of_group(frame, "c/g", "here:1") == ""
    assert "not of c/g" in wire.not_of_group(frame, "d/g", "here:1")
