"""POP consumption over a real store. The test decides what is replicated, when, and where a failover cuts the log.

A failover answers who waits with "not replicated", cuts the log at any record behind the confirmed offset and lets the
same store lead again: as another member would that has this much of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gantry_broker.broker.after_confirm import AfterConfirm
from gantry_broker.broker.archive_reads import ArchiveReads
from gantry_broker.broker.clock import Clock
from gantry_broker.broker.errors import NotStored, NotWritable
from gantry_broker.broker.events import Events
from gantry_broker.broker.metadata.changes import MetadataChanges
from gantry_broker.broker.metadata.creation import OnDemandCreation
from gantry_broker.broker.metadata.replay import Replay
from gantry_broker.broker.metadata.tables import Change, Metadata, Tables
from gantry_broker.broker.pop.queue import offsets_of
from gantry_broker.broker.pop.requests import Ack, AckResult
from gantry_broker.broker.pop.service import PopService
from gantry_broker.broker.pull.filters import Filters
from gantry_broker.broker.stats import MessageCounts, Stats
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.protocol.message import pack_host, tags_hash
from gantry_broker.protocol.pop_batches import batch_of
from gantry_broker.protocol.pop_handle import Handle, real_topic
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig, Stored
from gantry_broker.timeslice import TimeSlices

HOST = pack_host("127.0.0.1", 10911)
BROKER = "demo-a"
START_MS = 1_800_000_000_000


async def acknowledged(pop: PopService, *acks: Ack) -> list[AckResult]:
    """Acknowledges one by one, as a client does that waits. Raises NotStored, NotWritable, RequestRejected."""
    await pop.until_ready()
    results = [pop.ack(ack) for ack in acks]
    if AckResult.OK in results:
        await stored(pop)
    return results


async def acknowledged_together(pop: PopService, group: str, topic: str, handles: Sequence[Handle]) -> list[AckResult]:
    """The same by one request."""
    await pop.until_ready()
    batch = batch_of(group, topic, handles)
    assert batch is not None
    queues = pop._log.state.queues
    ends = [queues.get((group, real_topic(topic, group, handle.kind), handle.queue_id)) for handle in handles]
    known = [queue is None or handle.offset < queue.next for queue, handle in zip(ends, handles, strict=True)]
    done = pop.ack_batches([(entry, entry.bits) for entry in batch.acks])
    if any(done):
        await stored(pop)
    finished = {
        (entry.kind, entry.queue_id, entry.start_offset, entry.pop_ms, entry.invisible_ms, offset)
        for entry, bits in zip(batch.acks, done, strict=True)
        for offset in offsets_of(entry.start_offset, bits)
    }
    return [
        AckResult.OK
        if (h.kind, h.queue_id, h.start_offset, h.pop_ms, h.invisible_ms, h.offset) in finished
        else AckResult.INVALID
        if there
        else AckResult.NO_MESSAGE
        for h, there in zip(handles, known, strict=True)
    ]


async def stored(pop: PopService) -> None:
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    pop.when_stored(lambda in_time: None if done.done() else done.set_result(in_time))
    if not await done:
        raise NotStored("not replicated in time")


class Role:
    """The part of `RoleState` that POP uses."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.leading = False
        self.epoch = -1
        self.paused = False

    @property
    def may_append(self) -> bool:
        return self.leading and not self.paused

    @property
    def epoch_confirmed(self) -> bool:
        return self.leading and self._world.store.state.confirmed == self._world.store.log.end

    def refusal(self) -> str:
        return "not the master now"


