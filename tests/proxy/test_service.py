"""Clients of a real proxy over a real broker: order, renewals, several proxies, lost clients, users, changes."""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from gantry_broker.access.guesses import WRONG_A_SECOND
from gantry_broker.access.table import AccessTable, table_json
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.grpc_contract import Code, v2
from gantry_broker.proxy import brokers, receiving, renewal, service
from gantry_broker.proxy.authentication import TooManyGuesses
from gantry_broker.proxy.brokers import CALL_S
from gantry_broker.proxy.receiving import HeldReceive
from prometheus_client.parser import text_string_to_metric_families

from tests.client.cluster import Cluster
from tests.integration.test_metrics_page import ROOT, compare, documented, served
from tests.proxy import cluster as c
from tests.support.present import present
from tests.support.remoting import codes_sent
from tests.support.running import until

CLIENT = "client@1"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MIN_POLL_MS", 1_000)
    monkeypatch.setattr(c, "POLL_S", 1)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with c.served(tmp_path, enablePropertyFilter=True) as found:
        await c.make_topic(found, "T")
        await c.make_group(found, "g")
        yield found


async def send(stub: c.Stub, *messages: Any, client: str = "p@1", **more: str | None) -> Any:
    request = v2.SendMessageRequest(messages=messages)
    return await stub.SendMessage(request, metadata=c.metadata(client, **more), timeout=5)


async def get(stub: c.Stub, client: str, request: Any, count: int = 1, seconds: float = 60) -> list[Any]:
    """Receive until `count` messages have come."""
    found: list[Any] = []
    ends = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < ends:
        status, messages = await c.received(stub, client, request)
        assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
        found += messages
    return found


