"""Values that no correct peer sends, given to real processes: each is refused, counted, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from gantry_broker.contracts.leadership import MemberId
from gantry_broker.contracts.models import MemberStatus
from gantry_broker.protocol.codes import GantryCode, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.protocol.headers import SendHeader
from gantry_broker.protocol.message import pack_host
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import Membership
from gantry_operator.platforms.local.ports import Ports, registration, replication

from benchmarks.rig.wire import Wire
from tests.local.cluster import Cluster, running
from tests.support.broker_group import Group, MakeGroup, Member, until

pytestmark = pytest.mark.timeout(300)

HUGE = (2**53 + 1, 2**63 - 1, 2**64 - 1, 2**128)


async def send(address: str, frame: Frame) -> Frame:
    """Send one frame to a port for clients, over a connection of its own, and give the answer."""
    async with RemotingClient() as client:
        return await client.request(address, frame, 10)


async def send_as_member(member: Member, frame: Frame, sender: int) -> Frame:
    """Send one frame to a member's replication port, as the member `sender` of its group, and give the answer."""
    return await send_as(Identity("demo", "demo-a", sender), None, member.replication_address, frame)


async def send_as(who: Identity, token_file: Path | None, address: str, frame: Frame) -> Frame:
    """The same for any port between members."""
    async with RemotingClient(membership=Membership(who, token_file)) as client:
        return await client.request(address, frame, 10)


def send_frame(body: bytes) -> Frame:
    header = SendHeader(
        producerGroup="PG", topic="T", defaultTopic="TBW102", defaultTopicQueueNums=4, queueId=0, sysFlag=0,
        bornTimestamp=1, flag=0, properties="", reconsumeTimes=0, unitMode=False, batch=False,
    )  # fmt: skip
    return Frame(RequestCode.SEND_MESSAGE_V2, ext=header.short_ext(), body=body)


def fetch_frame(member: MemberId, epoch: int, leader: MemberId, **fields: Any) -> Frame:
    ext = {
        "epoch": epoch, "member": member.member, "incarnation": member.incarnation, "end": 0, "flushed": 0,
        "confirmed": 0, "maxBytes": 1024, "leader": leader.member, "leaderIncarnation": leader.incarnation,
    }  # fmt: skip
    return Frame(GantryCode.FETCH, ext={name: str(value) for name, value in (ext | fields).items()}, body=b"[]")


def raft_request_frame(group: Group, kind: str, epoch: int, member: MemberId, **fields: Any) -> Frame:
    body: dict[str, Any] = {
        "kind": kind, "epoch": epoch, "member": list(member), "address": "127.0.0.1:1", "rank": [0, 2**40],
        "transfer": False, "members": [],
    }  # fmt: skip
    ext = {"group": "demo/demo-a", "groupAddress": group.group_address}
    return Frame(GantryCode.RAFT, ext=ext, body=json.dumps(body | fields).encode())


def state_of(status: MemberStatus) -> tuple[object, ...]:
    return (
        status.member,
        status.role,
        status.epoch,
        status.version,
        status.highest_seen_epoch,
        status.in_sync,
        status.proposal,
    )


async def refusals(member: Member) -> dict[str, int]:
    """`entrance/reason` to the count."""
    text = (await member.http.get("/metrics")).text
    found: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("gantry_refused_values_total{"):
            labels = dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(","))
            found[f"{labels['entrance']}/{labels['reason']}".replace('"', "")] = int(float(line.rpartition(" ")[2]))
    return found


# ---- FETCH


async def test_a_fetch_with_an_impossible_epoch_does_not_depose_the_master(make_group: MakeGroup) -> None:
    group = await make_group(2)
    await group.lead(0, [0, 1])
    master, slave = group.members
    me, other = await group.ids()
    before = state_of(await master.status())
    for epoch in (*HUGE, 2 + 2**20, -1):
        answer = await send_as_member(master, fetch_frame(other, epoch, me), other.member)
        refused = answer.code != ResponseCode.SUCCESS or answer.ext["kind"] == "refused"
        assert refused, (epoch, answer)
        assert state_of(await master.status()) == before, epoch
    assert (await slave.status()).highest_seen_epoch == group.leadership.epoch
    found = await refusals(master)
    assert found["fetch/epoch-jump"] == 1
    assert found["fetch/range"] == len(HUGE) + 1
    assert (await send(master.address, send_frame(b"a"))).code == ResponseCode.SUCCESS
    stranger = MemberId(7, "invented")
    assert (await send_as_member(master, fetch_frame(stranger, 2, me), 7)).ext["kind"] == "refused"
    assert state_of(await master.status()) == before, "a possible epoch, but of no member of the set"