class World:
    """One broker's store, tables and POP service."""

    def __init__(self, path: Path) -> None:
        settings = BrokerSettings(mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=500, maxIndexNum=2_000)
        self.store = MessageStore.open(StoreConfig(path, settings, False, ("127.0.0.1", 10911)))
        self.ms = START_MS
        self.clock = Clock()
        self.clock.unix_ms = lambda: self.ms  # type: ignore[method-assign]
        self.events = Events()
        self.role = Role(self)
        base = Tables()
        for group, retries in (("g", 16), ("two", 2), ("f", 16), ("o", 16)):
            base.groups[group] = SubscriptionGroup(group, retry_max_times=retries, orderly=group == "o")
        base.topics["T"] = TopicConfig("T", 2, 2)
        self.meta = Metadata(base)
        self.replay = Replay(self.meta, self.store, self.events.tables_changed)
        self.confirmed = AfterConfirm(self.replay, ())
        self.waiting: list[tuple[int, Callable[[SendStatus], None]]] = []
        """Who waits for the log to be confirmed up to an offset."""
        self.borders: list[int] = [self.store.log.end]
        stats = Stats(self.ms)
        health: Any = SimpleNamespace(store_failed=lambda error: None, store_took=lambda: None)
        self.changes = MetadataChanges(
            self.meta, self.store, HOST, writer=self, role=self.role, health=health, registrar=SimpleNamespace(),
            events=self.events, clock=self.clock,
        )  # type: ignore[arg-type]  # fmt: skip
        slices = TimeSlices()
        creation = OnDemandCreation(
            settings, self.meta, self.changes, role=self.role, health=health, slices=slices, clock=self.clock
        )  # type: ignore[arg-type]
        no_archive: Any = SimpleNamespace(archive=None, follow=None)
        archive_reads = ArchiveReads(no_archive, self.store, self.meta, self.clock, lambda: None)
        self.pop = PopService(
            self.store, HOST, BROKER, 1 << 30, meta=self.meta, writer=self, changes=self.changes, creation=creation,
            role=self.role, health=health, filters=Filters(), confirmed=self.confirmed,
            archive_reads=archive_reads, counts=MessageCounts(stats, "demo"), stats=stats, events=self.events,
            slices=slices, clock=self.clock,
        )  # type: ignore[arg-type]  # fmt: skip

    # ---- in place of LogWriter

    @property
    def pop_ms(self) -> int:
        """The time of deliveries."""
        return self.pop._clock.unix_ms()

    def append(self, puts: list[Put]) -> list[Stored]:
        if not self.role.may_append:
            raise NotWritable(self.role.refusal())
        stored = self.store.appender.put(puts, self.ms)
        self.borders += [place.phys_offset + place.size for place in stored]
        return stored

    def appended(self, on_status: Callable[[SendStatus], None] | None) -> None:
        if on_status is not None:
            self.waiting.append((self.store.log.end, on_status))

    # ---- what happens

    def send(self, topic: str, queue_id: int, body: bytes, tag: str) -> int:
        """Appends a message; returns the offset behind it."""
        put = Put(
            topic, queue_id, 0, 0, self.ms, HOST, body, f"TAGS\x01{tag}\x02UNIQ_KEY\x01{body.decode()}".encode(), 0, 0,
            tags_hash(tag), (),
        )  # fmt: skip
        self.append([put])
        return self.store.log.end

    def replicate(self, to: int | None = None) -> None:
        """Confirms the log up to a border and notifies who waits for that."""
        to = self.store.log.end if to is None else to
        if to > self.store.state.confirmed:
            self.confirmed.confirmed(self.store.indexer.confirm(to))
        done = [item for item in self.waiting if item[0] <= self.store.state.confirmed]
        self.waiting = [item for item in self.waiting if item[0] > self.store.state.confirmed]
        for _, on_status in done:
            on_status(SendStatus.SEND_OK)

    def time_out(self) -> None:
        """The replication of what waits takes too long."""
        waiting, self.waiting = self.waiting, []
        for _, on_status in waiting:
            on_status(SendStatus.FLUSH_SLAVE_TIMEOUT)

    def lose_role(self) -> None:
        waiting, self.waiting = self.waiting, []
        for _, on_status in waiting:
            on_status(SendStatus.SLAVE_NOT_AVAILABLE)
        self.role.leading = False
        self.replay.follow()
        self.events.role_changed(False)

    def cut(self, to: int) -> None:
        """The next leader's log ends at that border."""
        self.store.truncator.truncate(to)
        self.borders = [border for border in self.borders if border <= to]

    def lead(self) -> None:
        self.replay.lead()
        self.role.leading = True
        self.role.epoch += 1
        self.events.role_changed(True)

    def change(self, change: Change) -> None:
        self.changes.append(change)

    async def passes(self, count: int = 8) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def until_ready(self) -> None:
        self.replicate()
        await self.pop._log.ready.wait()
        await self.passes()

    async def expire(self) -> None:
        """Does what the expiry's timer would do now."""
        log = self.pop._log
        for _ in range(1_000):
            due = log.state.next_due()
            if due is None or due > self.pop_ms or log.refused or not log.ready.is_set() or not self.role.may_append:
                return
            self.pop._expiry._run()
            await self.passes(2)

    def close(self) -> None:
        self.pop.close()
        self.store.close(clean=False)