async def test_messages_come_as_they_were_sent_and_once(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T"), token_file=tmp_path / "token") as (proxy, stub, _):
        packed = gzip.compress(b"x" * 10_000)
        await send(stub, c.message("T", b"1", tag="a", props={"p": "v"}), c.message("T", b"2", tag="b"))
        await send(stub, c.message("T", packed, encoding=2, tag="a"))
        got = await get(stub, CLIENT, c.receive("g", "T", n=32), 3)
        assert sorted(m.body for m in got) == sorted([b"1", b"2", packed])
        [same] = [m for m in got if m.body == packed]
        assert same.system_properties.body_encoding == 2
        answer = await stub.AckMessage(c.ack("T", "g", *got), metadata=c.metadata(CLIENT))
        assert answer.status.code == Code.OK
        status, again = await c.received(stub, CLIENT, c.receive("g", "T"))
        assert (status.code, again) == (Code.MESSAGE_NOT_FOUND, [])
        page = await asyncio.to_thread(_page, proxy.http_port, "/metrics")
        assert 'gantry_proxy_answers_total{method="SendMessage",code="OK"} 2' in page
        for token in (None, "Secret", "secret2"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                await asyncio.to_thread(_page, proxy.http_port, "/v1/clients", token)
        [known] = json.loads(await asyncio.to_thread(_page, proxy.http_port, "/v1/clients", "secret"))
        assert (known["id"], known["group"], known["connected"]) == (CLIENT, "g", True)
        assert "ready" in await asyncio.to_thread(_page, proxy.http_port, "/readyz")


async def test_acknowledgements_of_one_request_go_to_the_broker_together(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry has the code that it has alone: one that was acknowledged before, one that has expired, one that is
    no handle.
    """
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (_, stub, _):
        for number in range(6):
            await send(stub, c.message("T", b"%d" % number))
        got = await get(stub, CLIENT, c.receive("g", "T", n=32), 6)
        sent = codes_sent(monkeypatch)
        answer = await stub.AckMessage(c.ack("T", "g", *got[:4]), metadata=c.metadata(CLIENT))
        assert [entry.status.code for entry in answer.entries] == [Code.OK] * 4
        assert answer.status.code == Code.OK
        assert (sent.count(RequestCode.BATCH_ACK_MESSAGE), sent.count(RequestCode.ACK_MESSAGE)) == (1, 0)
        request = c.ack("T", "g", got[0], got[4], got[5])
        old = got[5].system_properties.receipt_handle.split(" ")
        request.entries[2].receipt_handle = " ".join([old[0], str(int(old[1]) - 5), "1", *old[3:]])
        request.entries.add(message_id="m", receipt_handle="no handle")
        answer = await stub.AckMessage(request, metadata=c.metadata(CLIENT))
        assert answer.status.code == Code.MULTIPLE_RESULTS
        codes = [Code.OK, Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.INTERNAL_SERVER_ERROR]
        assert [entry.status.code for entry in answer.entries] == codes
        assert [entry.receipt_handle for entry in answer.entries] == [e.receipt_handle for e in request.entries]


async def test_handles_of_a_hundred_unknown_brokers_cost_one_question(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client writes its handles, and may name any broker."""
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (_, stub, _):
        await send(stub, c.message("T", b"0"))
        [got] = await get(stub, CLIENT, c.receive("g", "T", n=32), 1)
        parts = got.system_properties.receipt_handle.split(" ")
        request = c.ack("T", "g", got)
        for number in range(100):
            handle = " ".join([*parts[:5], f"nowhere-{number}", *parts[6:]])
            request.entries.add(message_id="m", receipt_handle=handle)
        sent = codes_sent(monkeypatch)
        answer = await stub.AckMessage(request, metadata=c.metadata(CLIENT))
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.OK, *[Code.INVALID_RECEIPT_HANDLE] * 100]
        assert sent.count(RequestCode.GET_BROKER_CLUSTER_INFO) <= 1
        assert len(sent) <= 3


async def test_the_documentation_has_every_metric(cluster: Cluster) -> None:
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (proxy, stub, _):
        await send(stub, c.message("T"))
        page = await asyncio.to_thread(_page, proxy.http_port, "/metrics")
    found = served(text_string_to_metric_families(page))
    own = {name: row for name, row in found.items() if name.startswith("gantry_proxy_")}
    assert set(found) - set(own) == {"gantry_build_info", "gantry_access_refused_total"}
    compare(documented((ROOT / "docs" / "metrics.md").read_text(), "The gRPC proxy's"), own)


async def test_clients_are_listed_to_nobody_without_a_token(cluster: Cluster, tmp_path: Path) -> None:
    async with c.proxied(cluster) as (proxy, _):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            await asyncio.to_thread(_page, proxy.http_port, "/v1/clients", "")
    async with c.proxied(cluster, token_file=tmp_path / "absent") as (proxy, _):
        with pytest.raises(urllib.error.HTTPError, match="503"):
            await asyncio.to_thread(_page, proxy.http_port, "/v1/clients", "")


def _page(port: int | None, path: str, token: str | None = None) -> str:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        text: str = answer.read().decode()
        return text


async def test_a_filter_by_tag_and_by_properties(cluster: Cluster) -> None:
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (_, stub, line):
        for number in range(4):
            await send(stub, c.message("T", b"%d" % number, tag="ab"[number % 2], props={"n": str(number)}))
        got = await get(stub, CLIENT, c.receive("g", "T", expression="a || c"), 2)
        assert sorted(m.body for m in got) == [b"0", b"2"]
        await c.make_group(cluster, "g2")
        await line.settings(c.consumer("g2", "T"))
        got = await get(stub, CLIENT, c.receive("g2", "T", kind=2, expression="n > 1"), 2)
        assert sorted(m.body for m in got) == [b"2", b"3"]


async def test_a_message_group_keeps_its_order_and_blocks_its_queue(cluster: Cluster) -> None:
    """7999, clients 599, 754: the order of a message group is that of its group with orderly consumers."""
    await c.make_topic(cluster, "F", "FIFO", queues=4)
    await c.make_group(cluster, "go", orderly=True)
    async with c.proxied(cluster) as (_, stub):
        line = c.Line(stub, CLIENT)
        assert (await line.settings(c.consumer("go", "F", kind=2))).settings.subscription.fifo
        for number in range(6):
            await send(stub, c.message("F", b"%d" % number, kind=2, message_group="one"))
        got = []
        while len(got) < 6:
            messages = await get(stub, CLIENT, c.receive("go", "F", n=2, auto=True, invisible=None))
            got += [m.body for m in messages]
            status, others = await c.received(stub, CLIENT, c.receive("go", "F", auto=True, invisible=None))
            assert others == [], status
            await stub.AckMessage(c.ack("F", "go", *messages), metadata=c.metadata(CLIENT))
        assert got == [b"%d" % number for number in range(6)]
        await line.end()


async def test_acknowledged_messages_behind_a_failed_one_come_again_in_order(cluster: Cluster) -> None:
    await c.make_topic(cluster, "F", "FIFO", queues=1)
    await c.make_group(cluster, "go", orderly=True)
    async with c.consuming(cluster, CLIENT, c.consumer("go", "F")) as (_, stub, _):
        for number in range(4):
            await send(stub, c.message("F", b"%d" % number, kind=2, message_group="one"))
        first = await get(stub, CLIENT, c.receive("go", "F", n=3, invisible=20), 3)
        assert [m.body for m in first] == [b"0", b"1", b"2"]
        await stub.AckMessage(c.ack("F", "go", *first[1:]), metadata=c.metadata(CLIENT))
        change = v2.ChangeInvisibleDurationRequest(receipt_handle=first[0].system_properties.receipt_handle)
        change.topic.name, change.group.name = "F", "go"
        change.invisible_duration.nanos = 200_000_000
        assert (await stub.ChangeInvisibleDuration(change, metadata=c.metadata(CLIENT))).status.code == Code.OK
        again = await get(stub, CLIENT, c.receive("go", "F", n=3, invisible=20), 3)
        assert [(m.body, m.system_properties.delivery_attempt) for m in again] == [(b"0", 2), (b"1", 2), (b"2", 2)]
        await stub.AckMessage(c.ack("F", "go", *again), metadata=c.metadata(CLIENT))
        assert [m.body for m in await get(stub, CLIENT, c.receive("go", "F", n=3, invisible=20))] == [b"3"]


async def test_a_push_consumer_keeps_its_message_as_long_as_it_works(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9583: an acknowledgement with the first handle counts after renewals."""
    monkeypatch.setattr(receiving, "FIRST_MS", 3_000)
    monkeypatch.setattr(renewal, "AHEAD_MS", 1_500)
    monkeypatch.setattr(renewal, "STEPS_MS", (3_000,))
    monkeypatch.setattr(receiving, "RENEW_S", 0.1)
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T", kind=2)) as (proxy, stub, _):
        await send(stub, c.message("T", b"long work"))
        [got] = await get(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None))
        status, others = await c.received(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None, poll=7))
        assert (status.code, others) == (Code.MESSAGE_NOT_FOUND, [])
        renewals = proxy.service.receiving.renewals
        assert renewals.made >= 2
        assert (await stub.AckMessage(c.ack("T", "g", got), metadata=c.metadata(CLIENT))).status.code == Code.OK
        assert len(renewals) == 0
        status, others = await c.received(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None, poll=5))
        assert others == []


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
async def test_a_step_of_the_proxys_clock_ends_no_renewal(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    """Otherwise another member gets the message while the first one works on it."""
    monkeypatch.setattr(receiving, "FIRST_MS", 3_000)
    monkeypatch.setattr(renewal, "AHEAD_MS", 2_500)
    monkeypatch.setattr(renewal, "STEPS_MS", (3_000,))
    monkeypatch.setattr(receiving, "RENEW_S", 0.05)
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T", kind=2)) as (proxy, stub, _):
        await send(stub, c.message("T", b"long work"))
        await get(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None))
        stepped = SimpleNamespace(
            time_ns=lambda: time.time_ns() + step_s * 10**9, monotonic=time.monotonic, monotonic_ns=time.monotonic_ns
        )
        monkeypatch.setattr(receiving, "time", stepped)
        renewals = proxy.service.receiving.renewals
        async with asyncio.timeout(10):
            while renewals.made < 2:
                assert len(renewals) == 1, "the message is still its client's"
                await asyncio.sleep(0.02)


async def test_a_client_that_says_goodbye_leaves_its_messages_to_others(cluster: Cluster) -> None:
    async with c.proxied(cluster) as (_, stub):
        first, second = c.Line(stub, "one"), c.Line(stub, "two")
        for line in (first, second):
            await line.settings(c.consumer("g", "T", kind=2))
        await send(stub, c.message("T", b"left"))
        await get(stub, "one", c.receive("g", "T", auto=True, invisible=None))
        await stub.NotifyClientTermination(v2.NotifyClientTerminationRequest(), metadata=c.metadata("one"))
        [got] = await get(stub, "two", c.receive("g", "T", auto=True, invisible=None))
        assert got.body == b"left"
        assert got.system_properties.delivery_attempt == 2
        for line in (first, second):
            await line.end()


async def test_a_receive_that_its_client_gave_up_loses_nothing(cluster: Cluster) -> None:
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (proxy, stub, _):
        gone = stub.ReceiveMessage(c.receive("g", "T", poll=10), metadata=c.metadata(CLIENT), timeout=15)
        reading = asyncio.ensure_future(_read(gone))
        await until(lambda: proxy.service.held_receives)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        # Until then a message is still for it.
        await until(lambda: not proxy.service.held_receives)
        await send(stub, c.message("T", b"nobody waits"))
        begun = time.monotonic()
        [got] = await get(stub, CLIENT, c.receive("g", "T"))
        assert got.body == b"nobody waits"
        assert time.monotonic() - begun < 15  # its invisible time is 20 s
        assert got.system_properties.delivery_attempt == 1, "nobody has got it before"
        assert proxy.service.receiving.returned <= 1


async def test_a_result_that_comes_with_the_end_of_its_call_is_not_dropped() -> None:
    """The pop is answered, and the client ends the call, in one pass of the loop."""
    left: list[str] = []
    popped = asyncio.get_running_loop().create_future()

    async def pop() -> str:
        return str(await popped)

    receive = asyncio.ensure_future(HeldReceive(lambda: None).run(pop(), left.append))
    for _ in range(2):  # It begins, and the pop waits.
        await asyncio.sleep(0)
    popped.set_result("messages")
    await asyncio.sleep(0)
    receive.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receive
    assert left == ["messages"]


async def test_an_answer_that_its_client_gave_up_in_the_middle_goes_to_others(cluster: Cluster) -> None:
    class Unread:
        """A client that reads two parts of the answer, and goes."""

        metadata: dict[str, str] = {}  # noqa: RUF012
        over, parts = False, 0

        def time_left(self) -> None:
            return None

        async def send(self, message: bytes) -> None:
            self.parts += 1
            if self.parts > 2:
                raise asyncio.CancelledError

    async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (proxy, stub, _):
        for body in (b"1", b"2", b"3"):
            await send(stub, c.message("T", body))
        client = present(proxy.service.clients.get(CLIENT))

        async def receive_until_gone() -> None:
            while True:
                unread: Any = Unread()
                await proxy.service.receiving.receive(
                    unread, client, "g", "T", c.receive("g", "T", n=32), HeldReceive(lambda: None)
                )

        with pytest.raises(asyncio.CancelledError):
            await receive_until_gone()
        assert proxy.service.receiving.returned == 2


async def _read(call: Any) -> Any:
    return await call.read()


async def test_another_proxy_takes_handles_and_clients_over(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """10278: the handle that a client has counts at another proxy, also when the first one has renewed it."""
    monkeypatch.setattr(receiving, "FIRST_MS", 2_000)
    monkeypatch.setattr(renewal, "AHEAD_MS", 1_500)
    monkeypatch.setattr(renewal, "STEPS_MS", (20_000,))
    monkeypatch.setattr(receiving, "RENEW_S", 0.1)
    async with c.proxied(cluster) as (_, other):
        async with c.proxied(cluster) as (first, stub):
            line = c.Line(stub, CLIENT)
            await line.settings(c.consumer("g", "T", kind=2))
            await send(stub, c.message("T", b"1"))
            [got] = await get(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None))
            await until(lambda: first.service.receiving.renewals.made == 1)
        await asyncio.sleep(2.0)
        moved = c.Line(other, CLIENT)
        await moved.settings(c.consumer("g", "T", kind=2))
        status, again = await c.received(other, CLIENT, c.receive("g", "T"))
        assert (status.code, again) == (Code.MESSAGE_NOT_FOUND, [])
        answer = await other.AckMessage(c.ack("T", "g", got), metadata=c.metadata(CLIENT))
        assert answer.status.code == Code.OK
        await moved.end()


async def test_a_receive_waits_a_moment_for_the_settings_of_its_client(cluster: Cluster) -> None:
    """clients 1137: after a restart of the proxy, settings may come after the first receive."""
    async with c.proxied(cluster) as (_, stub):
        await send(stub, c.message("T", b"1"))
        early = asyncio.ensure_future(c.received(stub, CLIENT, c.receive("g", "T")))
        await asyncio.sleep(0.3)
        line = c.Line(stub, CLIENT)
        await line.settings(c.consumer("g", "T"))
        status, messages = await early
        assert (status.code, [m.body for m in messages]) == (Code.OK, [b"1"])
        await line.end()


async def test_a_changed_group_reaches_its_live_consumers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "FRESH_S", 0.2)
    monkeypatch.setattr(service, "SWEEP_S", 0.2)
    async with c.proxied(cluster) as (_, stub):
        line = c.Line(stub, CLIENT)
        first = await line.settings(c.consumer("g", "T", kind=2))
        assert (first.settings.subscription.fifo, first.settings.backoff_policy.max_attempts) == (False, 17)
        await c.make_group(cluster, "g", orderly=True, retries=3)
        received = await line.read()
        assert (received.settings.subscription.fifo, received.settings.backoff_policy.max_attempts) == (True, 4)
        policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 3000, "max": 60000, "multiplier": 4}}
        await c.make_group(cluster, "g", orderly=True, retries=3, groupRetryPolicy=policy)
        backoff = (await line.read()).settings.backoff_policy.exponential_backoff
        assert (backoff.initial.seconds, backoff.max.seconds, backoff.multiplier) == (3, 60, 4.0)
        await line.end()


async def test_the_configuration_of_a_group_counts_while_no_broker_is_there_and_after(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "FRESH_S", 0.1)
    monkeypatch.setattr(brokers, "ABSENT_S", 0.1)
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [7_000, 70_000]}}
    await c.make_group(cluster, "go", orderly=True, groupRetryPolicy=policy)
    async with c.proxied(cluster) as (proxy, _):
        config = await proxy.service.brokers.group("go")
        assert (config.orderly, config.retry_policy.steps_ms) == (True, (7_000, 70_000))
        await cluster.brokers["a"].stop()
        for _ in range(3):
            await asyncio.sleep(0.15)
            assert await proxy.service.brokers.group("go") == config
    await cluster.brokers["a"].start()
    await cluster.has_topic("T")
    async with c.proxied(cluster) as (proxy, _):
        assert await proxy.service.brokers.group("go") == config


async def test_who_works_too_long_leaves_a_message_by_the_retry_policy(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest time of renewals is over: the next delivery comes after the pause of the group's policy."""
    monkeypatch.setattr(renewal, "AHEAD_MS", receiving.FIRST_MS)
    monkeypatch.setattr(renewal, "LONGEST_MS", 0)
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 300, "max": 300, "multiplier": 1}}
    await c.make_group(cluster, "g", groupRetryPolicy=policy)
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T", kind=2)) as (_, stub, _):
        await send(stub, c.message("T", b"slow"))
        for attempt in (1, 2):
            [got] = await get(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None))
            assert (got.body, got.system_properties.delivery_attempt) == (b"slow", attempt)


