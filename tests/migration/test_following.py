"""A store follows a master over a real connection: what arrives, what is reported, and what stops it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker.metadata.tables import encode_change
from gantry_broker.broker.migration import ha
from gantry_broker.broker.migration.errors import MigrationError, SourceBroken
from gantry_broker.broker.migration.following import Follower
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.log.epochs import FOREIGN
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

SEGMENT = 64 << 10
ASYNC = ha.Promise(sync=False, slaves=ha.Slaves.FOLLOW, timeout_ms=5_000)
SYNC = ha.Promise(sync=True, slaves=ha.Slaves.FOLLOW, timeout_ms=5_000)


def opened(path: Path) -> MessageStore:
    settings = BrokerSettings(mappedFileSizeCommitLog=SEGMENT, maxHashSlotNum=100, maxIndexNum=400)
    return MessageStore.open(StoreConfig(path=path, settings=settings))


def message(body: bytes, topic: str = "T") -> Put:
    return Put(topic, 0, 0, 0, 1, bytes(8), body, b"")


def written(path: Path, seed: int, messages: int = 500) -> MessageStore:
    """A store as RocketMQ has it: without leader epochs."""
    rng = random.Random(seed)
    store = opened(path)
    for number in range(messages):
        store.appender.put([message(rng.randbytes(rng.randrange(800)))], 1_000 + number)
    store.indexer.confirm(store.log.end)
    return store


class Master:
    """Serves the log of a store as RocketMQ's master does. `spoil` may change a frame."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.reports: list[int] = []
        self.spoil: Callable[[int, bytes], bytes] = lambda offset, data: struct.pack(">qi", offset, len(data)) + data
        self.port = 0
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        reading = None
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            (at,) = struct.unpack(">q", await reader.readexactly(8))
            self.reports.append(at)
            reading = asyncio.create_task(self._read(reader))
            while not reading.done():
                data = self.store.reader.read_bytes(at, 8_000) if at < self.store.log.end else b""
                writer.write(self.spoil(at, data))
                await writer.drain()
                at += len(data)
                if not data:
                    await asyncio.sleep(0.01)
        if reading is not None:
            reading.cancel()
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                self.reports.append(struct.unpack(">q", await reader.readexactly(8))[0])


class Late(Master):
    """A master that reads late takes the last eight bytes that have arrived. Source: `HAConnection` of 4.9.7,
    `ReadSocketService.processReadEvent`.
    """

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.4)
        arrived = await reader.read(1 << 16)
        again = asyncio.StreamReader()
        again.feed_data(arrived[-8:])
        self.arrived = len(arrived)
        await super().serve(again, writer)


class Controlled(Master):
    """The same under a controller: it answers a handshake, and says what is confirmed."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store)
        self.greeting = b""
        self.confirmed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.greeting = await reader.readexactly(16)
        writer.write(struct.pack(">iiqi", 1, 12, self.store.log.end, 1) + struct.pack(">iq", 1, 0))
        self.spoil = lambda at, data: struct.pack(">iiqiqq", 2, len(data), at, 1, 0, self.confirmed) + data
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert struct.unpack(">i", await reader.readexactly(4)) == (2,)
            await super().serve(reader, writer)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                state, offset = struct.unpack(">iq", await reader.readexactly(12))
                assert state == 2
                self.reports.append(offset)


@contextlib.asynccontextmanager
async def master_of(store: MessageStore, kind: type[Master] = Master) -> AsyncIterator[Any]:
    made = kind(store)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def follow(
    copy: MessageStore,
    master: Master,
    promise: ha.Promise,
    until: Callable[[], bool],
    in_sync: Callable[[], int | None] | None = None,
) -> Follower:
    follower = Follower(copy)
    task = asyncio.create_task(follower.follow("127.0.0.1", master.port, lambda: promise, in_sync))
    try:
        async with asyncio.timeout(20):
            while not until():
                if task.done():
                    task.result()
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return follower


async def test_the_copy_is_the_log_and_goes_on_where_it_was(tmp_path: Path) -> None:
    source, copy = written(tmp_path / "s", 1), opened(tmp_path / "c")
    async with master_of(source) as master:
        await follow(copy, master, ASYNC, lambda: copy.state.flushed == source.log.end)
        assert max(master.reports) <= copy.state.flushed
        copy.close()
        source.appender.put([message(b"later")], 9_000)
        source.indexer.confirm(source.log.end)
        copy = opened(tmp_path / "c")
        copy.indexer.confirm(copy.log.end)
        await follow(
            copy, master, ASYNC, lambda: copy.state.flushed == source.log.end and source.log.end in master.reports
        )
    assert copy.epoch_cache.epochs == FOREIGN
    assert copy.log.read_raw(0, 1 << 30) == source.log.read_raw(0, 1 << 30)
    assert copy.reader.max_offset("T", 0) == source.reader.max_offset("T", 0) == 501
    copy.close()
    source.close()


async def test_a_master_that_reads_late_begins_where_it_was_asked(tmp_path: Path) -> None:
    source, copy = written(tmp_path / "s", 1), opened(tmp_path / "c")
    async with master_of(source) as master:
        await follow(copy, master, ASYNC, lambda: copy.state.flushed == source.log.end)
    source.appender.put([message(b"later")], 9_000)
    source.indexer.confirm(source.log.end)
    async with master_of(source, Late) as late:
        await follow(copy, late, ASYNC, lambda: copy.state.flushed == source.log.end)
        assert late.arrived == 8, "a report before the master's answer would be taken for the begin"
    copy.close()
    source.close()


async def test_beside_a_slave_of_a_sync_master_reports_never_advance(tmp_path: Path) -> None:
    source, copy = written(tmp_path / "s", 1), opened(tmp_path / "c")
    async with master_of(source) as master:
        await follow(copy, master, SYNC, lambda: copy.state.flushed == source.log.end and len(master.reports) > 1)
        assert set(master.reports) == {1}, "a report would acknowledge to a sender what only this copy has"
    copy.close()
    source.close()


async def test_a_copy_that_catches_up_reports_first_when_it_is_near_the_end(tmp_path: Path) -> None:
    """A SYNC_MASTER's senders wait from the first report within 256 MiB of its end on, until all is there."""
    source, copy = written(tmp_path / "s", 1), opened(tmp_path / "c")
    end = source.log.end
    promise = ha.Promise(sync=True, slaves=ha.Slaves.NONE, timeout_ms=5_000, end=end)
    async with master_of(source) as master:
        await follow(copy, master, promise, lambda: end in master.reports)
        assert set(master.reports) == {1, end}
    copy.close()
    source.close()


