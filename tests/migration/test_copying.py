"""Topics are copied by messages between two real brokers; the copy is killed anywhere and goes on exactly."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import Admin, BrokerError, Message, MessageQueue, Producer
from gantry_broker.client.pulling import PullStatus
from gantry_broker.client.subscription import subscription
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, SendHeader
from gantry_broker.testing import broker
from gantry_operator.cli.app import app
from gantry_operator.migration import copying
from gantry_operator.migration.copied import MARK, QueueCopy, kept
from gantry_operator.migration.copying import Copy
from gantry_operator.migration.cutover_steps import Refused
from typer.testing import CliRunner

from tests.support.samples import difference

QUEUES = 4
runner = CliRunner()


async def content(admin: Admin, topic: str) -> dict[int, list[tuple[bytes, str, tuple[str, ...], str, int, str]]]:
    """By queue: body, tags, keys, id, born time and a property of each message."""
    found = {}
    for queue in sorted(await admin.readable_queues(topic)):
        rows, at, puller = [], 0, admin.puller()
        while (got := await puller.pull(queue, at, subscription(topic), suspend_ms=0)).status is PullStatus.FOUND:
            rows += [
                (m.body, m.tags, m.keys, m.id, m.record.born_ms, m.properties.get("colour", "")) for m in got.messages
            ]
            at = got.next_offset
        found[queue.queue_id] = rows
    return found


async def fill(name_servers: str, topic: str, count: int) -> None:
    async with Admin(name_servers) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    async with Producer(name_servers) as producer:
        for number in range(count):
            body = f"{number}".encode() * (2_000 if number % 50 == 0 else 1)
            message = Message(
                topic, body, tags=f"t{number % 3}", keys=f"k{number}", properties={"colour": f"c{number}"}
            )
            await producer.send(message)


async def nothing() -> None:
    """Save nothing."""


@pytest.mark.parametrize("seed", range(3))
async def test_a_copy_that_is_killed_goes_on_and_copies_nothing_twice(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 400)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            expected = await content(here, "T")
            queue = MessageQueue("T", "test", 1)
            await here.set_offset("billing", queue, 17)
            for _ in range(4):
                copy = Copy(here, there, ["T"], tmp_path / "copy.json")
                copy.save = nothing  # type: ignore[method-assign]
                await Copy.prepare(copy)
                if not (tmp_path / "copy.json").exists():
                    await Copy.save(copy)  # The file of the begin; later ones are lost with the process.
                task = asyncio.create_task(copy.run(follow=False))
                await asyncio.sleep(rng.random() * 0.3)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            copy = Copy(here, there, ["T"], tmp_path / "copy.json")
            await copy.prepare()
            await copy.run(follow=False)
            assert await content(there, "T") == expected
            assert sum(q.messages for q in copy.queues["T"]) == 400
            assert await copy.move_groups() == {"billing": 1}
            assert await there.offset("billing", queue) == 17
            await fill(source.name_servers, "T", 10)
            again = Copy(here, there, ["T"], tmp_path / "copy.json")
            await again.prepare()
            await again.run(follow=False)
            assert await content(there, "T") == await content(here, "T")


async def test_a_target_that_had_messages_gets_other_offsets_and_groups_follow_them(tmp_path: Path) -> None:
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 40)
        await fill(target.name_servers, "T", 20)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            queue = MessageQueue("T", "test", 2)
            await here.set_offset("g", queue, 3)
            before = await content(there, "T")
            copy = Copy(here, there, ["T"], tmp_path / "copy.json")
            await copy.prepare()
            await copy.run(follow=False)
            await copy.move_groups()
            assert await there.offset("g", queue) == len(before[2]) + 3
            assert (await content(there, "T"))[2] == before[2] + (await content(here, "T"))[2]


@pytest.mark.parametrize(
    "code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE]
)
async def test_a_target_without_its_slave_or_with_a_slow_disk_gets_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A SYNC_MASTER answers so to each send that is in its log."""
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 40)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            plain = there.session.remoting.request

            async def request(address: str, frame: Frame, *rest: Any, **more: Any) -> Frame:
                answer = await plain(address, frame, *rest, **more)
                if frame.code == RequestCode.SEND_MESSAGE_V2:
                    answer.code = code
                return answer

            monkeypatch.setattr(there.session.remoting, "request", request)
            copy = Copy(here, there, ["T"], tmp_path / "copy.json")
            await copy.prepare()
            await copy.run(follow=False)
            assert copy.sent() == 40
            assert await content(there, "T") == await content(here, "T")
            code = ResponseCode.NO_PERMISSION
            await fill(source.name_servers, "T", 1)
            with pytest.raises(BrokerError, match="the copy of"):
                await copy.run(follow=False)


