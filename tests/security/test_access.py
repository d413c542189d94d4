"""Access to real brokers and a NameServer: who may do what over the wire, and what a change of the table does at once.

Each request code of the compatibility page is sent by a stranger, by a user without rights and by a user with other
rights. All are refused, nothing changes, and no remark shows what exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.access.guesses import WRONG_A_SECOND
from gantry_broker.access.table import AccessTable, table_json
from gantry_broker.client import (
    Admin,
    BrokerError,
    Consumer,
    Credentials,
    FromWhere,
    Message,
    Producer,
    SendFailed,
    TransactionProducer,
    TransactionState,
)
from gantry_broker.contracts.leadership import Assignment
from gantry_broker.namesrv.access import NameServerAccess
from gantry_broker.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder
from gantry_broker.protocol.headers import SendHeader
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import RemotingError

from tests.security.test_plausible_values import forward_frame, send_as_member
from tests.support.broker_group import Group, MakeGroup, until
from tests.support.heartbeats import heartbeat

ADMIN = Credentials("admin", "admin-secret")
ORDERS = Credentials("orders", "orders-secret")
BILLING = Credentials("billing", "billing-secret")
NOTHING = Credentials("nothing", "nothing-secret")
SECRETS = [c.secret_key for c in (ADMIN, ORDERS, BILLING, NOTHING)]

USERS: list[dict[str, Any]] = [
    {"name": "admin", "keys": [ADMIN.secret_key], "super": True},
    {"name": "orders", "keys": [ORDERS.secret_key], "rules": [{"type": "Topic", "name": "Orders", "actions": ["Pub"]}]},
    {
        "name": "billing",
        "keys": [BILLING.secret_key],
        "rules": [
            {"type": "Topic", "name": "Orders", "actions": ["Sub"]},
            {"type": "Group", "name": "billing", "actions": ["Sub"]},
        ],
    },
    {"name": "nothing", "keys": [NOTHING.secret_key]},
]


ANY_TOPIC: list[dict[str, Any]] = [{"type": "Topic", "pattern": "Any", "actions": ["Pub"]}]
SECRET_ORDERS = {"name": "Orders", "pattern": "Literal", "decision": "Deny"}


def users(**changes: Any) -> list[dict[str, Any]]:
    """All users, with other fields for some: `users(orders={"enabled": False})`; None: without that user."""
    return [{**user, **changes.get(user["name"], {})} for user in USERS if changes.get(user["name"], {}) is not None]


async def put(group: Group, version: int, mode: str = "Enabled", *, known: list[dict[str, Any]] | None = None) -> None:
    """The control plane's part: the same table for every member."""
    table = {"version": version, "mode": mode, "users": USERS if known is None else known}
    for member in group.members:
        answer = await member.http.put("/v1/access", content=json.dumps(table))
        assert answer.json() == {"version": version}, answer.text


async def until_version(group: Group, version: int) -> None:
    """Waits until the NameServer has the table."""

    async def has() -> bool:
        return group.names.service.access.version >= version

    await until(has, f"the NameServer has access table {version}", 10)


@pytest.fixture
async def group(make_group: MakeGroup) -> Group:
    """One member with authentication, a topic with a message and a consumer group."""
    made = await make_group(1, authentication="Enabled")
    await made.lead(0)
    await made.registered()
    await put(made, 1)
    await until_version(made, 1)
    async with Admin(made.name_server, credentials=ADMIN) as admin:
        for topic in ("Orders", "Secret"):
            await admin.create_topic(topic, queues=1)
    return made


async def metric(group: Group, name: str) -> float:
    text = (await group.members[0].http.get("/metrics")).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


@asynccontextmanager
async def raw(credentials: Credentials | None = None) -> AsyncIterator[RemotingClient]:
    async with RemotingClient(sign=None if credentials is None else credentials.sign) as client:
        yield client


def send_frame(topic: str, body: bytes = b"x", code: int = RequestCode.SEND_MESSAGE_V2, flag: int = 0) -> Frame:
    header = SendHeader("p", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0, "", 0, False)  # type: ignore[arg-type]
    ext = header.ext() if code == RequestCode.SEND_MESSAGE else header.short_ext()
    return Frame(code, ext=ext, body=body, flag=flag)