async def test_invented_incarnations_do_not_fill_the_table_of_followers(make_group: MakeGroup) -> None:
    group = await make_group(1)
    await group.lead(0)
    master = group.members[0]
    me = (await group.ids())[0]
    count = 20_000
    frames = bytearray()
    for number in range(count):
        frame = fetch_frame(MemberId(7, f"i{number}"), group.leadership.epoch, me, confirmed=2**40)
        frame.opaque, frame.flag = number, 2
        frames += encode_frame(frame)
    proved = await asyncio.to_thread(Wire, master.replication_address, member=Identity("demo", "demo-a", 7))
    reader, writer = await asyncio.open_connection(sock=proved.socket)
    drain = asyncio.create_task(_read_all(reader))
    try:
        for at in range(0, len(frames), 1 << 18):
            writer.write(bytes(frames[at : at + (1 << 18)]))
            await writer.drain()

        async def all_refused() -> bool:
            # On a slow machine one that was admitted is silent after a while, and the next takes its place.
            return (await refusals(master)).get("fetch/other-life", 0) >= count - 100

        await until(all_refused, "nearly every invented incarnation is refused")
        assert [f.member.member for f in (await master.status()).followers] == [7]
        for number in (64, 2**40, -1):
            answer = await send_as_member(master, fetch_frame(MemberId(number, "x"), group.leadership.epoch, me), 7)
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert len((await master.status()).followers) == 1
    finally:
        drain.cancel()
        writer.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


# ---- FORWARD


def forward_frame(*frames: Frame, hosts: Any = None, cut: int = 0) -> Frame:
    for index, frame in enumerate(frames):
        frame.opaque = index
    body = b"".join(encode_frame(frame) for frame in frames)
    given = [pack_host("10.0.0.1", 1).hex()] * len(frames) if hosts is None else hosts
    return Frame(GantryCode.FORWARD, ext={"hosts": orjson.dumps(given).decode()}, body=body[: len(body) - cut])


async def test_a_forward_wraps_writes_only_and_is_taken_whole_or_not_at_all(make_group: MakeGroup) -> None:
    group = await make_group(2)
    await group.lead(0)
    master = group.members[0]
    me = (await group.ids())[0]
    good = forward_frame(send_frame(b"a"), send_frame(b"b"))

    async def taken() -> bool:
        return (await send_as_member(master, good, 1)).code == ResponseCode.SUCCESS

    await until(taken, "the slave fetches, so its bundle is taken")

    ip = pack_host("10.0.0.1", 1)
    bad = {
        "a fetch": forward_frame(send_frame(b"x"), fetch_frame(MemberId(1, "b"), 1, me)),
        "a poll": forward_frame(Frame(GantryCode.RAFT, body=b"{}")),
        "a forward": forward_frame(forward_frame(send_frame(b"x"))),
        "a read of the log": forward_frame(Frame(GantryCode.READ_LOG, ext={"at": "0"})),
        "a pull": forward_frame(send_frame(b"x"), Frame(RequestCode.PULL_MESSAGE)),
        "an answer": forward_frame(Frame(RequestCode.SEND_MESSAGE_V2, flag=1)),
        "half a frame": forward_frame(send_frame(b"x"), send_frame(b"y"), cut=3),
        "nothing": forward_frame(),
        "too few hosts": forward_frame(send_frame(b"x"), hosts=[]),
        "a short host": forward_frame(send_frame(b"x"), hosts=[ip.hex()[:-2]]),
        "a host of another family": forward_frame(send_frame(b"x"), hosts=[(b"abcdefgh" + ip).hex()]),
        "a port out of range": forward_frame(send_frame(b"x"), hosts=[pack_host("10.0.0.1", 70_000).hex()]),
        "a group address": forward_frame(send_frame(b"x"), hosts=[pack_host("224.0.0.1", 1).hex()]),
        "an IPv4 address in IPv6": forward_frame(send_frame(b"x"), hosts=[pack_host("::ffff:10.0.0.1", 1).hex()]),
        "a host that is no text": forward_frame(send_frame(b"x"), hosts=[7]),
        "many small frames": Frame(GantryCode.FORWARD, ext={"hosts": "[]"}, body=b"\0\0\0\0" * 100_000),
    }
    for queue_offset, (what, frame) in enumerate(bad.items(), start=2):
        answer = await send_as_member(master, frame, 1)
        assert answer.code == ResponseCode.SYSTEM_ERROR, what
        assert (answer.remark or "").startswith("FORWARD: "), (what, answer.remark)
        stored = await send(master.address, send_frame(b"next"))
        assert stored.ext["queueOffset"] == str(queue_offset), f"{what}: nothing of the bundle is stored"
    found = await refusals(master)
    assert found["forward/not-forwarded"] == 6
    assert found["forward/malformed"] + found["forward/range"] == len(bad) - 6
    assert "AttributeError" not in master.log()