async def test_a_copy_that_no_reader_gets_is_not_taken_for_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover of the target may take away what its master alone has."""
    monkeypatch.setattr(copying, "ROUTED_S", 0.01)
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 4)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            plain = there.session.remoting.request

            async def request(address: str, frame: Frame, *rest: Any, **more: Any) -> Frame:
                if frame.code == RequestCode.SEND_MESSAGE_V2:
                    return Frame(ResponseCode.FLUSH_SLAVE_TIMEOUT, ext={"queueOffset": "0"})
                return await plain(address, frame, *rest, **more)

            monkeypatch.setattr(there.session.remoting, "request", request)
            copy = Copy(here, there, ["T"], tmp_path / "copy.json")
            await copy.prepare()
            with pytest.raises(BrokerError, match="the copy of"):
                await copy.run(follow=False)
            assert copy.sent() == 0


async def test_a_retry_is_copied_with_its_number(tmp_path: Path) -> None:
    """A consumer at the target gives it up after as many attempts as at the source."""
    topic = "%RETRY%g"
    async with (
        broker() as source,
        broker() as target,
        Admin(source.name_servers) as here,
        Admin(target.name_servers) as there,
    ):
        for admin in (here, there):
            await admin.create_group(SubscriptionGroup("g", retry_max_times=16))
        address = (await here.masters())["test"]
        await here.create_topic_at(address, TopicConfig(topic, read_queues=1, write_queues=1))
        for times in (0, 3, 15):
            header = SendHeader("p", topic, AUTO_CREATE_TOPIC, 4, 0, 0, Long(1_000), 0, "", times, False, None, False)
            frame = Frame(RequestCode.SEND_MESSAGE_V2, ext=header.short_ext(), body=b"x")
            await here.session.call_checked(address, frame, "a retry")
        copy = Copy(here, there, [topic], tmp_path / "copy.json")
        await copy.prepare()
        await copy.run(follow=False)
        puller, queue = there.puller(), MessageQueue(topic, "test", 0)
        got = await puller.pull(queue, 0, subscription(topic), suspend_ms=0)
        assert [message.record.reconsume_times for message in got.messages] == [0, 3, 15]


async def test_fewer_queues_at_the_target_are_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 4)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            await there.create_topic("T", queues=1)
            copy = Copy(here, there, ["T"], tmp_path / "copy.json")
            with pytest.raises(Refused, match="has 1 queues at the target, and 4 at the source"):
                await copy.prepare()
            assert await content(there, "T") == {0: []}


def test_offsets_are_translated_over_gaps_on_both_sides() -> None:
    queue = QueueCopy("a", 0, "b", 3, 100)
    assert queue.translate(5) == 100
    for offset, to in ((10, 100), (11, 101), (15, 102), (16, 110), (17, 111)):
        queue.copied(offset, to)
    assert queue.runs == [[10, 100, 2], [15, 102, 1], [16, 110, 2]]
    moved = {o: queue.translate(o) for o in (0, 10, 11, 12, 14, 15, 16, 17, 18, 99)}
    assert moved == {0: 100, 10: 100, 11: 101, 12: 102, 14: 102, 15: 102, 16: 110, 17: 111, 18: 112, 99: 112}
    assert QueueCopy.from_json(queue.to_json()) == queue
    with pytest.raises(ValueError, match="does not come after"):
        queue.copied(17, 112)


def test_marks_of_other_queues_and_of_no_number_are_none() -> None:
    queue = QueueCopy("a", 0, "b", 3, 100)
    assert queue.offset_of(queue.origin(7)) == 7
    for mark in ("", "a/0/", "a/1/7", "b/0/7", "a/0/-7", "a/0/\u00b2", "a/0/" + "9" * 30):
        assert queue.offset_of(mark) is None
    assert MARK not in kept({"DELAY": "3", "TRAN_MSG": "true"})
    assert kept({"DELAY": "3", "TRAN_MSG": "true", "KEYS": "k"}) == {"KEYS": "k"}


async def test_the_command_copies_and_says_what_it_did(tmp_path: Path) -> None:
    async with broker() as source, broker() as target:
        for topic in ("Orders", "Bills"):
            await fill(source.name_servers, topic, 12)
        async with Admin(source.name_servers) as admin:
            for queue in await admin.readable_queues("Orders"):
                await admin.set_offset("billing", queue, 1)
        places = ["--from", source.name_servers, "--to", target.name_servers]
        words = ["migrate", "copy", *places, "--topics", "Orders,Bills", "--state", str(tmp_path / "copy.json")]
        for _ in range(2):
            done = await asyncio.to_thread(runner.invoke, app, words)
            assert done.exit_code == 0, done.output
            assert "24 messages are copied" in done.output
            command = (
                "gantry migrate copy --from 192.0.2.10:9876 --to 127.0.0.1:9876 --topics Orders,Bills --state copy.json"
            )
            found = difference("migration.md", command, done.stdout, may=("group billing: ",))
            assert not found, "docs/migration.md shows another output:\n" + "\n".join(found)
