"""Users of a local cluster: made by a manifest and by commands, changed under traffic, kept through a failover."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import ClientError, Credentials, Producer
from gantry_operator.access.wanted import SECRET_KEY
from gantry_operator.api.user import BrokerUser

from tests.local.cluster import Cluster, Load, kill, one_group, running

pytestmark = pytest.mark.timeout(300)

RULES = [
    {"type": "Topic", "name": "o-", "pattern": "Prefix", "actions": ["Pub", "Sub"]},
    {"type": "Group", "pattern": "Any", "actions": ["Sub"]},
]


def add_users(cluster: Cluster, *users: BrokerUser) -> None:
    """To the manifest, as further documents of its file."""
    documents = [u.model_dump(mode="json", exclude={"status"}, exclude_none=True) for u in users]
    cluster.file.write_text("\n---\n".join([cluster.file.read_text().split("\n---\n")[0], *map(json.dumps, documents)]))


def orders(overlap: str = "1h", **spec: Any) -> BrokerUser:
    return BrokerUser.make("orders", "t", rules=RULES, rotation={"overlap": overlap}, **spec)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("users"), security={"authentication": "Enabled"})
    add_users(made, orders())
    with running(made):
        yield made


def key_of(cluster: Cluster, user: str) -> Credentials:
    said = json.loads(cluster.gantry("user", "key", user, "-o", "json").stdout)
    return Credentials(said["accessKey"], said["secretKey"])


def shown(cluster: Cluster, user: str) -> dict[str, Any]:
    listed = json.loads(cluster.gantry("user", "list", "-o", "json").stdout)
    return next(u for u in listed if u["metadata"]["name"] == user)


async def answer(cluster: Cluster, credentials: Credentials | None, topic: str = "o-1") -> str:
    """OK, or why a send is refused. A failover or a missing table is waited for."""
    async with Producer(cluster.name_servers, credentials=credentials, timeout=20) as producer:
        try:
            return (await producer.send(topic, b"x")).status.name
        except ClientError as error:
            return str(error)


async def until_refused(cluster: Cluster, credentials: Credentials, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while "NO_PERMISSION" not in await answer(cluster, credentials):
        assert time.monotonic() < deadline, "it is still allowed"


@asynccontextmanager
async def load(cluster: Cluster, credentials: Credentials, tag: str) -> AsyncIterator[Load]:
    async with Load.on(cluster, "o-load", tag, credentials=credentials) as found:
        yield found


async def test_only_the_right_key_with_the_right_may_send(cluster: Cluster) -> None:
    good = key_of(cluster, "orders")
    assert await answer(cluster, good) == "SEND_OK"
    assert "not signed" in await answer(cluster, None)
    assert "signature is wrong" in await answer(cluster, Credentials("orders", good.secret_key[::-1]))
    assert "no permission" in await answer(cluster, good, "another")
    assert await answer(cluster, key_of(cluster, "admin"), "another") == "SEND_OK"


def test_the_command_uses_the_super_users_key(cluster: Cluster) -> None:
    cluster.gantry("topic", "create", "Mine", "--queues", "2")
    cluster.gantry("produce", "Mine", "--count", "5")
    cluster.gantry("consume", "Mine", "--group", "g", "--count", "5", "--timeout", "20", "-q")
    assert "Mine" in cluster.gantry("topic", "list").stdout
    cluster.gantry("dlq", "list")
    conditions = {c["type"]: c for c in cluster.resource()["status"]["conditions"]}
    assert conditions["Secured"]["status"] == "True"
    assert conditions["Available"]["status"] == "True"


def test_no_key_is_shown_unless_asked_for(cluster: Cluster) -> None:
    said = [
        cluster.gantry("user", "create", "shy", "--allow", "Topic:o-*:Pub"),
        cluster.gantry("user", "list"),
        cluster.gantry("user", "list", "-o", "json"),
        cluster.gantry("status", "-o", "json"),
        cluster.gantry("user", "rotate", "shy"),
    ]
    file = cluster.folder.keys / "t-user-shy.json"
    assert str(file) in said[0].stdout
    keys = [u["current"] for u in json.loads(cluster.folder.access_state.read_text())["users"].values()]
    assert json.loads(file.read_text())[SECRET_KEY] in keys
    shown_text = "".join(done.stdout + done.stderr for done in said) + cluster.story()
    configs = "".join(p.read_text() for p in cluster.folder.configs.iterdir())
    for key in keys:
        assert key not in shown_text + configs
    assert cluster.gantry("user", "key", "shy").stdout.strip() in keys
    for path in cluster.folder.access.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    cluster.gantry("user", "delete", "shy")
    assert not file.exists()


async def test_a_rotation_fails_no_send(cluster: Cluster) -> None:
    before = key_of(cluster, "orders")
    async with load(cluster, before, "old") as old:
        await asyncio.to_thread(cluster.gantry, "user", "rotate", "orders")
        after = key_of(cluster, "orders")
        assert after.secret_key != before.secret_key
        async with load(cluster, after, "new") as new:
            await new.more(200)
        await old.more(200)
    assert (old.errors, new.errors) == ([], [])
    status = shown(cluster, "orders")["status"]
    assert status["keys"] == 2
    assert status["oldKeyExpires"]
    again = cluster.gantry("user", "rotate", "orders", check=False)
    assert again.returncode == 4
    assert "once the former key of the last one has expired" in again.stderr
    add_users(cluster, orders(overlap="0s"))
    await asyncio.to_thread(cluster.up)
    await until_refused(cluster, before)
    current = key_of(cluster, "orders")
    assert await answer(cluster, current) == "SEND_OK"
    add_users(cluster, orders())
    await asyncio.to_thread(cluster.up)


async def test_users_outlive_a_failover_and_the_supervisor(cluster: Cluster) -> None:
    good = key_of(cluster, "orders")
    wrong = Credentials("orders", "wrong-key-of-orders")
    former = cluster.master()
    async with load(cluster, good, "failover") as found:
        kill(former["pid"], signal.SIGKILL)
        cluster.until("another leads", lambda: cluster.master()["name"] != former["name"])
        await found.more(100)
    assert not [e for e in found.errors if "NO_PERMISSION" in e]
    assert "NO_PERMISSION" in await answer(cluster, wrong)
    kill(cluster.supervisor_pid(), signal.SIGKILL)
    created = cluster.gantry("user", "create", "later", "--allow", "Topic:o-*:Pub")
    assert "no `gantry up` runs" in created.stderr
    assert await answer(cluster, good) == "SEND_OK", "the brokers go on"
    await asyncio.to_thread(cluster.up)
    cluster.until("the new user is known", lambda: (cluster.folder.keys / "t-user-later.json").exists())
    assert await answer(cluster, key_of(cluster, "later")) == "SEND_OK"
    assert await answer(cluster, good) == "SEND_OK"
    cluster.until("all are in sync", cluster.whole)


async def test_a_deleted_or_disabled_user_is_refused(cluster: Cluster) -> None:
    cluster.gantry("user", "create", "gone", "--allow", "Topic:o-*:Pub")
    key = key_of(cluster, "gone")
    assert await answer(cluster, key) == "SEND_OK"
    cluster.gantry("user", "delete", "gone")
    await until_refused(cluster, key)
    good = key_of(cluster, "orders")
    add_users(cluster, orders(enabled=False))
    await asyncio.to_thread(cluster.up)
    await until_refused(cluster, good)
    add_users(cluster, orders())
    await asyncio.to_thread(cluster.up)
    assert await answer(cluster, good) == "SEND_OK"


def test_wrong_users_are_refused_with_the_reason(cluster: Cluster) -> None:
    def refused(*args: str) -> str:
        done = cluster.gantry("user", *args, check=False)
        assert done.returncode != 0
        return done.stderr

    assert "write another name" in refused("create", "admin")
    assert "TYPE:NAME:ACTIONS" in refused("create", "x", "--allow", "Topic")
    assert "'Topic', 'Group'" in refused("create", "x", "--allow", "Queue:a:Pub")
    assert "lower-case letters" in refused("create", "X_Y")
    assert "exists already" in refused("create", "orders")
    assert "belongs to BrokerUser orders" in refused("create", "twin", "--access-key", "orders")
    cluster.gantry("user", "delete", "twin")
    assert "there is no user nobody" in refused("delete", "nobody")
    assert "there is no user nobody" in refused("rotate", "nobody")
    assert "there is no user nobody" in refused("key", "nobody")
    assert "cannot be deleted" in refused("delete", "admin")


async def test_accounts_of_a_plain_acl_file(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(
        "globalWhiteRemoteAddresses: [10.10.103.*]\n"
        "accounts:\n"
        "- {accessKey: RocketMQ, secretKey: '12345678', whiteRemoteAddress: , admin: false, defaultTopicPerm: DENY,\n"
        "   defaultGroupPerm: SUB, topicPerms: [o-imported=PUB|SUB, o-closed=DENY], groupPerms: [g=SUB]}\n"
        "- {accessKey: rocketmq2, secretKey: '87654321', whiteRemoteAddress: 192.168.1.*, admin: true}\n"
    )
    done = cluster.gantry("user", "import", str(file))
    assert done.stdout == "imported: rocketmq, rocketmq2\n"
    assert "globalWhiteRemoteAddresses is not imported" in done.stderr
    assert "whiteRemoteAddress of rocketmq2" in done.stderr
    plain, admin = Credentials("RocketMQ", "12345678"), Credentials("rocketmq2", "87654321")
    assert await answer(cluster, plain, "o-imported") == "SEND_OK"
    assert "NO_PERMISSION" in await answer(cluster, plain, "o-closed")
    assert "NO_PERMISSION" in await answer(cluster, plain, "o-1")
    assert await answer(cluster, admin, "o-closed") == "SEND_OK"
    again = cluster.gantry("user", "import", str(file), check=False)
    assert "rocketmq, rocketmq2 exists already" in again.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts: 5", "accounts is not a list"),
        ("accounts: [{accessKey: a, secretKey: short}]", "8 to 256 characters"),
        ("accounts: [{accessKey: 'a b', secretKey: '12345678'}]", "accessKey must have"),
        ("accounts: [{accessKey: a, secretKey: '12345678', topicPerms: [t=ALL]}]", "no permission of DENY"),
        ("accounts: [{accessKey: a, secretKey: '12345678', topicPerms: [t]}]", "'name=PUB|SUB' is expected"),
        ("a: [", "is not YAML"),
    ],
)
def test_files_that_cannot_be_imported(cluster: Cluster, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(text)
    done = cluster.gantry("user", "import", str(file), check=False)
    assert words in done.stderr
    assert "12345678" not in done.stderr


async def test_authentication_is_turned_on_without_an_interruption(tmp_path: Path) -> None:
    """Disabled, then Permissive, then Enabled: no process restarts, and signed sends never fail."""
    cluster = Cluster(tmp_path, **one_group(2))
    add_users(cluster, orders())
    with running(cluster):
        pids = set(cluster.pids())
        good, wrong = key_of(cluster, "orders"), Credentials("orders", "wrong-key-of-orders")
        assert await answer(cluster, None) == "SEND_OK"

        async def switch(mode: str, expected: Callable[[], Any]) -> None:
            cluster.write(
                **one_group(2),
                security={"authentication": mode},
            )  # fmt: skip
            add_users(cluster, orders())
            await asyncio.to_thread(cluster.up)
            deadline = time.monotonic() + 60
            while not await expected():
                assert time.monotonic() < deadline

        async with load(cluster, good, "switch") as found:

            async def wrong_is_refused() -> bool:
                return "NO_PERMISSION" in await answer(cluster, wrong)

            async def unsigned_is_refused() -> bool:
                return "NO_PERMISSION" in await answer(cluster, None)

            await switch("Permissive", wrong_is_refused)
            assert await answer(cluster, None) == "SEND_OK"
            await switch("Enabled", unsigned_is_refused)
            await found.more(100)
        assert found.errors == []
        assert set(cluster.pids()) == pids