async def test_only_a_follower_forwards_and_reads_the_log(make_group: MakeGroup) -> None:
    """A member that knows the token but does not follow this leader gets neither records nor writes through."""
    group = await make_group(2)
    await group.lead(0)
    master, slave = group.members
    read, write = Frame(GantryCode.READ_LOG, ext={"at": "0"}), forward_frame(send_frame(b"forged"))

    async def answered() -> bool:
        return (await send_as_member(master, read, 1)).code == ResponseCode.SUCCESS

    await until(answered, "the slave fetches, so it may read the log")
    assert (await send_as_member(master, read, 1)).body
    for member, sender in ((master, 7), (slave, 0), (slave, 7)):
        for frame in (read, write):
            answer = await send_as_member(member, frame, sender)
            assert (answer.code, answer.body) == (ResponseCode.SERVICE_NOT_AVAILABLE, b""), (member, sender, frame)
            assert answer.remark == "this member does not lead, or the peer does not fetch from it"
    stored = await send(master.address, send_frame(b"first"))
    assert stored.ext["queueOffset"] == "0", "nothing that was forwarded is stored"
    found = await refusals(master)
    assert (found["forward/unknown-member"], found["read-log/unknown-member"] >= 1) == (1, True)


# ---- RELAY


async def test_only_a_follower_carries_clients_and_bad_numbers_and_addresses_carry_none(make_group: MakeGroup) -> None:
    group = await make_group(2)
    await group.lead(0)
    master, slave = group.members
    opening = Frame(GantryCode.RELAY, ext={"open": ""})

    async def taken() -> bool:
        return (await send_as_member(master, opening, 1)).code == ResponseCode.SUCCESS

    await until(taken, "the slave fetches, so it may carry clients")
    for member, sender in ((master, 7), (slave, 0), (slave, 7)):
        answer = await send_as_member(member, opening, sender)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, (member, sender)
    carried = encode_frame(send_frame(b"x"))
    host = pack_host("10.0.0.1", 1).hex()
    bad: list[dict[str, str]] = [
        {"id": "1", "host": host},  # not opened on this connection
        {"id": "", "host": host}, {"id": "-1", "host": host}, {"id": "\u0661", "host": host},
        {"id": "9" * 30, "host": host}, {"host": host}, {"id": "1"}, {"id": "1", "host": "zz"},
        {"id": "1", "host": host[:-2]}, {"id": "1", "host": pack_host("224.0.0.1", 1).hex()},
    ]  # fmt: skip
    for number, ext in enumerate(bad):
        async with RemotingClient(membership=Membership(Identity("demo", "demo-a", 1), None)) as client:
            if number > 0:
                await client.request(master.replication_address, opening, 10)
            await client.oneway(master.replication_address, Frame(GantryCode.RELAY, ext=ext, body=carried))
            await client.request(master.replication_address, opening, 10)
    stored = await send(master.address, send_frame(b"first"))
    assert stored.ext["queueOffset"] == "0", "nothing that was carried is stored"
    assert (await refusals(master))["relay/malformed"] >= 7
    assert "Traceback" not in master.log()