async def test_the_queue_of_a_message_that_failed_too_often_goes_on(cluster: Cluster) -> None:
    """An orderly group: the broker delivers again and again; the proxy makes the dead letter."""
    await c.make_topic(cluster, "F", "FIFO", queues=1)
    await c.make_group(cluster, "go", orderly=True, retries=1)
    async with c.proxied(cluster) as (_, stub):
        line = c.Line(stub, CLIENT)
        await line.settings(c.consumer("go", "F", kind=2))
        for body in (b"bad", b"good"):
            await send(stub, c.message("F", body, kind=2, message_group="one"))
        for attempt in (1, 2):
            [got] = await get(stub, CLIENT, c.receive("go", "F", n=1, auto=True, invisible=None))
            assert (got.body, got.system_properties.delivery_attempt) == (b"bad", attempt)
            change = v2.ChangeInvisibleDurationRequest(receipt_handle=got.system_properties.receipt_handle)
            change.topic.name, change.group.name = "F", "go"
            change.invisible_duration.nanos = 200_000_000
            answer = await stub.ChangeInvisibleDuration(change, metadata=c.metadata(CLIENT))
            assert answer.status.code == Code.OK
        [got] = await get(stub, CLIENT, c.receive("go", "F", n=1, auto=True, invisible=None))
        assert got.body == b"good"
        await stub.AckMessage(c.ack("F", "go", got), metadata=c.metadata(CLIENT))
        await cluster.has_topic("%DLQ%go")
        await c.make_group(cluster, "dead")
        settings = c.consumer("dead", "%DLQ%go")
        other = c.Line(stub, "c@dead")
        await other.settings(settings)
        [dead] = await get(stub, "c@dead", c.receive("dead", "%DLQ%go"))
        assert dead.body == b"bad"
        await other.end()
        await line.end()