async def test_each_user_does_what_it_may(group: Group) -> None:
    address = group.name_server
    async with Producer(address, credentials=ORDERS) as producer:
        sent = await producer.send("Orders", b"one", keys="k1")
        with pytest.raises((SendFailed, BrokerError)) as caught:
            await producer.send("Secret", b"two")
    assert "permission" in str(caught.value)
    got: list[bytes] = []

    async def handle(message: Any) -> None:
        got.append(message.body)

    async with Consumer(address, "billing", from_where=FromWhere.FIRST, credentials=BILLING) as consumer:
        await consumer.subscribe("Orders", handle)

        async def all_got() -> bool:
            return got == [b"one"]

        await until(all_got, "the message is consumed", 20)
    async with Admin(address, credentials=BILLING) as reader:
        assert (await reader.view(sent.offset_id)).body == b"one"
    async with Admin(address, credentials=NOTHING) as stranger:
        with pytest.raises(BrokerError) as refused:
            await stranger.view(sent.offset_id)
    assert refused.value.code == ResponseCode.NO_PERMISSION
    async with Producer(address, credentials=Credentials("orders", "wrong-secret")) as producer:
        with pytest.raises((SendFailed, BrokerError)) as wrong:
            await producer.send("Orders", b"three")
    assert "signature is wrong" in str(wrong.value)


def requests() -> list[tuple[int, dict[str, str], bytes]]:
    """Each request code with fields that name what exists, or might be made."""
    send = send_frame("Secret").ext
    ext = {
        "topic": "Secret", "consumerGroup": "thieves", "group": "thieves", "groupName": "billing", "queueId": "0",
        "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "0", "commitOffset": "1", "offset": "0", "key": "k",
        "maxNum": "10", "beginTimestamp": "0", "endTimestamp": "9999999999999", "timestamp": "0", "delayLevel": "1",
        "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8",
        "clientID": "c", "clientId": "c", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "srcGroup": "billing", "destGroup": "thieves", "index": "0",
        "count": "10", "statsName": "TOPIC_PUT_NUMS", "statsKey": "Secret", "username": "orders",
        "subject": "User:orders", "namespace": "n", "value": "v", "brokerName": "demo-a", "cluster": "demo",
        "msgId": "7F00000100002A9F0000000000000000",
    }  # fmt: skip
    topic = {"topicName": "Made", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    bodies: dict[int, Any] = {
        RequestCode.HEART_BEAT: heartbeat("thieves", "Secret"),
        RequestCode.LOCK_BATCH_MQ: {"consumerGroup": "thieves", "clientId": "c", "mqSet": []},
        RequestCode.UNLOCK_BATCH_MQ: {"consumerGroup": "thieves", "clientId": "c", "mqSet": []},
        RequestCode.CHECK_CLIENT_CONFIG: {"group": "thieves", "subscriptionData": {"topic": "Secret"}},
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [topic]},
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "thieves"},
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": "thieves"}]},
        RequestCode.QUERY_ASSIGNMENT: {
            "topic": "Secret",
            "consumerGroup": "thieves",
            "clientId": "c",
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        },
        RequestCode.SET_MESSAGE_REQUEST_MODE: {
            "topic": "Secret",
            "consumerGroup": "thieves",
            "mode": "POP",
            "popShareQueueNum": 0,
        },
        RequestCode.BATCH_ACK_MESSAGE: {
            "brokerName": "demo-a",
            "acks": [
                {"c": "thieves", "t": "Secret", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 60_000, "b": "AQ=="}
            ],
        },
        RequestCode.AUTH_CREATE_USER: {"username": "thief", "password": "thief-secret", "userType": "Super"},
        RequestCode.AUTH_UPDATE_USER: {"username": "nothing", "userType": "Super"},
    }
    found = []
    for code in RequestCode:
        fields = dict(ext)
        if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
            fields = dict(send)
        elif code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            fields["topic"] = "Made"
        body = json.dumps(bodies[code]).encode() if code in bodies else b""
        found.append((int(code), fields, body))
    return found


async def everything(group: Group) -> str:
    """What an attacker would like to change, as an administrator sees it."""
    async with Admin(group.name_server, credentials=ADMIN) as admin:
        topics = sorted(await admin.topics())
        groups = sorted(await admin.groups(group.group_address))
        config = await admin.broker_config(group.group_address)
        messages = [await admin.topic_stats(topic) for topic in ("Orders", "Secret")]
    return repr((topics, groups, config, messages, (await group.members[0].status()).access))