# ---- assignments and files


async def test_an_impossible_assignment_is_refused_by_name(make_group: MakeGroup) -> None:
    group = await make_group(1)
    await group.lead(0)
    master = group.members[0]
    before = state_of(await master.status())
    ref = {"member": 0, "incarnation": (await group.ids())[0].incarnation}
    leadership = {"epoch": 2, "version": 2, "master": ref, "in_sync": [ref]}
    for field, value in (
        *(("epoch", epoch) for epoch in (*HUGE, -1, 1.5, "2", True)),
        ("version", 2**64),
        ("in_sync", [ref] * 200),
        ("master", {"member": 2**70, "incarnation": "x"}),
        ("master", {"member": 0, "incarnation": "x" * 1_000}),
    ):
        answer = await master.http.put(
            "/v1/assignment", content=json.dumps({"leadership": leadership | {field: value}})
        )
        assert answer.status_code == 422, (field, value)
        assert field in answer.json()["detail"]
        assert state_of(await master.status()) == before, (field, value)
    answer = await master.http.put(
        "/v1/assignment", content=json.dumps({"leadership": leadership | {"epoch": 2 + 2**20}})
    )
    assert "cannot follow 1" in answer.json()["reason"]
    assert state_of(await master.status()) == before
    assert {name.split("/")[0] for name in await refusals(master)} == {"assignment"}


@pytest.mark.parametrize("epoch", [2**64 - 1, 2**53 + 1, -1])
async def test_a_file_with_an_impossible_epoch_is_named_at_the_start(make_group: MakeGroup, epoch: int) -> None:
    group = await make_group(1)
    await group.lead(0)
    member = group.members[0]
    await member.kill()
    for name in ("replica.json", "epochs.json"):
        path = member.config.data_dir / "config" / name
        right = path.read_bytes()
        data = json.loads(right)
        if name == "replica.json":
            data["leadership"]["epoch"] = epoch
        else:
            data["epochs"][0][0] = epoch
        path.write_text(json.dumps(data))
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "gantry_broker.broker", "--config", str(member.path)],
            capture_output=True, text=True, timeout=60, check=False, env=os.environ,
        )  # fmt: skip
        assert done.returncode != 0
        assert str(path) in done.stderr
        assert "epoch" in done.stderr
        path.write_bytes(right)


# ---- Raft


async def test_votes_and_announcements_of_strangers_change_nothing(make_group: MakeGroup) -> None:
    group = await make_group(3, mode="Raft")

    async def leader() -> Member | None:
        for member in group.members:
            if member.process is not None and member.process.returncode is None:
                status = await member.try_status()
                if status is not None and status.role == "Master":
                    return member
        return None

    async def all_follow() -> bool:
        states = [await m.status() for m in group.members]
        return len({s.epoch for s in states}) == 1 and [s.role for s in states].count("Slave") == 2

    leads = await until(leader, "a leader")
    await until(all_follow, "the others follow")
    ids = await group.ids()
    epoch = (await leads.status()).epoch
    stranger = MemberId(7, "stranger")
    named = [[m.member, m.incarnation, f.replication_address] for m, f in zip(ids, group.members, strict=True)]
    for index, member in enumerate(group.members):
        known = ids[(index + 1) % 3]
        impostor = MemberId(known.member, "another-disk")
        for bad in HUGE:
            frame = raft_request_frame(group, "vote", bad, known, transfer=True, rank=[1, 2**40])
            answer = await send_as_member(member, frame, known.member)
            assert answer.code == ResponseCode.SYSTEM_ERROR
        frame = raft_request_frame(group, "vote", epoch + 2**21, known, transfer=True)
        jump = await send_as_member(member, frame, known.member)
        assert orjson.loads(jump.body)["granted"] is False
        for who in (stranger, impostor):
            everyone = [*named, [who.member, who.incarnation, "127.0.0.1:1"]]
            for kind in ("pre-vote", "vote", "timeout-now", "begin", "begin", "begin"):
                frame = raft_request_frame(group, kind, epoch + 1, who, transfer=True, members=everyone)
                answer = await send_as_member(member, frame, who.member)
                assert answer.code == ResponseCode.SYSTEM_ERROR or orjson.loads(answer.body)["granted"] is False
    states = [await m.status() for m in group.members]
    assert {s.epoch for s in states} == {epoch}
    assert [s.role for s in states].count("Master") == 1
    assert (await send(leads.address, send_frame(b"a"))).code == ResponseCode.SUCCESS
    for member in group.members:
        found = await refusals(member)
        assert found["poll/range"] + found["poll/malformed"] == len(HUGE), found  # 2**128 is no whole number in JSON.
        assert found["poll/epoch-jump"] == 1, found
        assert found["poll/unknown-member"] >= 6, found
    await leads.kill()
    after = await until(leader, "another leader")
    assert epoch < (await after.status()).epoch < epoch + 100, "elections go on from where they were"