async def test_messages_that_failed_too_often_become_dead_letters(cluster: Cluster) -> None:
    await c.make_group(cluster, "g", retries=1)
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T", kind=2)) as (_, stub, _):
        await send(stub, c.message("T", b"bad"))
        for attempt in (1, 2):
            [got] = await get(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None))
            assert got.system_properties.delivery_attempt == attempt
            change = v2.ChangeInvisibleDurationRequest(receipt_handle=got.system_properties.receipt_handle)
            change.topic.name, change.group.name = "T", "g"
            change.invisible_duration.nanos = 200_000_000
            answer = await stub.ChangeInvisibleDuration(change, metadata=c.metadata(CLIENT))
            assert answer.status.code == Code.OK
        status, messages = await c.received(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None))
        assert (status.code, messages) == (Code.MESSAGE_NOT_FOUND, [])
        await cluster.has_topic("%DLQ%g")


async def test_a_forged_handle_makes_no_dead_letter_of_a_message_of_another_topic(cluster: Cluster) -> None:
    """Readers of the group would get it, whatever their rights are."""
    await c.make_topic(cluster, "Secret")
    await c.make_group(cluster, "owner")
    async with c.proxied(cluster) as (_, stub):
        owner, line = c.Line(stub, "owner"), c.Line(stub, CLIENT)
        await owner.settings(c.consumer("owner", "Secret"))
        await line.settings(c.consumer("g", "T", kind=2))
        await send(stub, c.message("Secret", b"secret"))
        await send(stub, c.message("T", b"mine"))
        [secret] = await get(stub, "owner", c.receive("owner", "Secret"))
        [mine] = await get(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None))
        own = mine.system_properties.receipt_handle
        place = secret.system_properties.receipt_handle.rpartition(" ")[2]

        async def forward(handle: str) -> int:
            request = v2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, max_delivery_attempts=1)
            request.topic.name, request.group.name = "T", "g"
            answer = await stub.ForwardMessageToDeadLetterQueue(request, metadata=c.metadata(CLIENT))
            return int(answer.status.code)

        assert await forward(f"{own.rpartition(' ')[0]} {place}") == Code.INTERNAL_SERVER_ERROR
        assert await forward(own) == Code.OK
        await cluster.has_topic("%DLQ%g")
        [dead] = await get(stub, CLIENT, c.receive("g", "%DLQ%g"))
        assert dead.body == b"mine"
        await line.end()
        await owner.end()