@pytest.mark.parametrize("who", [None, NOTHING, BILLING], ids=["anonymous", "without rights", "with other rights"])
async def test_each_request_code_is_refused(group: Group, who: Credentials | None) -> None:
    before = await everything(group)
    refused_before = await metric(group, "gantry_access_refused_total")
    ports = {"broker": group.group_address, "NameServer": group.name_server}
    async with raw(who) as client:
        for place, address in ports.items():
            for code, ext, body in requests():
                answer = await client.request(address, Frame(code, ext=dict(ext), body=body), 10)
                assert answer.code == ResponseCode.NO_PERMISSION, (place, code, answer.remark)
                assert not answer.body, (place, code)
                assert not answer.ext, (place, code)
                remark = answer.remark or ""
                assert "Made" not in remark or code == RequestCode.UPDATE_AND_CREATE_TOPIC, remark
                assert not [secret for secret in SECRETS if secret in remark], remark
                oneway = Frame(code, ext=dict(ext), body=body, flag=FLAG_ONEWAY)
                await client.oneway(address, oneway)
    assert await everything(group) == before
    assert await metric(group, "gantry_access_refused_total") - refused_before >= 2 * len(requests())
    assert await metric(group, "gantry_access_dropped_total") >= len(requests())


async def test_a_remark_does_not_reveal_whether_a_resource_exists(group: Group) -> None:
    async with raw(NOTHING) as client:
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_MAX_OFFSET):
            address = group.name_server if code == RequestCode.GET_ROUTEINFO_BY_TOPIC else group.group_address
            answers = [
                await client.request(address, Frame(code, ext={"topic": topic, "queueId": "0"}), 10)
                for topic in ("Secret", "Absent")
            ]
            remarks = {(answer.code, (answer.remark or "").replace("Absent", "Secret")) for answer in answers}
            assert len(remarks) == 1, remarks


async def test_a_change_of_the_table_counts_at_once(group: Group) -> None:
    """On connections that are open, on the NameServer within two seconds, and for a pull that waits."""
    async with raw(ORDERS) as producer, raw(BILLING) as consumer:
        assert (await producer.request(group.group_address, send_frame("Orders"), 10)).code == ResponseCode.SUCCESS
        pull = {
            "consumerGroup": "billing", "topic": "Orders", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32",
            "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "60000", "subVersion": "0",
            "subscription": "*",
        }  # fmt: skip
        joins = Frame(RequestCode.HEART_BEAT, body=json.dumps(heartbeat("billing", "Orders")).encode())
        heard = await consumer.request(group.group_address, joins, 10)
        assert heard.code == ResponseCode.SUCCESS, heard.remark
        waits = asyncio.create_task(
            consumer.request(group.group_address, Frame(RequestCode.PULL_MESSAGE, ext=pull), 50)
        )

        async def held() -> bool:
            return await metric(group, "gantry_held_pulls") == 1

        await until(held, "the pull waits")
        await put(group, 2, known=users(orders={"rules": []}, billing=None))
        assert (await producer.request(group.group_address, send_frame("Orders"), 10)).code == 16
        answer = await waits
        assert answer.code == ResponseCode.PULL_NOT_FOUND, answer.remark
        assert not answer.body
        again = await consumer.request(group.group_address, Frame(RequestCode.PULL_MESSAGE, ext=pull), 10)
        assert again.code == ResponseCode.NO_PERMISSION
        await until_version(group, 2)
        route = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "Orders"})
        assert (await consumer.request(group.name_server, route, 10)).code == ResponseCode.NO_PERMISSION
        await put(group, 3, "Disabled")
        assert (await producer.request(group.group_address, send_frame("Secret"), 10)).code == ResponseCode.SUCCESS


async def test_a_pop_that_waits_ends_when_its_right_does(group: Group) -> None:
    async with raw(ORDERS) as producer, raw(BILLING) as consumer:
        assert (await producer.request(group.group_address, send_frame("Orders"), 10)).code == ResponseCode.SUCCESS
        ext = {
            "consumerGroup": "billing", "topic": "Orders", "queueId": "-1", "maxMsgNums": "32",
            "invisibleTime": "60000", "pollTime": "60000", "initMode": "0",
        }  # fmt: skip

        async def pop() -> Frame:
            return await consumer.request(group.group_address, Frame(RequestCode.POP_MESSAGE, ext=ext), 70)

        assert (await pop()).code == ResponseCode.SUCCESS
        waits = asyncio.create_task(pop())
        await asyncio.sleep(0.5)
        assert not waits.done()
        await put(group, 2, known=users(billing=None))
        async with asyncio.timeout(30):
            assert (await waits).code == ResponseCode.POLLING_TIMEOUT
        assert (await pop()).code == ResponseCode.NO_PERMISSION