async def test_beside_slaves_that_follow_no_more_the_connection_ends(tmp_path: Path) -> None:
    source, copy = written(tmp_path / "s", 1), opened(tmp_path / "c")
    state = ha.Slaves.FOLLOW

    def promise() -> ha.Promise:
        return ha.Promise(sync=True, slaves=state, timeout_ms=5_000)

    async with master_of(source) as master:
        following = asyncio.create_task(Follower(copy).follow("127.0.0.1", master.port, promise))
        async with asyncio.timeout(20):
            while copy.state.flushed < source.log.end:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            state = ha.Slaves.LOST
            with pytest.raises(MigrationError, match="own slaves do not follow"):
                await following
        assert set(master.reports) == {1}
    copy.close()
    source.close()


async def test_below_a_controller_the_copy_has_what_a_failover_keeps(tmp_path: Path) -> None:
    source, copy = written(tmp_path / "s", 1), opened(tmp_path / "c")
    end, in_sync = source.log.end, 0
    promise = ha.Promise(sync=True, slaves=ha.Slaves.FOLLOW, timeout_ms=5_000, learner=True)
    async with master_of(source, Controlled) as master:
        master.confirmed = end
        polls = 0

        def until() -> bool:
            nonlocal in_sync, polls
            assert copy.log.end <= in_sync
            polls += 1
            # No frame comes when a slave has caught up: the copy goes on nevertheless.
            if polls > 20:
                in_sync = end // 2 if polls < 60 else end
            return polls >= 60 and copy.state.flushed == end and len(master.reports) > 1

        await follow(copy, master, promise, until, lambda: in_sync)
        assert master.greeting == struct.pack(">ihhq", 1, 0, 1, -1)
        assert set(master.reports) == {1}, "a learner's report could count for a sender"
    assert copy.log.read_raw(0, 1 << 30) == source.log.read_raw(0, 1 << 30)
    copy.close()
    source.close()


async def spoiled(tmp_path: Path, spoil: Callable[[int, bytes], bytes], said: str) -> MessageStore:
    source, copy = written(tmp_path / "s", 1), opened(tmp_path / "c")
    async with master_of(source) as master:
        master.spoil = spoil
        with pytest.raises(SourceBroken, match=said):
            await follow(copy, master, ASYNC, lambda: False)
    source.close()
    return copy


async def test_a_damaged_record_stops_it_and_is_not_kept(tmp_path: Path) -> None:
    at = 0

    def spoil(offset: int, data: bytes) -> bytes:
        nonlocal at
        if offset > 100_000 and not at and data:
            at = offset
            data = data[:300] + bytes([data[300] ^ 1]) + data[301:]  # This byte lies in a body.
        return struct.pack(">qi", offset, len(data)) + data

    copy = await spoiled(tmp_path, spoil, "is damaged")
    assert copy.log.end <= at + 300
    copy.close()


async def test_offsets_that_go_back_stop_it(tmp_path: Path) -> None:
    copy = await spoiled(
        tmp_path,
        lambda offset, data: struct.pack(">qi", offset if offset < 50_000 else offset - 8, len(data)) + data,
        "went back",
    )
    assert copy.log.end <= 60_000
    copy.close()


async def test_control_records_of_gantry_in_a_source_stop_it(tmp_path: Path) -> None:
    source, copy = written(tmp_path / "s", 1, 10), opened(tmp_path / "c")
    source.appender.put([message(encode_change({"dropTopics": ["T"]}), CONTROL_TOPIC)], 9_000)
    source.indexer.confirm(source.log.end)
    async with master_of(source) as master:
        with pytest.raises(SourceBroken, match="control records of Gantry"):
            await follow(copy, master, ASYNC, lambda: False)
    copy.close()
    source.close()


async def test_a_connection_that_ends_is_no_reason_to_stop_for_good(tmp_path: Path) -> None:
    source, copy = written(tmp_path / "s", 1), opened(tmp_path / "c")
    async with master_of(source) as master:

        def end(offset: int, data: bytes) -> bytes:
            raise ConnectionError

        master.spoil = end
        with pytest.raises(MigrationError) as failed:
            await follow(copy, master, ASYNC, lambda: False)
        assert not isinstance(failed.value, SourceBroken)
    copy.close()
    source.close()