async def test_a_client_is_asked_for_its_stack_and_to_verify_a_message(cluster: Cluster) -> None:
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T", kind=2)) as (proxy, _, line):
        client = present(proxy.service.clients.get(CLIENT))
        part = "print_thread_stack_trace_command"
        asked = asyncio.ensure_future(proxy.service.clients.ask(client, v2.TelemetryCommand(), part, 5))
        nonce = (await line.read()).print_thread_stack_trace_command.nonce
        answer = v2.TelemetryCommand()
        answer.thread_stack_trace.nonce = nonce
        answer.thread_stack_trace.thread_stack_trace = "main"
        await line.send(answer)
        assert (await asked).thread_stack_trace.thread_stack_trace == "main"
        with pytest.raises(TimeoutError):
            await proxy.service.clients.ask(client, v2.TelemetryCommand(), "verify_message_command", 0.2)


# ---- users


def signed(key: str, secret: str) -> dict[str, str]:
    date = time.strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.digest(secret.encode(), date.encode(), "sha1").hex().upper()
    return {
        "authorization": f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}",
        "x_mq_date_time": date,
    }


def users(version: int, key: str = "secret-of-orders", without: str = "") -> bytes:
    rules = [
        {"type": "Topic", "name": "T", "actions": ["Pub", "Sub"]},
        {"type": "Group", "name": "g", "actions": ["Sub"]},
    ]
    found = [
        {"name": "orders", "keys": [key], "rules": rules},
        {"name": "admin", "keys": ["secret-of-admin"], "super": True},
    ]
    table = {"version": version, "mode": "Enabled", "users": [user for user in found if user["name"] != without]}
    return table_json(AccessTable.model_validate(table))