async def test_two_keys_while_one_is_rotated(group: Group) -> None:
    new = Credentials("orders", "newer-secret")
    async with Producer(group.name_server, credentials=ORDERS) as old_one:
        await old_one.send("Orders", b"1")
        await put(group, 2, known=users(orders={"keys": [new.secret_key, ORDERS.secret_key]}))
        await until_version(group, 2)
        async with Producer(group.name_server, credentials=new) as new_one:
            await asyncio.gather(*(p.send("Orders", b"2") for p in (old_one, new_one) for _ in range(20)))
            await put(group, 3, known=users(orders={"keys": [new.secret_key]}))
            await new_one.send("Orders", b"3")
            with pytest.raises((SendFailed, BrokerError)):
                await old_one.send("Orders", b"4")


async def test_the_table_survives_a_restart_and_an_older_one_is_ignored(group: Group) -> None:
    member = group.members[0]
    path = Path(member.config.data_dir) / "config" / "access.json"
    assert path.stat().st_mode & 0o777 == 0o600
    await put(group, 5, known=users(orders={"rules": []}))
    old = await member.http.put("/v1/access", content=json.dumps({"version": 4, "mode": "Disabled", "users": []}))
    assert old.json() == {"version": 5}
    assert (await member.status()).access.version == 5
    await member.kill()
    await member.start()
    async with raw(ORDERS) as client:
        assert (await client.request(member.address, send_frame("Orders"), 10)).code == ResponseCode.NO_PERMISSION
    text = member.log()
    assert not [secret for secret in SECRETS if secret in text]


async def test_a_change_of_the_mode_while_a_process_was_down(make_group: MakeGroup, tmp_path: Path) -> None:
    """Authentication was turned on meanwhile: its file has the former mode, its configuration the new one."""
    tables = {
        (version, mode): table_json(AccessTable.model_validate({"version": version, "mode": mode, "users": USERS}))
        for version, mode in ((4, "Disabled"), (5, "Disabled"), (5, "Permissive"))
    }
    group = await make_group(1)
    await group.lead(0)
    await put(group, 5, "Disabled")
    member = group.members[0]
    await member.kill()
    member.config = member.config.model_copy(update={"authentication": "Enabled"})
    await member.start()
    assert (await member.status()).access.version == 0, "so the control plane sends the table at once"

    async def codes() -> list[int]:
        """What a stranger and a user are answered."""
        found = []
        for who in (None, ORDERS):
            async with raw(who) as client:
                found.append((await client.request(member.address, send_frame("Orders"), 10)).code)
        return found

    no_master = ResponseCode.SERVICE_NOT_AVAILABLE
    assert await codes() == [ResponseCode.NO_PERMISSION, no_master]
    older = await member.http.put("/v1/access", content=tables[4, "Disabled"])
    assert older.json() == {"version": 5}, "ignored"
    assert await codes() == [ResponseCode.NO_PERMISSION, no_master]
    await put(group, 5, "Permissive")
    assert (await member.status()).access.version == 5
    assert await codes() == [no_master, no_master]

    path = tmp_path / "access.json"
    assert await NameServerAccess("demo", "Disabled", path).put(tables[5, "Disabled"]) == 5
    names = NameServerAccess("demo", "Enabled", path)
    names.load()
    assert (names.gate.mode, names.version) == ("Enabled", 0)
    assert await names.put(tables[4, "Disabled"]) == 5
    assert names.gate.mode == "Enabled"
    assert await names.put(tables[5, "Permissive"]) == 5
    assert (names.gate.mode, names.version) == ("Permissive", 5)


async def test_a_wrong_table_is_refused_and_the_old_one_stays(group: Group) -> None:
    member = group.members[0]
    table = {"version": 9, "mode": "Enabled", "users": [{"name": "a b", "keys": ["hidden-secret"]}]}
    answer = await member.http.put("/v1/access", content=json.dumps(table))
    assert answer.status_code == 422
    assert "name" in answer.text
    assert "hidden-secret" not in answer.text
    assert (await member.status()).access.version == 1


async def test_without_a_table_every_client_is_refused(make_group: MakeGroup) -> None:
    group = await make_group(1, authentication="Enabled")
    await group.lead(0)
    async with raw(ADMIN) as client, raw() as stranger:
        for one in (client, stranger):
            answer = await one.request(group.group_address, send_frame("Orders"), 10)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "no access table yet" in (answer.remark or "")
    assert (await group.members[0].http.get("/livez")).status_code == 200


