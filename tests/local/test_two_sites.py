"""Two clusters of this machine share one archive: roles are exchanged without loss, a lost site is replaced."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gantry_broker.client import ClientError, Producer
from gantry_broker.remoting.errors import RemotingError

from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server
from tests.local.cluster import Cluster, Load, kill, read_all, take_down

pytestmark = pytest.mark.timeout(300)
FULL = os.environ.get("LOCAL") == "full"
NUMBERS = itertools.count()
TURNS = 2 if FULL else 1
"""How often the parts are exchanged; the other test exchanges them, too."""
TWO_GROUPS = {"brokerGroups": [{"name": "a", "members": 2}, {"name": "b", "members": 1}]}
MODES = [TWO_GROUPS, *([{"mode": "Raft", "brokerGroups": [{"name": "a", "members": 3}]}] if FULL else [])]


class Sites:
    """Two clusters, one archive."""

    def __init__(self, server: S3Server, base: Path, bucket: str, **spec: object) -> None:
        place = {"url": server.bucket(bucket), "endpoint": server.endpoint}
        archive = place | {"interval": "1s"}
        usual = {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 2}]} | spec
        self.one = Cluster(base / "1", "one", archive=archive, **usual)
        self.spec_of_two = usual | {"archive": archive, "bootstrap": {"follow": place}}
        self.two = Cluster(base / "2", "two", **self.spec_of_two)
        for cluster in (self.one, self.two):
            cluster.environment |= {
                "AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key,
            }  # fmt: skip


@pytest.fixture
def sites(server: S3Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sites]:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    made = Sites(server, tmp_path, f"two-{next(NUMBERS)}", **getattr(request, "param", {}))
    try:
        yield made
    finally:
        take_down(made.one)
        take_down(made.two)


def run(cluster: Cluster, *args: str) -> dict[str, object]:
    done = cluster.gantry(*args, "--dir", str(cluster.folder.root), "-o", "json")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def refused(cluster: Cluster, *args: str) -> str:
    done = cluster.gantry(*args, "--dir", str(cluster.folder.root), check=False)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def condition(cluster: Cluster, kind: str) -> tuple[str, str, str]:
    found = next((c for c in cluster.resource()["status"]["conditions"] if c["type"] == kind), None)
    return ("", "", "") if found is None else (found["status"], found["reason"], found["message"])


def takes_writes(cluster: Cluster) -> bool:
    members = cluster.members().values()
    groups = {m["group"] for m in members}
    return all(m.get("inSync") for m in members) and [m["role"] for m in members].count("Master") == len(groups)


def ends(cluster: Cluster) -> dict[str, int]:
    """By group: the least end of a log."""
    members = cluster.members().values()
    return {g: min(int(m["maxOffset"]) for m in members if m["group"] == g) for g in {m["group"] for m in members}}


def follows(cluster: Cluster) -> bool:
    return all(m["role"] == "Standby" and m["ready"] for m in cluster.members().values())


@asynccontextmanager
async def load_on(cluster: Cluster, tag: str) -> AsyncIterator[Load]:
    async with Load.on(cluster, "Orders", tag) as load:
        yield load


@pytest.mark.parametrize("sites", MODES, indirect=True, ids=lambda spec: spec.get("mode", "MasterSlave"))
async def test_parts_are_exchanged_under_load_without_loss(sites: Sites) -> None:
    one, two = sites.one, sites.two
    one.up()
    promised: set[bytes] = set()
    async with load_on(one, "first") as load:
        await load.more(100)
    promised |= load.promised
    said = two.up()
    assert "  a standby, " in said
    assert "gantry produce" not in said
    two.until("it follows", lambda: follows(two), 60)
    assert condition(two, "Standby")[:2] == ("True", "Following"), "before the parts were ever exchanged, too"
    assert condition(two, "Available")[:2] == ("True", "Standby")
    assert "NEXT" not in two.gantry("status", "--dir", str(two.folder.root)).stdout
    before = {m["pid"] for m in two.members().values()}
    two.write(**sites.spec_of_two, flush="Sync")
    two.up()
    assert not before & {m["pid"] for m in two.members().values()}, "a standby takes a change of its spec"
    two.until("it follows", lambda: follows(two), 60)
    active, standby = one, two
    for turn in range(TURNS):
        async with Producer(standby.name_servers, "refused") as producer:
            with pytest.raises((ClientError, RemotingError)):
                await producer.send("Orders", b"nowhere")
        if turn == 0:
            assert "has not handed over" in refused(standby, "promote")
        async with load_on(active, f"turn-{turn}") as load:
            await load.more(100)
            token = str((await asyncio.to_thread(run, active, "demote"))["token"])
        promised |= load.promised
        assert active.resource()["status"]["site"]["token"] == token
        if turn == 0:
            assert run(active, "demote")["token"] == token, "who asks again gets it again"
            assert "another token" in refused(standby, "promote", "--token", "some-other-token")
        await asyncio.to_thread(run, standby, "promote", "--token", token)
        active, standby = standby, active
        active.until("it takes writes", lambda a=active: takes_writes(a), 60)
        standby.until("it follows", lambda s=standby: follows(s), 60)
    async with load_on(active, "last") as load:
        await load.more(100)
    promised |= load.promised
    wanted = ends(active)
    standby.until("it has all", lambda: all(end >= wanted[g] for g, end in ends(standby).items()), 60)
    assert promised <= set(await read_all(active, "Orders", promised))
    assert promised <= set(await read_all(standby, "Orders", promised)), "a standby serves reads"
    assert condition(standby, "Standby")[:2] == ("True", "Following")
    assert condition(standby, "Available")[:2] == ("True", "Standby")


async def test_a_lost_site_is_replaced_and_fenced_when_it_comes_back(sites: Sites) -> None:
    one, two = sites.one, sites.two
    one.up()
    async with load_on(one, "first") as load:
        await load.more(200)
    two.up()
    two.until("it follows", lambda: follows(two), 60)
    end = one.master()["maxOffset"]
    one.until(
        "all is archived", lambda: (one.resource()["status"]["groups"][0]["archive"] or {}).get("offset", 0) >= end
    )
    for pid in (one.supervisor_pid(), *one.pids()):
        kill(pid, signal.SIGKILL)
    said = refused(two, "promote")
    assert "archived up to" in said
    assert "--accept-loss" in said
    run(two, "promote", "--accept-loss")
    two.until("it takes writes", lambda: takes_writes(two), 60)
    async with load_on(two, "second") as later:
        await later.more(100)
    assert load.promised | later.promised <= set(await read_all(two, "Orders", load.promised | later.promised))
    one.up()
    one.until("it is fenced", lambda: condition(one, "Standby")[1] == "Superseded", 60)
    assert "gantry demote --accept-loss" in condition(one, "Standby")[2]
    async with Producer(one.name_servers, "late") as producer:
        with pytest.raises((ClientError, RemotingError)):
            await producer.send("Orders", b"late")
    assert "--accept-loss" in refused(one, "demote")
    run(one, "demote", "--accept-loss")
    one.until("it follows", lambda: follows(one), 60)
    token = str(run(two, "demote")["token"])
    run(one, "promote", "--token", token)
    one.until("it takes writes", lambda: takes_writes(one), 60)
    assert load.promised | later.promised <= set(await read_all(one, "Orders", load.promised | later.promised))