async def test_a_user_does_not_act_for_a_client_of_another(cluster: Cluster, tmp_path: Path) -> None:
    """Client ids are no secrets: another user may send the same one."""
    table = tmp_path / "access.json"
    rules = [
        {"type": kind, "name": name, "actions": ["Any"]}
        for kind, name in (("Topic", "T"), ("Group", "g"), ("Group", "h"))
    ]
    both = [{"name": name, "keys": [f"secret-of-{name}"], "rules": rules} for name in ("orders", "stranger")]
    given = {"version": 1, "mode": "Enabled", "users": both}
    table.write_bytes(table_json(AccessTable.model_validate(given)))
    orders, stranger = (signed(name, f"secret-of-{name}") for name in ("orders", "stranger"))
    async with c.proxied(cluster, access={"file": str(table)}) as (proxy, stub):
        line = c.Line(stub, CLIENT, **orders)
        await line.settings(c.consumer("g", "T", kind=2))
        await send(stub, c.message("T", b"mine"), **orders)
        status, [got] = await c.received(stub, CLIENT, c.receive("g", "T", auto=True, invisible=None), **orders)
        assert status.code == Code.OK
        clients, renewals = proxy.service.clients, proxy.service.receiving.renewals
        [known] = list(clients)
        before = known.line, known.settings
        bye = v2.NotifyClientTerminationRequest()
        answer = await stub.NotifyClientTermination(bye, metadata=c.metadata(CLIENT, **stranger))
        assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        theirs = c.Line(stub, CLIENT, **stranger)
        await theirs.settings(c.consumer("h", "T"))
        assert (known.line, known.settings) == before
        assert len(renewals) == 1
        asked = asyncio.ensure_future(clients.ask(known, v2.TelemetryCommand(), "verify_message_command", 5))
        command = v2.TelemetryCommand()
        command.verify_message_result.nonce = (await line.read()).verify_message_command.nonce
        await theirs.send(command)
        await theirs.settings(c.consumer("h", "T"))  # Its answer comes after that of the command.
        assert not asked.done()
        await line.send(command)
        await asked
        answer = await stub.AckMessage(c.ack("T", "g", got), metadata=c.metadata(CLIENT, **orders))
        assert answer.status.code == Code.OK
        await line.end()
        await theirs.end()


async def test_handles_that_name_brokers_that_do_not_exist_are_answered_at_once(cluster: Cluster) -> None:
    """Each of them waited for the end of a failover: 2.8 s."""
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (_, stub, _):
        await send(stub, c.message("T"))
        (got,) = await get(stub, CLIENT, c.receive("g", "T"), 1)
        request = c.ack("T", "g", got)
        parts = got.system_properties.receipt_handle.split(" ")
        forged = [" ".join([*parts[:5], f"none-{number}", *parts[6:]]) for number in range(100)]
        for handle in forged:
            request.entries.add(message_id="m", receipt_handle=handle)
        begun = time.monotonic()
        answer = await stub.AckMessage(request, metadata=c.metadata(CLIENT))
        assert time.monotonic() - begun < CALL_S / 2, "not as long as a failover is waited for"
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.OK] + [Code.INVALID_RECEIPT_HANDLE] * 100
        change = v2.ChangeInvisibleDurationRequest(
            topic={"name": "T"}, group={"name": "g"}, receipt_handle=forged[0], invisible_duration={"seconds": 10}
        )
        answer = await stub.ChangeInvisibleDuration(change, metadata=c.metadata(CLIENT))
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
        assert "none-0" in answer.status.message


async def test_users_and_their_rights(cluster: Cluster, tmp_path: Path) -> None:
    table = tmp_path / "access.json"
    table.write_bytes(users(1))
    await c.make_topic(cluster, "Other")
    async with c.proxied(cluster, access={"file": str(table)}) as (_, stub):
        good = signed("orders", "secret-of-orders")
        assert (await send(stub, c.message("T"))).status.code == Code.UNAUTHORIZED
        wrong = await send(stub, c.message("T"), **signed("orders", "another-secret"))
        unknown = await send(stub, c.message("T"), **signed("nobody", "secret-of-orders"))
        assert (wrong.status.code, wrong.status.message) == (unknown.status.code, unknown.status.message)
        assert wrong.status.code == Code.UNAUTHORIZED
        assert (await send(stub, c.message("T"), **good)).status.code == Code.OK
        assert (await send(stub, c.message("Other"), **good)).status.code == Code.FORBIDDEN
        garbage = good | {"authorization": "MQv2-HMAC-SHA1 " + "x" * 2_000}
        assert (await send(stub, c.message("T"), **garbage)).status.code == Code.UNAUTHORIZED
        line = c.Line(stub, CLIENT, **good)
        assert (await line.settings(c.consumer("g", "T"))).status.code == Code.OK
        refused = c.Line(stub, "other", **good)
        assert (await refused.settings(c.consumer("strangers", "T"))).status.code == Code.FORBIDDEN
        status, messages = await c.received(stub, CLIENT, c.receive("g", "T"), **good)
        assert (status.code, len(messages)) == (Code.OK, 1)
        status, _ = await c.received(stub, CLIENT, c.receive("strangers", "T"), **good)
        assert status.code == Code.FORBIDDEN
        table.write_bytes(users(2, "rotated-secret"))
        ends = time.monotonic() + 60
        while (await send(stub, c.message("T"), **good)).status.code == Code.OK:
            assert time.monotonic() < ends
            await asyncio.sleep(0.1)
        assert (await send(stub, c.message("T"), **signed("orders", "rotated-secret"))).status.code == Code.OK
        await line.end()
        await refused.end()


NEEDS: dict[str, tuple[Any, str]] = {
    "QueryRoute": (v2.QueryRouteRequest(topic={"name": "Other"}), "Topic Other"),
    "QueryAssignment": (v2.QueryAssignmentRequest(topic={"name": "T"}, group={"name": "other"}), "Group other"),
    "SendMessage": (v2.SendMessageRequest(messages=[c.message("Other")]), "Topic Other"),
    "Heartbeat": (v2.HeartbeatRequest(group={"name": "other"}), "Group other"),
    "AckMessage": (v2.AckMessageRequest(topic={"name": "Other"}, group={"name": "g"}), "Topic Other"),
    "ChangeInvisibleDuration": (
        v2.ChangeInvisibleDurationRequest(topic={"name": "T"}, group={"name": "other"}),
        "Group other",
    ),
    "ForwardMessageToDeadLetterQueue": (
        v2.ForwardMessageToDeadLetterQueueRequest(topic={"name": "Other"}, group={"name": "g"}),
        "Topic Other",
    ),
    "EndTransaction": (v2.EndTransactionRequest(topic={"name": "Other"}, transaction_id="1"), "Topic Other"),
    "RecallMessage": (v2.RecallMessageRequest(topic={"name": "Other"}, recall_handle="1"), "Topic Other"),
    "NotifyClientTermination": (v2.NotifyClientTerminationRequest(), "the client id"),
    "SyncLiteSubscription": (
        v2.SyncLiteSubscriptionRequest(topic={"name": "T"}, group={"name": "other"}),
        "Group other",
    ),
}
"""A request of each method that the user `orders` may not make, and what it lacks."""