async def test_a_frame_under_another_code(group: Group) -> None:
    """The code is not part of the signature: who reads a frame may send it again under another code.

    What it can do is bounded by the user's rights and by the frame's fields: rights are checked for the code that came.
    """
    frame = Frame(RequestCode.GET_MAX_OFFSET, ext={"topic": "Orders", "queueId": "0"})
    BILLING.sign(frame)
    async with raw() as thief:
        for code, wanted in (
            (RequestCode.GET_MAX_OFFSET, ResponseCode.SUCCESS),
            (RequestCode.GET_MIN_OFFSET, ResponseCode.SUCCESS),
            (RequestCode.DELETE_TOPIC_IN_BROKER, ResponseCode.NO_PERMISSION),
            (RequestCode.GET_TOPIC_CONFIG, ResponseCode.NO_PERMISSION),
        ):
            answer = await thief.request(group.group_address, Frame(code, ext=dict(frame.ext)), 10)
            assert answer.code == wanted, (code, answer.remark)
        changed = await thief.request(
            group.group_address, Frame(RequestCode.GET_MAX_OFFSET, ext={**frame.ext, "topic": "Secret"}), 10
        )
    assert changed.code == ResponseCode.NO_PERMISSION


async def test_a_transaction_is_asked_of_a_producer_that_may_send_there(make_group: MakeGroup) -> None:
    """A producer group needs no right of its own, but its members see half messages when they are asked."""
    group = await make_group(
        1, authentication="Enabled", settings={"transactionCheckInterval": 300, "transactionTimeOut": 300}
    )
    await group.lead(0)
    await group.registered()
    await put(group, 1)
    await until_version(group, 1)
    async with Admin(group.name_server, credentials=ADMIN) as admin:
        await admin.create_topic("Orders", queues=1)
    seen: list[str] = []

    def checker(name: str) -> Any:
        async def check(message: Any) -> TransactionState:
            seen.append(name)
            return TransactionState.COMMIT

        return check

    async def undecided(message: Any, transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    async with (
        TransactionProducer(group.name_server, "traders", checker("thief"), credentials=NOTHING) as thief,
        TransactionProducer(group.name_server, "traders", checker("owner"), credentials=ORDERS) as owner,
    ):
        await thief.session.remoting.request(
            group.group_address,
            Frame(
                RequestCode.HEART_BEAT,
                body=json.dumps(
                    {"clientID": "t", "consumerDataSet": [], "producerDataSet": [{"groupName": "traders"}]}
                ).encode(),
            ),
            10,
        )
        for _ in range(3):
            await owner.send_in_transaction(Message("Orders", b"half"), undecided)
        async with raw(BILLING) as reader:

            async def committed() -> bool:
                frame = Frame(RequestCode.GET_MAX_OFFSET, ext={"topic": "Orders", "queueId": "0"})
                return (await reader.request(group.group_address, frame, 10)).ext.get("offset") == "3"

            await until(committed, "all three are committed", 30)
    assert set(seen) == {"owner"}


async def test_a_client_id_belongs_to_its_first_user(group: Group) -> None:
    """Nobody gets the replies or the queue locks of another user's client, and only the reply topic pushes."""
    replies = "demo_REPLY_TOPIC"
    both = [{"type": "Topic", "name": name, "actions": ["Pub"]} for name in ("Orders", replies)]
    member = [*both, {"type": "Group", "name": "billing", "actions": ["Sub"]}]
    await put(group, 2, known=users(orders={"rules": member}, billing={"rules": member}))

    def beat(client_id: str = "requester") -> Frame:
        consumers = [{"groupName": "billing", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}]
        value = {"clientID": client_id, "consumerDataSet": consumers, "producerDataSet": [{"groupName": "p"}]}
        return Frame(RequestCode.HEART_BEAT, body=json.dumps(value).encode())

    def lock(code: int) -> Frame:
        queue = {"topic": "Orders", "brokerName": "a", "queueId": 0}
        value = {"consumerGroup": "billing", "clientId": "requester", "mqSet": [queue]}
        return Frame(code, body=json.dumps(value).encode())

    def reply(topic: str) -> Frame:
        props = "REPLY_TO_CLIENT\x01requester\x02CORRELATION_ID\x011"
        header = SendHeader("p", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0, props, 0, False)  # type: ignore[arg-type]
        return Frame(RequestCode.SEND_REPLY_MESSAGE_V2, ext=header.short_ext(), body=b"reply")

    got: dict[str, list[bytes]] = {"owner": [], "thief": []}

    def takes(name: str) -> Any:
        async def take(_: object, frame: Frame) -> Frame:
            got[name].append(frame.body)
            return Frame.response_to(frame, ResponseCode.SUCCESS)

        return take

    address = group.group_address
    async with raw(ORDERS) as owner, raw(BILLING) as thief:
        for name, client in (("owner", owner), ("thief", thief)):
            client.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, takes(name))
        assert (await owner.request(address, beat(), 10)).code == 0
        assert b'"queueId":0' in (await owner.request(address, lock(RequestCode.LOCK_BATCH_MQ), 10)).body
        for frame in (beat(), lock(RequestCode.LOCK_BATCH_MQ), lock(RequestCode.UNLOCK_BATCH_MQ)):
            refused = await thief.request(address, frame, 10)
            assert (refused.code, "another user" in (refused.remark or "")) == (ResponseCode.NO_PERMISSION, True)
        assert (await thief.request(address, beat("mine"), 10)).code == 0
        ext = {"clientID": "requester", "producerGroup": "p", "consumerGroup": "billing"}
        assert (await thief.request(address, Frame(RequestCode.UNREGISTER_CLIENT, ext=ext), 10)).code == 0
        assert (await thief.request(address, reply("Orders"), 10)).code == ResponseCode.NO_PERMISSION
        assert got == {"owner": [], "thief": []}
        answer = await thief.request(address, reply(replies), 10)
        assert answer.code == 0, answer.remark
        assert got == {"owner": [b"reply"], "thief": []}
    async with raw(BILLING) as later:

        async def free() -> bool:
            return (await later.request(address, beat(), 10)).code == 0

        await until(free, "the id is free when its client has gone", 10)


