"""Messages that only the archive has: the event loop's side of `archive/tiered.py`.

What the archive has of each queue is known here without a call. A read that needs the object store runs in a thread;
few run at once, some more wait, and the others are refused at once with an answer that the client repeats. While the
store fails, only what this disk has of it is served, and the store is tried again with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from gantry_broker.archive.errors import ArchiveError, Damaged, Missing, Replaced, TooWide
from gantry_broker.archive.objects import BRIEF
from gantry_broker.archive.opening import open_archive
from gantry_broker.archive.threads import in_daemon_thread
from gantry_broker.archive.tiered import Below, NotCached, Read, TieredLog, until_given_up
from gantry_broker.broker.clock import AgeClock
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.metadata.attributes import retention_ms
from gantry_broker.broker.metadata.topics import is_system_topic
from gantry_broker.protocol.codes import GetStatus, ResponseCode
from gantry_broker.protocol.message import PHYS_OFFSET_AT, QUEUE_OFFSET_AT
from gantry_broker.shares import Shares
from gantry_broker.store.log.record_reader import TIME_HEAD_SIZE, store_ms_of
from gantry_broker.store.types import Got
from gantry_broker.tasks import end_tasks, set_within

if TYPE_CHECKING:
    from gantry_broker.archive.manifest import State
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.config import BrokerConfig
    from gantry_broker.protocol.message import Record
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)
T = TypeVar("T")

FOLDER: Final = "archive-cache"
"""In the broker's folder: what it keeps of the archive."""
AT_ONCE: Final = 4
"""Reads that run at the same time; of those that need the object store, so many beside them."""
MOST_WAITING: Final = 128
"""Reads that wait for their turn: more are refused. One user or address has as many as are free at most."""
PULL_S: Final = 8.0
"""Seconds that a pull or a pop waits. Clients wait for 10 s or more."""
LOOKUP_S: Final = 2.5
"""Seconds that other requests wait. Clients wait for 3 s."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
REFRESH_S: Final = 10.0
"""Seconds between two looks at the manifest."""
MOST_READY: Final = 64
"""Reads for POP that are kept until the pop that wants them."""
MOST_PLACES: Final = 20_000
"""Records that were read last, whose topics are remembered: a client may name them by their place."""
MOST_TOPICS: Final = 10_000
"""Topics whose retention is looked at in one step."""


class ArchiveQuery(NamedTuple):
    """A read of a queue. `filter_key`: what `codes` and `condition` were made from."""

    topic: str
    queue_id: int
    offset: int
    most: int
    """Messages at most."""
    max_bytes: int
    codes: frozenset[int] | None = None
    condition: Callable[[Record], bool] | None = None
    filter_key: str = ""

    @property
    def key(self) -> tuple[str, int, int, frozenset[int] | None, str]:
        return self.topic, self.queue_id, self.offset, self.codes, self.filter_key


@dataclass(slots=True)
class Served:
    """What was read for clients since the start."""

    messages: int = 0
    bytes: int = 0
    refused: int = 0
    """Requests that were answered "try again"."""


def busy(why: str) -> RequestRejected:
    """Return the answer that a client repeats."""
    return RequestRejected(ResponseCode.SYSTEM_BUSY, f"the archive cannot be read now: {why}; ask again")


class ArchiveReads:
    """Serves what the local log no longer has; without an archive, or without a cache, nothing. Owned by the event
    loop.
    """

    def __init__(
        self, config: BrokerConfig, store: MessageStore, meta: Metadata, clock: Clock, state: Callable[[], State | None]
    ) -> None:
        """`state`: the newest manifest that this member knows. Raises ArchiveError for an archive that cannot be."""
        self.served = Served()
        self.error = ""
        """Why the last read of the object store failed; "" when it succeeded."""
        self.error_ms = 0
        self.expired: dict[str, int] = {}
        """By topic with a retention: where its records that are too old end in the archive."""
        self._store = store
        self._meta = meta
        self._clock = clock
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._tiered: TieredLog | None = None
        archive = config.archive or config.follow
        self._archived = archive is not None
        limit = archive.read_cache_bytes if archive is not None else 0
        if archive is not None and limit:
            group = open_archive(archive, BRIEF).group(config.own_group)
            folder = config.data_dir / FOLDER
            self._tiered = TieredLog(group, folder, limit, rate=archive.read_rate_bytes)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._store_slots = asyncio.Semaphore(AT_ONCE)
        self._waiting = Shares(MOST_WAITING)
        self._age = AgeClock()
        self._failures = 0
        self._away_until = 0.0
        self._ready: OrderedDict[Any, tuple[Read, int]] = OrderedDict()
        """With the offset of the log below which the topic was deleted then."""
        self._preparing: set[Any] = set()
        self._topics: OrderedDict[int, str] = OrderedDict()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def on(self) -> bool:
        """Whether it serves anything at all."""
        return self._tiered is not None

    @property
    def tiered(self) -> TieredLog | None:
        """The reader: for metrics."""
        return self._tiered

    def start(self) -> None:
        if self._tiered is not None:
            self._task = asyncio.create_task(self._run(self._tiered))

    async def close(self) -> None:
        await end_tasks(*self._tasks, self._task)
        if self._tiered is not None:
            self._tiered.close()

    # ---- what is known without a call

    @property
    def knows(self) -> bool:
        """Whether it is known what the archive has below the start of the local log."""
        tiered = self._tiered
        return tiered is not None and tiered.view.complete_to >= self._store.log.start

    def kept_from(self, start: int) -> int:
        """Return the first offset of the log that readers may still see. `start`: of the local log."""
        if self._tiered is None and not self._archived:
            return start
        if self._tiered is None:  # Readers may see it once there is a cache again.
            state = self._state()
            return 0 if state is None or state.n == 0 else min(state.start, start)
        if self.knows:
            return min(self._tiered.view.start, start)
        self._wake.set()
        return 0

    def floor(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset of a queue that the archive has below the local log; None: it has none."""
        tiered = self._tiered
        if tiered is None or not self.knows:
            return None
        floor = tiered.view.floors.get((topic, queue_id))
        if floor is None or is_system_topic(topic) or self._store.compaction.rows(topic, queue_id) is not None:
            return None
        if self._store.queues.deletion_watermarks.get(topic, 0) >= self._store.log.start:
            return None  # All that the archive has of it below the local log is deleted.
        return floor

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that is readable here or in the archive.

        Raises RequestRejected (SYSTEM_BUSY) while it is not known what the archive has, OSError.
        """
        low = self._store.reader.min_offset(topic, queue_id)
        if self._tiered is None or low <= 0:
            return low
        if self._store.compaction.rows(topic, queue_id) is not None:
            return low
        if not self.knows and self._store.log.start > 0 and not is_system_topic(topic):
            raise busy(self.error or "its index is not read yet")
        floor = self.floor(topic, queue_id)
        return low if floor is None else min(floor, low)

    def least(self, topic: str, queue_id: int) -> int:
        """As `min_offset`, but 0 while that is not known: for what a client was given before. Raises OSError."""
        try:
            return self.min_offset(topic, queue_id)
        except RequestRejected:
            return 0

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset that is readable and the one behind the last, as far as is known: for lags and
        other figures. Raises OSError.
        """
        low, high = self._store.reader.bounds(topic, queue_id)
        floor = self.floor(topic, queue_id)
        return (low if floor is None else min(floor, low)), high

    def may_have(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the archive has to be asked for an offset below the local log."""
        if self._tiered is None or self._store.log.start == 0 or is_system_topic(topic):
            return False
        if self._store.compaction.rows(topic, queue_id) is not None:
            return False  # This member's log has all that compaction keeps.
        if not self.knows:
            return True
        floor = self.floor(topic, queue_id)
        if floor is not None and floor <= offset:
            return True
        # Nobody knows which queues are in an object whose directory is damaged: the read says so.
        mark, start = self._store.queues.deletion_watermarks.get(topic, 0), self._store.log.start
        return any(mark < part.end and part.start < start for part in self._tiered.view.damaged)

    def topic_of(self, phys: int) -> str:
        """Return the topic of a record that was read a moment ago; "": not known."""
        return self._topics.get(phys, "")

    # ---- reads

    async def get(self, query: ArchiveQuery, owner: str) -> Got:
        """Read messages of a queue below the local log. `owner`: who pays for a place among those that wait.

        Raises RequestRejected with what a client understands.
        """
        low, high = self._store.reader.bounds(query.topic, query.queue_id)
        read = await self._read(query, self._below(query.topic, low), owner)
        return self._got(query, read, low, high)

    async def _read(self, query: ArchiveQuery, below: Below, owner: str) -> Read:
        tiered = self._tiered
        assert tiered is not None
        read = partial(
            tiered.get, query.topic, query.queue_id, query.offset, below, query.most, query.max_bytes,
            query.codes, query.condition,
        )  # fmt: skip
        return await self._call(read, PULL_S, owner)

    def ready(self, request: ArchiveQuery) -> Got | None:
        """Return what `prepare` has read for a read; None: it has not."""
        read, mark = self._ready.get(request.key, (None, 0))
        if read is None:
            return None
        if self._store.queues.deletion_watermarks.get(request.topic, 0) != mark:
            del self._ready[request.key]
            return None
        if read.count > request.most:
            data, size = read.data, 0
            for _ in range(request.most):
                size += int.from_bytes(data[size : size + 4])
            following = int.from_bytes(data[size + QUEUE_OFFSET_AT : size + QUEUE_OFFSET_AT + 8])
            read = Read(data[:size], request.most, following)
        low, high = self._store.reader.bounds(request.topic, request.queue_id)
        return self._got(request, read, low, high)

    def used(self, query: ArchiveQuery) -> None:
        """Forget what was read for a read: a pop has taken it."""
        self._ready.pop(query.key, None)

    async def prepare(self, query: ArchiveQuery, owner: str) -> None:
        """Read for a step that cannot wait; `ready` has the result. `owner`: as for `get`; empty: nobody pays.

        Raises RequestRejected.
        """
        if query.key in self._ready:
            return
        below = self._below(query.topic, self._store.reader.min_offset(query.topic, query.queue_id))
        read = await self._read(query, below, owner)
        self._ready[query.key] = read, below.visible_from
        while len(self._ready) > MOST_READY:
            self._ready.popitem(last=False)

    def prepare_soon(self, query: ArchiveQuery) -> None:
        """As `prepare`, without waiting for it."""
        if query.key in self._preparing or len(self._preparing) >= MOST_READY:
            return

        async def work() -> None:
            try:
                await self.prepare(query, "")  # Of these there are few at once.
            except RequestRejected:
                pass  # The next step asks again.
            finally:
                self._preparing.discard(query.key)

        self._preparing.add(query.key)
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def offset_at_time(self, topic: str, queue_id: int, ms: int, *, upper: bool, owner: str) -> int | None:
        """Return the offset that the archive has below the local log for a time; None: none. Raises RequestRejected."""
        tiered, below = self._tiered, self._below(topic, self._store.reader.min_offset(topic, queue_id))
        assert tiered is not None
        return await self._call(
            partial(tiered.offset_at_time, topic, queue_id, ms, below, upper=upper), LOOKUP_S, owner
        )

    def may_have_time(self, topic: str, queue_id: int, ms: int) -> bool:
        """Whether the archive has to be asked for a time: there are older messages than the local ones."""
        if self._tiered is None or self._store.log.start == 0 or is_system_topic(topic):
            return False
        if self._store.compaction.rows(topic, queue_id) is not None:
            return False
        return not self.knows or self.floor(topic, queue_id) is not None

    async def store_time(self, topic: str, queue_id: int, offset: int, owner: str) -> int:
        """Return the store time of an archived record, ms; -1 without one. Raises RequestRejected."""
        tiered, below = self._tiered, self._below(topic, self._store.reader.min_offset(topic, queue_id))
        assert tiered is not None
        return await self._call(partial(tiered.store_time, topic, queue_id, offset, below), LOOKUP_S, owner)

    def may_have_place(self, phys: int) -> bool:
        """Whether a place of the log is below the local one, and perhaps in the archive."""
        return self._tiered is not None and 0 <= phys < self._store.log.start

    async def record(self, phys: int, owner: str) -> Record:
        """Return the record at a place below the local log. Raises RequestRejected."""
        tiered = self._tiered
        assert tiered is not None
        marks = dict(self._store.queues.deletion_watermarks)
        try:
            record = await self._call(partial(tiered.record, phys, self._store.log.start, marks), LOOKUP_S, owner)
        except Missing as error:
            text = f"look message by offset failed, {phys}: {error}"
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, text) from None
        self._remember(phys, record.topic)
        return record

    def may_have_older(self, begin_ms: int) -> bool:
        """Whether a query from a time on has to ask the archive: the local log begins later."""
        store = self._store
        if self._tiered is None or store.log.start == 0:
            return False
        try:
            return store_ms_of(store.log.read(store.log.start, TIME_HEAD_SIZE)) >= begin_ms
        except (OSError, struct.error):
            return True

    async def query(
        self,
        topic: str,
        key: str,
        most: int,
        begin_ms: int,
        end_ms: int,
        unique: bool,
        max_bytes: int,
        owner: str,
    ) -> list[Record]:
        """Return records below the local log with a key, newest first. Raises RequestRejected."""
        tiered, start = self._tiered, self._store.log.start
        assert tiered is not None
        mark = self._store.queues.deletion_watermarks.get(topic, 0)
        records = await self._call(
            partial(tiered.query, topic, key, most, begin_ms, end_ms, unique, max_bytes, start, mark), LOOKUP_S, owner
        )
        for record in records:
            self._remember(record.phys_offset, topic)
        return records

    def _below(self, topic: str, low: int) -> Below:
        return Below(low, self._store.queues.deletion_watermarks.get(topic, 0), self._store.log.start)

    def _got(self, query: ArchiveQuery, read: Read, low: int, high: int) -> Got:
        floor = self.floor(query.topic, query.queue_id)
        low = low if floor is None else min(floor, low)
        status = GetStatus.FOUND if read.count else GetStatus.NO_MATCHED_MESSAGE
        self._note(query.topic, read)
        return Got(status, read.data, read.count, read.next_offset, low, high)

    def _note(self, topic: str, read: Read) -> None:
        self.served.messages += read.count
        self.served.bytes += len(read.data)
        if read.count:
            at = 0
            while at < len(read.data):
                self._remember(int.from_bytes(read.data[at + PHYS_OFFSET_AT : at + PHYS_OFFSET_AT + 8]), topic)
                at += int.from_bytes(read.data[at : at + 4])

    def _remember(self, phys: int, topic: str) -> None:
        self._topics[phys] = topic
        if len(self._topics) > MOST_PLACES:
            self._topics.popitem(last=False)

    async def _call(self, call: Callable[..., T], seconds: float, owner: str) -> T:
        """Run a read in a thread: first with what this disk has, then with the object store.

        Raises RequestRejected (SYSTEM_BUSY, or SYSTEM_ERROR for damage), Missing.
        """
        owners = (owner,) if owner else ()
        if not self._waiting.take(owners):
            self.served.refused += 1
            raise busy(f"{self._waiting.taken} requests wait for it")
        try:
            return await asyncio.wait_for(self._twice(call), seconds)
        except TimeoutError:
            self.served.refused += 1
            late = f"the object store did not answer within {seconds:g} s"
            self._failed(late)
            raise busy(late) from None
        except Damaged as error:
            self._failed(error)
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the archive is damaged: {error}") from None
        except Missing:
            raise
        except (ArchiveError, OSError) as error:
            self.served.refused += 1
            raise busy(str(error)) from None
        finally:
            self._waiting.give_back(owners)

    async def _twice(self, call: Callable[..., T]) -> T:
        with_store = False
        for _ in range(4):
            try:
                if not with_store:
                    return await self._in_thread(self._slots, partial(call, offline=True))
                if self._loop.time() < self._away_until:
                    raise busy(self.error)
                try:
                    result = await self._in_thread(self._store_slots, partial(call, offline=False))
                except (Replaced, Missing, Damaged, TooWide):
                    raise
                except (ArchiveError, OSError) as error:
                    self._failed(error)
                    self._failures += 1
                    pause = min(FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10), LONGEST_PAUSE_S)
                    self._away_until = self._loop.time() + pause * (0.5 + random.random() / 2)
                    raise
                self._failures, self._away_until, self.error = 0, 0.0, ""
                return result
            except NotCached:
                with_store = True
            except Replaced:
                with_store = False
        raise busy("its objects are being merged")

    async def _in_thread(self, slots: asyncio.Semaphore, call: Callable[[], T]) -> T:
        """Run a call while it has a slot: one that the caller gave up keeps it until its present fetch ends."""
        await slots.acquire()
        given_up = threading.Event()
        work = self._loop.create_task(in_daemon_thread(partial(until_given_up, call, given_up)))

        def ended(done: asyncio.Task[T]) -> None:
            slots.release()
            if not done.cancelled():
                done.exception()  # Its caller may have gone.

        work.add_done_callback(ended)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            given_up.set()
            raise

    def _failed(self, error: Exception | str) -> None:
        if str(error) != self.error:
            log.warning("reads of the archive: %s", error)
        self.error, self.error_ms = str(error), self._clock.unix_ms()

    # ---- in step with the manifest

    async def _run(self, tiered: TieredLog) -> None:
        opened = False
        failures = 0
        while True:
            try:
                if not opened or tiered.index_is_damaged:
                    await in_daemon_thread(tiered.open)
                    opened = True
                await self._refresh(tiered)
                failures = 0
                pause = REFRESH_S if self.knows else FIRST_PAUSE_S
            except (ArchiveError, OSError) as error:
                self._failed(error)
                failures += 1
                pause = min(FIRST_PAUSE_S * 2 ** min(failures - 1, 10), LONGEST_PAUSE_S)
            except Exception as unexpected:  # The loop must go on: old messages would never be served again.
                log.exception("the index of the archive cannot be kept")
                opened = False  # What it was made of may be damaged.
                self._failed(unexpected)
                pause = LONGEST_PAUSE_S
            self._wake.clear()
            await set_within(self._wake, pause)

    async def _refresh(self, tiered: TieredLog) -> None:
        state = self._state()
        if state is None or state.n == 0:
            return
        marks = dict(self._store.queues.deletion_watermarks)
        await in_daemon_thread(partial(tiered.refresh, state, self._store.log.start, marks))
        now, since = self._age.unix_ms(self._clock.now_ms(), self._clock.unix_ms()), {}
        for name, topic in list(self._meta.working.topics.items())[:MOST_TOPICS]:
            keep_ms = retention_ms(topic.attributes)
            if keep_ms is not None and not is_system_topic(name):
                since[name] = now - keep_ms
        if since:
            self.expired = await in_daemon_thread(partial(_expired, tiered, state, since))


def _expired(tiered: TieredLog, state: State, since: Mapping[str, int]) -> dict[str, int]:
    return {topic: tiered.expired_place(topic, ms, state) for topic, ms in since.items()}
