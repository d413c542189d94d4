"""The broker under test, its clock, and what a client makes of POP answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gantry_broker.broker.pop.requests import Ack, AckResult, ChangeInvisible, Pop, Popped
from gantry_broker.broker.pop.service import PopService
from gantry_broker.protocol.codes import CONTROL_TOPIC, Prop, SendStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.protocol.pop_handle import Handle, parse_handle, topic_type

from tests.broker.conftest import Bench
from tests.pop.world import acknowledged

START_MS = 1_800_000_000_000


@dataclass
class Message:
    """One popped message, as a client sees it."""

    topic: str
    queue_id: int
    offset: int
    body: bytes
    times: int
    """Earlier attempts."""
    handle: Handle
    props: dict[str, str]


def messages_of(popped: Popped, topic: str, broker: str) -> list[Message]:
    """Makes handles as 5.5.0's client does: from the header, or from the property of messages of retry topics."""
    starts: dict[tuple[int, int], int] = {}
    for part in popped.start_offset_info.split(";") if popped.start_offset_info else ():
        kind, queue, start = part.split(" ")
        starts[int(kind), int(queue)] = int(start)
    offsets: dict[tuple[int, int], list[int]] = {}
    for part in popped.message_offset_info.split(";") if popped.message_offset_info else ():
        kind, queue, found = part.split(" ")
        offsets[int(kind), int(queue)] = [int(offset) for offset in found.split(",")]
    counts: dict[str, int] = {}
    for part in (popped.order_count_info or "").split(";"):
        if part:
            _, name, count = part.split(" ")
            counts[name] = int(count)
    out = []
    records = decode_records(popped.data)
    assert len(records) == popped.count == sum(map(len, offsets.values()))
    for record in records:
        props = record.props
        if Prop.POP_CK in props:
            handle = parse_handle(props[Prop.POP_CK])
            assert record.topic == topic
        else:
            kind = topic_type(record.topic)
            assert record.queue_offset in offsets[kind, record.queue_id]
            handle = Handle(
                starts[kind, record.queue_id], popped.pop_ms, popped.invisible_ms, popped.revive_queue, kind, broker,
                record.queue_id, record.queue_offset,
            )  # fmt: skip
        times = counts.get(f"qo{record.queue_id}%{record.queue_offset}", record.reconsume_times)
        out.append(Message(record.topic, record.queue_id, record.queue_offset, record.body, times, handle, props))
    return out


class PopBench(Bench):
    """A broker with a topic `T` of four queues, a group `G` and a clock that tests set."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.ms = START_MS
        self.broker.clock.unix_ms = lambda: self.ms  # type: ignore[method-assign]

    @property
    def pop_service(self) -> PopService:
        return self.broker.pop

    async def lead(self) -> None:
        await super().lead()
        self.broker.creation.group_config("G")

    async def settle(self) -> None:
        """Lets everything run that waits for the next passes of the loop."""
        for _ in range(6):
            await asyncio.sleep(0)

    async def pass_ms(self, ms: int) -> None:
        """Lets time pass; what has become visible goes to the retry topics."""
        self.ms += ms
        await self.expire()

    async def expire(self) -> None:
        await self.settle()
        while (due := self.pop_service._log.state.next_due()) is not None and due <= self.ms:
            before = self.pop_service._log.state.bytes
            self.pop_service._expiry._run()
            await self.settle()
            if self.pop_service._log.refused or self.pop_service._log.state.bytes == before:
                break

    async def sends(self, *bodies: bytes | str, topic: str = "T", **fields: Any) -> None:
        for body in bodies:
            data = body.encode() if isinstance(body, str) else body
            assert (await self.send(data, topic, **fields)).code == 0

    async def popped(self, **fields: Any) -> Popped:
        values: dict[str, Any] = {"group": "G", "topic": "T", **fields}
        return await self.pop_service.pop(Pop(**values))

    async def pop(self, **fields: Any) -> list[Message]:
        return messages_of(await self.popped(**fields), fields.get("topic", "T"), self.config.group)

    async def bodies(self, **fields: Any) -> list[bytes]:
        return [message.body for message in await self.pop(**fields)]

    async def ack(self, *messages: Message | Handle, group: str = "G", topic: str = "T") -> list[AckResult]:
        handles = [m if isinstance(m, Handle) else m.handle for m in messages]
        return await acknowledged(
            self.pop_service, *(Ack(group=group, topic=topic, handle=handle) for handle in handles)
        )

    async def change(
        self, message: Message | Handle, invisible_ms: int, suspend: bool = False, group: str = "G", topic: str = "T"
    ) -> Handle:
        handle = message if isinstance(message, Handle) else message.handle
        return await self.pop_service.change_invisible(
            ChangeInvisible(group=group, topic=topic, handle=handle, invisible_ms=invisible_ms, suspend=suspend)
        )

    def offset(self, queue_id: int = 0, topic: str = "T", group: str = "G") -> int:
        """The group's consumer offset."""
        return self.broker.meta.working.offset(topic, group, queue_id)

    async def fail_over(self) -> None:
        """This member leads again in a new epoch: it has no POP state but what the log has."""
        await self.lead()
        await asyncio.wait_for(self.pop_service._log.ready.wait(), 10)

    async def close(self) -> None:
        self.broker.pop.close()
        await super().close()


__all__ = ["CONTROL_TOPIC", "Message", "PopBench", "SendStatus"]