async def test_wrong_signatures_end_their_connection_and_lock_nobody_out(group: Group) -> None:
    """All come from one address, as from behind one router."""
    wrong = Credentials("orders", "a-wrong-secret")
    async with raw(ORDERS) as before, raw(wrong) as thief:
        assert (await before.request(group.group_address, send_frame("Orders"), 10)).code == ResponseCode.SUCCESS
        for address, frame in (
            (group.group_address, send_frame("Orders")),
            (group.name_server, Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "Orders"})),
        ):
            tried = [Frame(frame.code, ext=dict(frame.ext), body=frame.body) for _ in range(10 * WRONG_A_SECOND)]
            answers = await asyncio.gather(*(thief.request(address, one, 10) for one in tried), return_exceptions=True)
            answered = [answer.code for answer in answers if isinstance(answer, Frame)]
            assert set(answered) == {ResponseCode.NO_PERMISSION}
            assert len(answered) < len(tried), "the connection ended before all were tried"
            async with raw(ORDERS) as after:
                for client in (before, after):
                    again = Frame(frame.code, ext=dict(frame.ext), body=frame.body)
                    assert (await client.request(address, again, 10)).code == ResponseCode.SUCCESS
    assert await metric(group, "gantry_access_held_total") >= 1


def half_frame() -> Frame:
    """A half message for `Orders`, of producer group `traders`."""
    properties = "TRAN_MSG\x01true\x02PGROUP\x01traders\x02UNIQ_KEY\x017F00000121A75FFD2B27\x02"
    header = SendHeader("traders", "Orders", "TBW102", 4, 0, 4, 1_700_000_000_000, 0, properties, 0, False)  # type: ignore[arg-type]
    return Frame(RequestCode.SEND_MESSAGE_V2, ext=header.short_ext(), body=b"half")


def end_frame(offset: int, kind: int, queue_offset: int = 0, flag: int = 0) -> Frame:
    """`kind`: 8 commits the half message at that place of the log, 12 rolls it back."""
    ext = {
        "producerGroup": "traders", "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(offset), "commitOrRollback": str(kind),
    }  # fmt: skip
    return Frame(RequestCode.END_TRANSACTION, ext=ext, flag=flag)


def offset_of(sent: Frame) -> int:
    """The place in the log of a message that was stored."""
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    return int(sent.ext["msgId"][16:], 16)


async def pair_with_a_denied_user(make_group: MakeGroup) -> Group:
    """Two members, and user `nothing` who may publish to all topics but `Orders`."""
    group = await make_group(2, authentication="Enabled")
    await group.lead(0)
    await group.registered()
    await group.all_in_sync()
    await put(group, 1, known=users(nothing={"rules": [*ANY_TOPIC, {**ANY_TOPIC[0], **SECRET_ORDERS}]}))
    await until_version(group, 1)
    async with Admin(group.name_server, credentials=ADMIN) as admin:
        await admin.create_topic("Orders", queues=1)
    return group