async def test_each_method_needs_a_signature_and_a_right(cluster: Cluster, tmp_path: Path) -> None:
    table = tmp_path / "access.json"
    table.write_bytes(users(1))
    await c.make_topic(cluster, "Other")
    async with c.proxied(cluster, access={"file": str(table)}) as (proxy, stub):
        names = {path.rpartition("/")[2] for path in proxy.service.methods}
        assert names - {*service.UNIMPLEMENTED} == {*NEEDS, "ReceiveMessage", "Telemetry"}, (
            "each method of the service is in this test"
        )
        good, admin = signed("orders", "secret-of-orders"), signed("admin", "secret-of-admin")
        line = c.Line(stub, "client-of-admin", **admin)
        assert (await line.settings(c.producer("Other"))).status.code == Code.OK
        for name, (request, lacks) in NEEDS.items():
            method = getattr(stub, name)
            nobody = await method(request, metadata=c.metadata("client-of-admin"), timeout=5)
            assert nobody.status.code == Code.UNAUTHORIZED, name
            if name == "NotifyClientTermination":
                refused = await method(request, metadata=c.metadata("client-of-admin", **good), timeout=5)
                assert refused.status.code == Code.UNRECOGNIZED_CLIENT_TYPE, "each user has client ids of its own"
                continue
            refused = await method(request, metadata=c.metadata(CLIENT, **good), timeout=5)
            assert (refused.status.code, lacks in refused.status.message) == (Code.FORBIDDEN, True), (name, refused)
        for metadata, code in ((good, Code.FORBIDDEN), ({}, Code.UNAUTHORIZED)):
            status, messages = await c.received(stub, CLIENT, c.receive("g", "Other"), **metadata)
            assert (status.code, messages) == (code, [])
            for settings in (c.producer("Other"), c.consumer("g", "Other"), c.consumer("other", "T")):
                talk = c.Line(stub, CLIENT, **metadata)
                assert (await talk.settings(settings)).status.code == code
                await talk.end()
        taken = c.Line(stub, "client-of-admin", **good)
        assert (await taken.settings(c.producer("T"))).status.code == Code.OK, "a client of its own"
        await taken.end()
        theirs = present(proxy.service.clients.get("client-of-admin", "admin"))
        assert theirs.line is not None, "the other user's client goes on"
        await line.end()


async def test_a_handle_with_the_place_of_another_topics_message(cluster: Cluster, tmp_path: Path) -> None:
    """A client may write any place into its handle: no message of another topic becomes a dead letter of its group."""
    table = tmp_path / "access.json"
    table.write_bytes(users(1))
    await c.make_topic(cluster, "Other")
    async with c.proxied(cluster, access={"file": str(table)}) as (_, stub):
        good, admin = signed("orders", "secret-of-orders"), signed("admin", "secret-of-admin")
        assert (await send(stub, c.message("Other", b"secret"), **admin)).status.code == Code.OK
        theirs = c.Line(stub, "client-of-admin", **admin)
        assert (await theirs.settings(c.consumer("g", "Other"))).status.code == Code.OK
        _, (other,) = await c.received(stub, "client-of-admin", c.receive("g", "Other"), **admin)
        first = other.system_properties.receipt_handle.rpartition(" ")[2]
        await theirs.end()
        assert (await send(stub, c.message("T"), **good)).status.code == Code.OK
        line = c.Line(stub, CLIENT, **good)
        assert (await line.settings(c.consumer("g", "T"))).status.code == Code.OK
        _, (got,) = await c.received(stub, CLIENT, c.receive("g", "T"), **good)
        handle, place = got.system_properties.receipt_handle.rsplit(" ", 1)

        async def to_dead_letters(text: str) -> int:
            request = v2.ForwardMessageToDeadLetterQueueRequest(
                group={"name": "g"}, topic={"name": "T"}, receipt_handle=text,
                message_id=got.system_properties.message_id, max_delivery_attempts=1,
            )  # fmt: skip
            metadata = c.metadata(CLIENT, **good)
            answer = await stub.ForwardMessageToDeadLetterQueue(request, metadata=metadata, timeout=5)
            return answer.status.code

        for forged in (f"{handle} {first}", f"{handle} {10**18}", f"{handle} {10**30}", handle, "x"):
            assert await to_dead_letters(forged) == Code.INTERNAL_SERVER_ERROR, forged
        assert await to_dead_letters(f"{handle} {place}") == Code.OK
        await line.end()