# ---- with an operator and NameServers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(Cluster(tmp_path_factory.mktemp("plausible"), nameServers={"replicas": 2})) as made:
        yield made


def recorded(cluster: Cluster) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((cluster.folder.registry / "a.json").read_text())
    return data


async def test_no_forged_epoch_reaches_the_registry_or_the_name_servers(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.until, "all are in sync", cluster.whole)
    before = recorded(cluster)
    master = cluster.master()
    ports = Ports.load(cluster.folder.ports)
    servers = [ports.address(registration(f"t-namesrv-{number}")) for number in range(2)]
    token = cluster.folder.token_file
    leader = MemberId(*before["master"])
    follower = next(MemberId(*m) for m in before["inSync"] if m != before["master"])
    for epoch in HUGE:
        who = Identity("t", "a", follower.member)
        await send_as(who, token, ports.address(replication(master["name"])), fetch_frame(follower, epoch, leader))
    body = {
        "brokerName": "a", "brokerAddr": "127.0.0.1:1", "clusterName": "t", "brokerId": "0", "gantryMember": "1",
    }  # fmt: skip
    forger_is = Identity("t", "a", 1)
    for server in servers:
        for epoch in (2**63 - 1, 2**53 + 1, before["epoch"] + 2**21):
            forged = Frame(RequestCode.REGISTER_BROKER, ext=body | {"gantryEpoch": str(epoch)})
            answer = await send_as(forger_is, token, server, forged)
            assert answer.code != ResponseCode.SUCCESS
            assert "gantryEpoch" in (answer.remark or "")
    # A possible epoch is taken from any member: the group's master is kept out while that connection lives, and only
    # then.
    async with RemotingClient(membership=Membership(forger_is, token)) as forger:
        for server in servers:
            ext = body | {"gantryEpoch": str(before["epoch"] + 1)}
            await forger.request(server, Frame(RequestCode.REGISTER_BROKER, ext=ext), 10)
        create = Frame(RequestCode.UPDATE_AND_CREATE_TOPIC, ext={
            "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        })  # fmt: skip
        await send(master["address"], create)

    def routed() -> bool:
        return all(asyncio.run(_has_route(server, "New")) for server in cluster.name_servers.split(";"))

    await asyncio.to_thread(cluster.until, "the master has its route again", routed)
    assert recorded(cluster) == before, "neither a frame nor an answer of a NameServer moved the master"
    for name, port in ports.taken.items():
        if name.endswith("/http") and "namesrv" not in name:
            headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
            async with httpx.AsyncClient(headers=headers) as client:
                status = (await client.get(f"http://127.0.0.1:{port}/v1/status")).json()
            assert status["highest_seen_epoch"] == before["epoch"], name
    assert (await send(master["address"], send_frame(b"x"))).code == ResponseCode.SUCCESS


async def _has_route(server: str, topic: str) -> bool:
    answer = await send(server, Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}))
    return answer.code == ResponseCode.SUCCESS