async def committed(group: Group, address: str) -> str | None:
    """The messages of topic `Orders`."""
    reach = Frame(RequestCode.GET_MAX_OFFSET, ext={"topic": "Orders", "queueId": "0"})
    async with raw(BILLING) as reader:
        return (await reader.request(address, reach, 10)).ext.get("offset")


async def test_a_forwarded_end_of_a_transaction_is_checked_by_the_record_here(make_group: MakeGroup) -> None:
    """The member that forwards it had another record at that place, for which the user has the right."""
    group = await pair_with_a_denied_user(make_group)
    master = group.members[0]
    async with raw(ORDERS) as owner:
        place = offset_of(await owner.request(master.address, half_frame(), 10))
    for user, code in ((NOTHING, ResponseCode.NO_PERMISSION), (ORDERS, ResponseCode.SUCCESS)):
        frame = end_frame(place, 8)
        user.sign(frame)
        answer = await send_as_member(master, forward_frame(frame), 1)
        assert answer.code == ResponseCode.SUCCESS, "the bundle is taken"
        (inner,) = FrameDecoder().feed(answer.body)
        assert (user.access_key, inner.code) == (user.access_key, code)
        assert await committed(group, master.address) == ("1" if user is ORDERS else "0")


async def test_nobody_else_ends_a_transaction_during_a_handover(make_group: MakeGroup) -> None:
    """Strangers try it at both members, one-way as clients do it and with an answer, until the new master leads."""
    group = await pair_with_a_denied_user(make_group)
    async with raw(ORDERS) as owner, raw(NOTHING) as denied, raw(BILLING) as other:
        sent = await owner.request(group.group_address, half_frame(), 10)
        offset, queue_offset = offset_of(sent), int(sent.ext["queueOffset"])

        def end(kind: int, flag: int = 0, more: int = 0) -> Frame:
            return end_frame(offset + more, kind, queue_offset, flag)

        codes: set[int] = set()
        over = asyncio.Event()

        async def keep_trying(client: RemotingClient, address: str) -> None:
            while not over.is_set():
                with contextlib.suppress(RemotingError):
                    for more in (0, 1_000):
                        await client.oneway(address, end(12, FLAG_ONEWAY, more))
                        codes.add((await client.request(address, end(12, more=more), 5)).code)
                await asyncio.sleep(0)

        tries = [
            asyncio.create_task(keep_trying(client, member.address))
            for member in group.members
            for client in (denied, other)
        ]
        target = (await group.ids())[1]
        assert (await group.members[0].handover(target, group.leadership)).ready
        await group.lead(1, in_sync=[0, 1])
        await asyncio.sleep(0.3)
        over.set()
        await asyncio.gather(*tries)
        assert ResponseCode.NO_PERMISSION in codes
        assert ResponseCode.SUCCESS not in codes
        ended = await owner.request(group.members[1].address, end(8), 10)
        assert ended.code == ResponseCode.SUCCESS, ended.remark
    reached = await committed(group, group.members[1].address)
    assert reached == "1", "committed once, by its owner, and not rolled back before"


async def test_nothing_secret_is_open(group: Group) -> None:
    member = group.members[0]
    for path in ("/v1/status", "/metrics"):
        text = (await member.http.get(path)).text
        assert not [secret for secret in SECRETS if secret in text]
    for root, _, names in os.walk(member.config.data_dir):
        for name in names:
            path = Path(root) / name
            with contextlib.suppress(FileNotFoundError):  # The broker replaces files meanwhile.
                if any(secret.encode() in path.read_bytes() for secret in SECRETS):
                    assert path.stat().st_mode & 0o077 == 0, path