async def test_the_streams_of_a_deleted_user_end(cluster: Cluster, tmp_path: Path) -> None:
    table = tmp_path / "access.json"
    table.write_bytes(users(1))
    async with c.proxied(cluster, access={"file": str(table)}) as (proxy, stub):
        good, admin = signed("orders", "secret-of-orders"), signed("admin", "secret-of-admin")
        line, stays = c.Line(stub, CLIENT, **good), c.Line(stub, "client-of-admin", **admin)
        assert (await line.settings(c.consumer("g", "T"))).status.code == Code.OK
        assert (await stays.settings(c.producer("T"))).status.code == Code.OK
        waits = asyncio.create_task(c.received(stub, CLIENT, c.receive("g", "T", poll=15), **good))
        await until(lambda: proxy.service.held_receives)
        table.write_bytes(users(2, without="orders"))
        status, messages = await waits
        assert (status.code, messages) == (Code.UNAUTHORIZED, [])
        assert (await line.read()).status.code == Code.UNAUTHORIZED
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await line.read()
        assert ended.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert proxy.service.clients.get(CLIENT) is None
        assert [talk._line.metadata["x-mq-client-id"] for talk in proxy.service.talks] == ["client-of-admin"]
        assert (await send(stub, c.message("T", b"later"), **admin)).status.code == Code.OK
        other = c.Line(stub, "other", **admin)
        assert (await other.settings(c.consumer("g", "T"))).status.code == Code.OK
        found: list[Any] = []
        async with asyncio.timeout(20):
            while not found:
                _, found = await c.received(stub, "other", c.receive("g", "T"), **admin)
        assert found[0].body == b"later", "the receive that ended took no message with it"
        for one in (other, stays):
            await one.end()


async def test_wrong_signatures_wait(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HOLD_S", 0.2)
    waited: list[Exception] = []
    hold = service._hold

    async def noted(error: Exception) -> None:
        await hold(error)
        waited.extend([error] if isinstance(error, TooManyGuesses) else [])

    monkeypatch.setattr(service, "_hold", noted)
    table = tmp_path / "access.json"
    table.write_bytes(users(1))
    async with c.proxied(cluster, access={"file": str(table)}) as (proxy, stub):
        wrong, good = signed("orders", "another-secret"), signed("orders", "secret-of-orders")
        tried = await asyncio.gather(*(send(stub, c.message("T"), **wrong) for _ in range(3 * WRONG_A_SECOND)))
        assert {answer.status.code for answer in tried} == {Code.UNAUTHORIZED}
        assert len(waited) == proxy.authentication.guesses.held >= 1, "that of a send waits, too"
        assert (await send(stub, c.message("T"), **good)).status.code == Code.OK, "at the same address"


async def test_a_client_without_an_id_and_bytes_that_are_no_request(cluster: Cluster) -> None:
    async with c.proxied(cluster) as (proxy, stub):
        line = c.Line(stub, "")
        assert (await line.settings(c.producer("T"))).status.code == Code.CLIENT_ID_REQUIRED
        async with grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
            call = channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(b"\xff\xff\xff", metadata=c.metadata(CLIENT))
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        await line.end()


async def test_the_routes_name_the_endpoint_that_is_advertised(cluster: Cluster) -> None:
    async with c.proxied(cluster, advertise="proxy.example:443") as (_, stub):
        request = v2.QueryRouteRequest()
        request.topic.name = "T"
        answer = await stub.QueryRoute(request, metadata=c.metadata(CLIENT))
        place = answer.message_queues[0].broker.endpoints
        assert (place.scheme, place.addresses[0].host, place.addresses[0].port) == (3, "proxy.example", 443)


async def test_sends_and_receives_go_on_when_the_broker_comes_back(cluster: Cluster) -> None:
    async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (_, stub, _):
        await send(stub, c.message("T", b"before"))
        broker = cluster.brokers["a"]
        waiting = asyncio.ensure_future(get(stub, CLIENT, c.receive("g", "T", poll=10), 2, 20))
        await asyncio.sleep(0.3)
        await broker.stop()
        sending = asyncio.ensure_future(send(stub, c.message("T", b"meanwhile")))
        await asyncio.sleep(0.3)
        await broker.start()
        assert (await sending).status.code == Code.OK
        got = await waiting
        assert {m.body for m in got} == {b"before", b"meanwhile"}


async def test_a_simple_consumer_gets_messages_of_each_broker_group_soon(tmp_path: Path) -> None:
    """9145: a message waits at one group while the consumer waits at the other."""
    async with c.served(tmp_path, "a", "b") as cluster:
        await c.make_topic(cluster, "T")
        await c.make_group(cluster, "g")
        async with c.consuming(cluster, CLIENT, c.consumer("g", "T")) as (_, stub, _):
            await c.received(stub, CLIENT, c.receive("g", "T"))
            waiting = asyncio.ensure_future(c.received(stub, CLIENT, c.receive("g", "T", broker="a", poll=15)))
            await asyncio.sleep(0.5)
            begun = time.monotonic()
            for number in range(8):  # in turn to the queues of both
                await send(stub, c.message("T", b"%d" % number))
            got = (await waiting)[1]
            while len(got) < 8:
                got += (await c.received(stub, CLIENT, c.receive("g", "T", broker="a", poll=15)))[1]
            assert time.monotonic() - begun < 8
            assert {m.system_properties.receipt_handle.split(" ")[5] for m in got} == {"a", "b"}
            answer = await stub.AckMessage(c.ack("T", "g", *got), metadata=c.metadata(CLIENT))
            assert answer.status.code == Code.OK
