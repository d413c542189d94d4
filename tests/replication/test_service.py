"""The driver with real stores and sockets: what a broker relies on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from gantry_broker.contracts.leadership import Assignment
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.replication import replica
from gantry_broker.replication.core import Role
from gantry_broker.replication.leader import Options
from gantry_broker.settings import BrokerSettings

from tests.replication.group import Group, Node
from tests.support.present import present
from tests.support.running import until
from tests.support.unpacking import unpack

STORES = Path(__file__).parent.parent / "data" / "stores"


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    """Three members in sync, of which the first leads."""
    async with Group(tmp_path) as made:
        await made.promote(0, (0, 1, 2))
        yield made


async def test_a_send_is_ok_when_every_member_of_the_set_has_it(group: Group) -> None:
    assert await group.nodes[0].put(b"a", b"b") is SendStatus.SEND_OK
    assert all(n.bodies() == [b"a", b"b"] for n in group.nodes)
    master = group.nodes[0]
    await until(
        lambda: all(n.store.state.confirmed == master.store.log.end for n in group.nodes), "all know it confirmed"
    )
    assert [n.service.role for n in group.nodes] == [Role.MASTER, Role.SLAVE, Role.SLAVE]


@pytest.mark.parametrize("flush", ["Async", "Sync"])
async def test_many_sends_one_by_one(tmp_path: Path, flush: str) -> None:
    async with Group(tmp_path, 2, flush=flush) as group:
        await group.promote(0, (0, 1))
        started = time.monotonic()
        for number in range(200):
            assert await group.nodes[0].put(b"%d" % number) is SendStatus.SEND_OK
        assert time.monotonic() - started < 10
        if flush == "Sync":
            assert group.nodes[1].store.state.flushed == group.nodes[1].store.log.end


async def test_rule_08_without_the_set_nothing_is_confirmed_and_the_send_says_so(tmp_path: Path) -> None:
    async with Group(tmp_path, 2, min_in_sync=2) as group:
        await group.promote(0, (0, 1), assigned=(0,))
        master = group.nodes[0]
        assert await master.put(b"a", timeout_ms=300) is SendStatus.FLUSH_SLAVE_TIMEOUT
        assert master.store.state.confirmed == 0
        await group.send_assignments((1,))
        await until(
            lambda: master.store.state.confirmed == master.store.log.end, "confirmed once the follower is there"
        )


async def test_async_replication_answers_at_once_and_confirms_later(tmp_path: Path) -> None:
    async with Group(tmp_path, 2, replication="Async") as group:
        await group.promote(0, (0, 1), assigned=(0,))
        master = group.nodes[0]
        assert await master.put(b"a") is SendStatus.SEND_OK
        assert master.store.state.confirmed == 0
        await group.send_assignments((1,))
        await until(lambda: master.store.state.confirmed == master.store.log.end, "confirmed")


async def test_rule_12_an_acknowledgement_within_a_record_confirms_the_records_before(tmp_path: Path) -> None:
    async with Group(tmp_path, 2) as group:
        await group.promote(0, (0, 1))
        master = group.nodes[0]
        assert await master.put(b"a") is SendStatus.SEND_OK
        group.nodes[1].refuse_fetches = True
        master.refuse_fetches = True
        before = master.store.state.confirmed
        waiting = master.put(b"b", timeout_ms=200)
        leader = present(master.service.core.leader)
        for view in leader.followers.values():
            view.acked = before + 3
        master.service.core.tick(0)
        assert master.store.state.confirmed == before
        assert await waiting is not SendStatus.SEND_OK
        for view in leader.followers.values():
            view.acked = master.store.log.end
        await until(lambda: master.store.state.confirmed == master.store.log.end, "confirmed")


async def test_rule_10_a_demoted_master_answers_its_waiting_sends_first(group: Group) -> None:
    group.nodes[0].refuse_fetches = True
    await asyncio.sleep(0.02)
    await group.nodes[0].put(b"warm", timeout_ms=1)
    waiting = group.nodes[0].put(b"lost")
    group.nodes[0].roles.clear()
    waiting.add_done_callback(lambda _: group.nodes[0].roles.append("answered"))
    await group.promote(1, (1, 2))
    assert await waiting is SendStatus.FLUSH_SLAVE_TIMEOUT
    await until(lambda: group.nodes[0].bodies() == group.nodes[1].bodies(), "the old master has cut and follows")
    assert b"lost" not in group.nodes[1].bodies()


async def test_an_old_master_truncates_records_that_only_it_has_and_follows(group: Group) -> None:
    assert await group.nodes[0].put(b"a") is SendStatus.SEND_OK
    group.nodes[0].refuse_fetches = True
    await until(lambda: not group.nodes[0].service.core.waiters, "quiet")
    late = group.nodes[0].put(b"only here", timeout_ms=200)
    await group.promote(1, (1, 2), assigned=(1, 2))
    assert await group.nodes[1].put(b"b") is SendStatus.SEND_OK
    assert await late is not SendStatus.SEND_OK
    await group.send_assignments((0,))
    await until(lambda: group.nodes[0].bodies() == [b"a", b"b"], "the old master follows")


async def test_rule_14_a_higher_epoch_stops_a_master_at_once(group: Group) -> None:
    group.nodes[0].service.saw_epoch(7)
    assert group.nodes[0].service.role is Role.WAITING
    assert not group.nodes[0].service.may_append


async def test_rule_19_a_follower_that_catches_up_is_proposed(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.promote(0, (0,), assigned=(0,))
        master = group.nodes[0]
        for number in range(50):
            assert await master.put(b"%d" % number) is SendStatus.SEND_OK
        await group.send_assignments()
        wanted = group.ids(0, 1, 2)
        while master.service.core.leadership.in_sync != wanted:
            await until(lambda: master.service.core.proposal is not None, "a proposal")
            proposal = present(master.service.core.proposal)
            assert proposal.base_version == group.leadership.version
            group.leadership = group.leadership.with_set(proposal.in_sync)
            await group.send_assignments()
        assert await master.put(b"x") is SendStatus.SEND_OK
        assert all(n.bodies() == master.bodies() for n in group.nodes)


async def test_a_follower_catches_up_while_the_log_grows(tmp_path: Path) -> None:
    async with Group(tmp_path, 2) as group:
        await group.promote(0, (0,), assigned=(0,))
        master = group.nodes[0]
        body = bytes(1000)
        for _ in range(200):
            await master.put(*[body] * 50)  # 10 MB
        sending = True

        async def send() -> int:
            count = 0
            while sending:
                assert await master.put(*[body] * 5) is SendStatus.SEND_OK
                count += 1
                await asyncio.sleep(0.001)
            return count

        task = asyncio.create_task(send())
        await group.send_assignments()
        try:
            await until(lambda: master.service.core.proposal is not None, "a proposal while producers send", 20)
        finally:
            sending = False
            assert await task > 10


async def test_a_follower_whose_next_record_is_gone_everywhere_gets_a_full_copy(tmp_path: Path) -> None:
    settings = BrokerSettings(mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000, maxIndexNum=4000)
    async with Group(tmp_path, 2, settings=settings) as group:
        master, away = group.nodes
        await group.promote(0, (0, 1))
        assert await master.put(b"old") is SendStatus.SEND_OK
        await away.stop()
        # Before that it would be proposed again at once, and waited for.
        silent_ms = Options().silent_ms
        await until(lambda: master.service.status_fields()["followers"][0].last_fetch_ms > silent_ms, "it is silent")
        group.leadership = group.leadership.with_set(group.ids(0))
        await group.send_assignments((0,))
        for number in range(50):
            assert await master.put(*[b"%d" % number + bytes(1_000)] * 60) is SendStatus.SEND_OK
        master.store.retention.remove_before(2 << 20)
        await away.start()
        await group.send_assignments()
        await until(lambda: master.service.core.proposal is not None, "a proposal")
        assert away.store.log.start == master.store.log.start == 2 << 20
        assert away.bodies() == master.bodies()
        await until(lambda: away.store.state.confirmed == master.store.state.confirmed, "it knows what is confirmed")
        for offset in (master.store.reader.min_offset("T", 0), master.store.reader.max_offset("T", 0) - 1):
            # A record's place in its queue is the same, though the copy has none of those before it.
            found = [node.store.reader.get("T", 0, offset, 1, 1 << 20).data for node in (master, away)]
            assert found[0] == found[1] != b""
        assert b"old" not in away.bodies()


@pytest.mark.parametrize("version", ["49", "5x"])
async def test_members_without_a_log_follow_one_that_brings_a_store_of_rocketmq(tmp_path: Path, version: str) -> None:
    """The log begins with records of no epoch; a follower with some of them goes on there, also after a restart."""
    unpack(STORES / f"{version}-clean.tar.gz", tmp_path)
    (tmp_path / "clean").rename(tmp_path / "m0")
    settings = BrokerSettings(mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000, maxIndexNum=4000)
    async with Group(tmp_path, 2, settings=settings) as group:
        leader, follower = group.nodes
        began = leader.store.log.end
        assert (leader.store.log.start, leader.store.state.confirmed) == (0, began)
        follower.store.appender.append_raw(0, leader.store.log.read_raw(0, began // 2))
        await follower.stop()
        await follower.start()
        assert 0 < follower.store.log.end < began
        cuts: list[int] = []
        follower.store.truncator.truncate = cuts.append  # type: ignore[method-assign]
        await group.promote(0, (0,))
        assert await leader.put(b"new") is SendStatus.SEND_OK
        await until(lambda: follower.store.state.confirmed == leader.store.log.end, "the follower has everything")
        await until(lambda: leader.service.core.proposal is not None, "a proposal")
        assert follower.store.epoch_cache.epochs == leader.store.epoch_cache.epochs == ((0, 0), (1, began))
        assert not cuts


async def test_a_member_that_stops_takes_no_role(group: Group) -> None:
    """An assignment to lead again in its last moment: it would begin an epoch and be gone."""
    node = group.nodes[0]
    await node.service.stop()
    leadership = group.leadership.promoted(node.service.me, group.leadership.in_sync)
    answer = await node.service.assign(Assignment(leadership, node.address))
    assert (answer.accepted, answer.epoch, answer.reason) == (False, 1, "it stops")
    assert node.service.role is Role.WAITING
    assert node.store.epoch_cache.last_epoch == 1


async def test_rule_23_a_handover_pauses_writes_and_the_target_gets_everything(group: Group) -> None:
    old, new = group.nodes[0], group.nodes[1]
    sends = [old.put(b"%d" % n) for n in range(20)]
    answer = await old.service.handover(new.service.me, group.leadership.epoch, group.leadership.version)
    assert answer.ready, answer.reason
    assert old.service.writes_paused
    assert not old.service.may_append
    assert [await s for s in sends] == [SendStatus.SEND_OK] * 20
    assert new.store.log.end == answer.end
    await group.promote(1, (0, 1, 2))
    assert not old.service.writes_paused
    assert old.service.handed_to == new.address
    assert new.service.may_append
    assert await new.put(b"after") is SendStatus.SEND_OK
    assert new.bodies() == [b"%d" % n for n in range(20)] + [b"after"]


async def test_rule_23_a_newer_leadership_record_ends_a_cancelled_handover(group: Group) -> None:
    old, new = group.nodes[0], group.nodes[1]
    assert (await old.service.handover(new.service.me, group.leadership.epoch, group.leadership.version)).ready
    await group.send_assignments()
    assert old.service.writes_paused, "the same record again proves nothing"
    group.leadership = group.leadership.touched()
    await group.send_assignments()
    assert not old.service.writes_paused
    assert old.service.handed_to is None
    assert await old.put(b"a") is SendStatus.SEND_OK


@pytest.mark.parametrize("successor", [1, 2], ids=["the target", "another member"])
async def test_rule_23_a_leader_that_sees_the_new_epoch_before_its_assignment_keeps_paused_writes(
    group: Group, successor: int
) -> None:
    """A NameServer may be first to say so: it answers with the epoch in which the new master has registered."""
    old, new = group.nodes[0], group.nodes[1]
    assert (await old.service.handover(new.service.me, group.leadership.epoch, group.leadership.version)).ready
    await group.promote(successor, (0, 1, 2), assigned=(successor,))
    old.service.saw_epoch(group.leadership.epoch)
    assert old.service.role is Role.WAITING
    assert old.service.writes_paused
    await group.send_assignments()
    assert not old.service.writes_paused
    assert old.service.handed_to == (new.address if successor == 1 else None)


async def test_rule_23_paused_writes_have_a_time_limit_without_a_new_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "MOVING_MS", 200)
    async with Group(tmp_path) as group:
        await group.promote(0, (0, 1, 2))
        old, new = group.nodes[0], group.nodes[1]
        assert (await old.service.handover(new.service.me, group.leadership.epoch, group.leadership.version)).ready
        old.service.saw_epoch(group.leadership.epoch + 1)
        old.roles.clear()
        await until(lambda: bool(old.roles), "the broker learns that writes are not paused any more")
        assert not old.service.writes_paused
        await group.promote(1, (0, 1, 2))
        assert old.service.handed_to is None


async def test_rule_23_a_second_handover_does_not_replace_a_ready_one(group: Group) -> None:
    """The operator may still swap: after a resume this leader would append records that the new one never gets."""
    old, new, other = (node.service for node in group.nodes)
    assert (await old.handover(new.me, group.leadership.epoch, group.leadership.version)).ready
    refused = await old.handover(other.me, group.leadership.epoch, group.leadership.version, timeout_ms=1)
    assert (refused.ready, refused.reason) == (False, f"already hands over to {new.me}")
    assert old.writes_paused
    assert (await old.handover(new.me, group.leadership.epoch, group.leadership.version)).ready


async def test_rule_23_a_handover_on_another_version_is_refused(group: Group) -> None:
    answer = await group.nodes[0].service.handover(group.nodes[1].service.me, 1, group.leadership.version + 1)
    assert not answer.ready
    assert "version" in answer.reason
    assert group.nodes[0].service.may_append


async def test_rule_21_a_master_that_restarts_waits_for_a_new_epoch(group: Group) -> None:
    assert await group.nodes[0].put(b"a") is SendStatus.SEND_OK
    node = group.nodes[0]
    me = node.service.me
    await node.stop(clean=False)
    node.server = node.make_server(0)
    await node.start()
    assert node.service.me == me, "the machine has not booted since: its log is proven"
    assert node.service.role is Role.WAITING
    await group.send_assignments()
    assert node.service.role is Role.WAITING
    await group.promote(0, (0, 1, 2))
    assert await node.put(b"b") is SendStatus.SEND_OK


async def test_status_has_the_fields_for_an_operators_decisions(group: Group) -> None:
    assert await group.nodes[0].put(b"a") is SendStatus.SEND_OK
    await until(lambda: group.nodes[1].store.state.confirmed == group.nodes[0].store.log.end, "confirmed")
    master, slave = (group.nodes[n].service.status_fields() for n in (0, 1))
    assert (master["role"], master["broker_id"], master["writable"]) == ("Master", 0, True)
    assert {f.member.member for f in master["followers"]} == {1, 2}
    assert all(f.in_sync and f.acked == master["end"] for f in master["followers"])
    assert (slave["role"], slave["broker_id"], slave["lag_bytes"]) == ("Slave", 2, 0)
    assert slave["leader_link"].state == "connected"
    # As the kernel measures it, on both ends of the connection.
    assert 0 < slave["leader_link"].rtt_us < 1_000_000
    assert all(0 < f.rtt_us < 1_000_000 for f in master["followers"])
    await group.nodes[0].server.close(0)
    await until(lambda: group.nodes[1].service.status_fields()["leader_link"].state == "refused", "refused")


async def test_rule_16_a_disk_that_failed_is_not_marked_clean(tmp_path: Path) -> None:
    """What was appended since may not be there: at the next boot of the machine this would be a proof of nothing."""
    node = await Node(tmp_path, 0).start()
    node.store.checkpointer.mark_failed(OSError(5, "Input/output error"))
    await node.stop()
    assert orjson.loads((node.root / "config" / "replica.json").read_bytes())["clean"] is False
    sound = await Node(tmp_path, 1).start()
    await sound.stop()
    assert orjson.loads((sound.root / "config" / "replica.json").read_bytes())["clean"] is True