async def test_mqadmins_requests_about_users(group: Group) -> None:
    """In force at this member at once, waiting for the control plane, through a restart, until a table has them."""
    member = group.members[0]

    async def ask(client: RemotingClient, code: int, body: Any = None, **ext: str) -> Frame:
        data = b"" if body is None else json.dumps(body).encode()
        return await client.request(group.group_address, Frame(code, ext=ext, body=data), 10)

    new = Credentials("new", "newest-secret")
    info = {"username": "new", "password": new.secret_key, "userType": "Normal", "userStatus": "enable"}
    entry = {"resource": "Topic:Orders", "actions": ["Pub"], "decision": "Allow", "sourceIps": []}
    acl = {"subject": "User:new", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    async with raw(ADMIN) as admin, raw(new) as user:
        assert (await user.request(group.group_address, send_frame("Orders"), 10)).code == ResponseCode.NO_PERMISSION
        assert (await ask(admin, RequestCode.AUTH_CREATE_USER, info, username="new")).code == ResponseCode.SUCCESS
        assert (await ask(admin, RequestCode.AUTH_CREATE_ACL, acl, subject="User:new")).code == ResponseCode.SUCCESS
        assert (await user.request(group.group_address, send_frame("Orders"), 10)).code == ResponseCode.SUCCESS
        listed = await ask(admin, RequestCode.AUTH_LIST_USER, filter="")
        assert {row["username"] for row in json.loads(listed.body)} == {"admin", "orders", "billing", "nothing", "new"}
        got = json.loads((await ask(admin, RequestCode.AUTH_GET_ACL, subject="User:new")).body)
        assert got["policies"][0]["entries"][0]["resource"] == "Topic:Orders"
        everything_said = (listed.body + json.dumps(got).encode()).decode()
        assert not [secret for secret in [*SECRETS, new.secret_key] if secret in everything_said]
        last = await ask(admin, RequestCode.AUTH_DELETE_USER, username="admin")
        assert last.code == ResponseCode.SYSTEM_ERROR
        assert "last enabled super user" in (last.remark or "")
    waiting = (await member.http.get("/v1/access/changes")).json()
    assert [(change["number"], change["op"], change["name"]) for change in waiting["changes"]] == [
        (1, "CreateUser", "new"),
        (2, "CreateAcl", "new"),
    ]
    assert (await member.status()).access.changes == 2
    await member.kill()
    await member.start()
    await member.assign(Assignment(group.leadership, member.replication_address))
    await put(group, 2)

    async def leads() -> bool:
        async with raw(new) as user:
            answer = await user.request(member.address, send_frame("Orders"), 10)
        return answer.code in (ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE)

    await until(leads, "the change is still in force")
    table = {"version": 3, "mode": "Enabled", "users": USERS, "merged": {"demo-a-0": 2}}
    assert (await member.http.put("/v1/access", content=json.dumps(table))).json() == {"version": 3}
    assert (await member.http.get("/v1/access/changes")).json()["changes"] == []
    async with raw(new) as user:
        refused = await user.request(member.address, send_frame("Orders"), 10)
    assert refused.code == ResponseCode.NO_PERMISSION, "the control plane did not take the user over"
    assert new.secret_key not in member.log()


async def test_many_large_changes_reach_the_control_plane_in_parts(group: Group) -> None:
    """All together they are larger than the answer that the control plane takes."""
    member = group.members[0]
    entries = [
        {"resource": f"Topic:{'t' * 240}{number}", "actions": ["Pub"], "decision": "Allow", "sourceIps": []}
        for number in range(300)
    ]
    info = {"username": "new", "password": "newest-secret", "userType": "Normal", "userStatus": "enable"}

    async with raw(ADMIN) as admin:

        async def ask(code: int, body: Any, **ext: str) -> None:
            frame = Frame(code, ext=ext, body=json.dumps(body).encode())
            answer = await admin.request(group.group_address, frame, 10)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

        await ask(RequestCode.AUTH_CREATE_USER, info, username="new")
        for half in (entries[:150], entries[150:]):
            acl = {"subject": "User:new", "policies": [{"policyType": "Custom", "entries": half}]}
            await ask(RequestCode.AUTH_CREATE_ACL, acl, subject="User:new")
        for number in range(14):
            rotated = {**info, "password": f"newest-secret-{number}"}
            await ask(RequestCode.AUTH_UPDATE_USER, rotated, username="new")
    numbers: list[int] = []
    parts = sizes = 0
    while changes := (answer := await member.http.get("/v1/access/changes")).json()["changes"]:
        assert len(answer.content) < 1 << 20
        parts, sizes = parts + 1, sizes + len(answer.content)
        numbers += [change["number"] for change in changes]
        table = {"version": 1 + parts, "mode": "Enabled", "users": USERS, "merged": {"demo-a-0": numbers[-1]}}
        assert (await member.http.put("/v1/access", content=json.dumps(table))).status_code == 200
    assert numbers == list(range(1, 18)), "each one once, in order"
    assert parts > 1
    assert sizes > 1 << 20
