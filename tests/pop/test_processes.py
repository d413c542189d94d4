"""Real processes: what is in flight and what is acknowledged survive the death of a master under load."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

from gantry_broker.broker.pop.requests import Popped, PopStatus
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.pop_handle import topic_type
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import RemotingError

from tests.integration.test_replication import Load
from tests.pop.popbench import Message, messages_of
from tests.support.broker_group import make_group

if TYPE_CHECKING:
    from tests.support.broker_group import MakeGroup

__all__ = ["make_group"]

INVISIBLE_MS = 3_000
SUCCESS = 0


class Members:
    """Members of a POP group that acknowledge most messages, by frames of RocketMQ's clients."""

    def __init__(self, address: str, seed: int) -> None:
        self.address = address
        self.client = RemotingClient(connect_timeout=0.2)
        self.random = random.Random(seed)
        self.acked: dict[bytes, float] = {}
        self.asked: set[bytes] = set()
        """Messages whose acknowledgement had no answer: they may be finished."""
        self.deliveries: Counter[bytes] = Counter()
        self.invisible: dict[bytes, float] = {}
        self.wrong: list[str] = []
        self.errors: Counter[str] = Counter()
        self.took_s: list[float] = []
        self.all = 0.8
        self.running = True

    async def pop(self) -> list[Message]:
        ext = {
            "consumerGroup": "PopGroup", "topic": "Load", "queueId": "-1", "maxMsgNums": "32",
            "invisibleTime": str(INVISIBLE_MS), "pollTime": "500", "bornTime": str(int(time.time() * 1000)),
            "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
        }  # fmt: skip
        answer = await self.client.request(self.address, Frame(RequestCode.POP_MESSAGE, ext=ext), 3.0)
        if answer.code != SUCCESS:
            self.errors[f"pop {answer.code}"] += 1
            return []
        fields = answer.ext
        popped = Popped(
            status=PopStatus.FOUND,
            data=answer.body,
            count=sum(len(part.split(",")) for part in fields["msgOffsetInfo"].split(";")),
            pop_ms=int(fields["popTime"]),
            invisible_ms=int(fields["invisibleTime"]),
            revive_queue=int(fields["reviveQid"]),
            start_offset_info=fields["startOffsetInfo"],
            message_offset_info=fields["msgOffsetInfo"],
        )
        return messages_of(popped, "Load", "demo-a")

    async def ack(self, message: Message) -> None:
        handle = message.handle
        topic = "%RETRY%PopGroup+Load" if handle.kind else "Load"
        assert topic_type(topic) == handle.kind
        ext = {
            "consumerGroup": "PopGroup", "topic": topic, "queueId": str(handle.queue_id), "extraInfo": str(handle),
            "offset": str(handle.offset),
        }  # fmt: skip
        self.asked.add(message.body)
        answer = await self.client.request(self.address, Frame(RequestCode.ACK_MESSAGE, ext=ext), 3.0)
        if answer.code == SUCCESS:
            if time.time() * 1000 < handle.visible_ms:
                self.acked[message.body] = time.monotonic()
        else:
            self.errors[f"ack {answer.code}"] += 1

    async def consume(self) -> None:
        while self.running:
            try:
                began = time.monotonic()
                for message in await self.pop():
                    body = message.body
                    self.deliveries[body] += 1
                    if body in self.acked:
                        self.wrong.append(
                            f"{body!r} was acknowledged at {self.acked[body]:.3f}, delivered after {began:.3f}"
                        )
                    if self.invisible.get(body, 0) > message.handle.pop_ms:
                        self.wrong.append(f"{body!r} was delivered while it was invisible")
                    self.invisible[body] = message.handle.visible_ms
                    if self.random.random() < self.all:
                        await self.ack(message)
            except RemotingError as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.01)

    async def until_finished(self, bodies: list[bytes], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while missing := [body for body in bodies if body not in self.acked and body not in self.asked]:
            assert time.monotonic() < deadline, f"{len(missing)} messages are lost, as {missing[:3]}; {self.errors}"
            await asyncio.sleep(0.05)


async def test_a_master_dies_under_load(make_group: MakeGroup) -> None:
    group = await make_group(3, replication="Sync", flush="Async")
    await group.lead(0, [0, 1, 2])
    await group.all_in_sync()
    members = Members(group.group_address, 1)
    tasks: list[asyncio.Task[None]] = []
    try:
        async with Load(group.group_address, senders=4) as load:
            await load.sent(10)
            tasks = [asyncio.create_task(members.consume()) for _ in range(4)]
            await load.sent(400)
            await group.members[0].kill()
            await asyncio.sleep(0.2)
            await group.lead(1, [1, 2])
            await load.sent(300)
            await load.stop()
            members.all = 1.0
            await members.until_finished(load.promised, 40)
            once = {body for body in load.promised if load.attempts[body] == 1}
            wrong = [text for text in members.wrong if any(text.startswith(repr(body) + " ") for body in once)]
            assert not wrong, wrong[:5]
            assert sum(1 for body in once if members.deliveries[body] > 1) > 30, "some were delivered again"
    finally:
        members.running = False
        await asyncio.gather(*tasks)
        await members.client.close()
