"""Finds damaged records of the log, and repairs them with good bytes of another member.

Below the confirmed offset all members hold the same bytes at the same offsets. So a member repairs a damaged record in
its place, as leader and as follower, without a change of roles. Three sources find damage: a read of the record, a
follower that receives it, and a slow walk over the whole log after each start and once a day. Until a record is
repaired no reader sees it. If no other member has a good copy, it stays damaged, and the log says so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Final

from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import GantryCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import error_answer
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.store.errors import BadRecords, OffsetGone, StoreError
from gantry_broker.tasks import end_tasks

if TYPE_CHECKING:
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.remoting.handshake import Identity
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)

Peer = tuple[str, Callable[[Frame], Awaitable[Frame]]]
"""Another member: its name, and the call that sends it a request."""

PIECE: Final = 128 << 10
"""Bytes that the walk verifies, and repairs, without giving up the event loop."""
PIECE_S: Final = 0.008
"""The shortest time for one piece, in seconds: 16 MiB a second at most."""
SHARE: Final = 0.03
"""The walk's share of the event loop's time."""
QUEUE_SHARE: Final = 0.2
"""The share of the event loop's time for the repair of a consume queue whose readers wait."""
MOST_QUEUES: Final = 100
"""Consume queues that are repaired at the same time; a later read reports the others again."""
FIRST_S: Final = 3.0
"""Seconds after a start before the first walk: roles come first."""
AGAIN_S: Final = 86_400.0
HOPELESS_S: Final = 60.0
"""Seconds before the next walk after one that stopped at damage without a good copy."""
RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 10.0


class LogRepair:
    """Repairs one log; owned by the event loop. `peers` gives the members that are connected now."""

    def __init__(
        self,
        store: MessageStore,
        peers: Callable[[], Iterable[Peer]],
        on_repaired: Callable[[int], None] = lambda at: None,
    ) -> None:
        self.repaired = 0
        """Places that were repaired since the start."""
        self._store = store
        self._peers = peers
        self._on_repaired = on_repaired
        self._open: dict[int, asyncio.Task[None]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._walk: asyncio.Task[None] | None = None
        self._queues: dict[tuple[str, int], asyncio.Task[None]] = {}

    @property
    def damaged(self) -> int:
        """Places that are known to be damaged, or are being verified."""
        return len(self._open)

    def start(self) -> None:
        self._walk = asyncio.get_running_loop().create_task(self._walk_forever())

    async def close(self) -> None:
        await end_tasks(*self._open.values(), *self._queues.values(), *self._asking, self._walk)

    # ---- reports of damage

    def suspect(self, at: int) -> None:
        """Note that a read found the record at this offset damaged."""
        if at not in self._open:
            task = self._open[at] = asyncio.get_running_loop().create_task(self._repair(at))
            task.add_done_callback(lambda done: self._ended(at, done))

    def suspect_queue(self, topic: str, queue_id: int, number: int) -> None:
        """Note that a read found the entry of a consume queue at this queue offset damaged."""
        key = topic, queue_id
        if key not in self._queues and len(self._queues) < MOST_QUEUES:
            task = self._queues[key] = asyncio.get_running_loop().create_task(self._repair_queue(*key, number))
            task.add_done_callback(lambda done: self._queue_ended(key, done))

    def _queue_ended(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        self._queues.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("repairing the consume queue %s:%d: %r", *key, task.exception())

    async def _repair_queue(self, topic: str, queue_id: int, number: int) -> None:
        """Write damaged entries of a queue again from the log, without holding the event loop."""
        began = time.perf_counter()
        for _ in self._store.indexer.repair_queue(topic, queue_id, number):
            await asyncio.sleep(max(PIECE_S, (time.perf_counter() - began) / QUEUE_SHARE))
            began = time.perf_counter()

    def given_damaged(self, at: int) -> None:
        """Note that an answer held a damaged record: a read of that one alone makes the leader find it itself."""
        if not self._asking:
            task = asyncio.get_running_loop().create_task(self._report(at))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _report(self, at: int) -> None:
        for name, ask in self._peers():
            try:
                await ask(_question(at))
            except RemotingError as error:
                log.info("%s could not be notified of its damaged record at %d: %s", name, at, error)

    def answer(self, request: Frame) -> Frame:
        """Answer another member's read of the log at an offset."""
        try:
            at = plausible.offset("at", plausible.integer("at", request.ext["at"]))
            return Frame.response_to(request, ResponseCode.SUCCESS, body=self._valid_bytes(at))
        except (KeyError, ValueError, OffsetGone, OSError) as error:
            return error_answer(request, ResponseCode.SYSTEM_ERROR, f"READ_LOG: {error}")
        except BadRecords as error:
            return error_answer(
                request, ResponseCode.SYSTEM_ERROR, f"READ_LOG: the record is damaged here, too: {error}"
            )

    def _valid_bytes(self, at: int) -> bytes:
        """Return good bytes from `at` on, at most up to the first damaged record.

        Raises as `Scrubber.verified_bytes` does.
        """
        try:
            return self._store.scrubber.verified_bytes(at, PIECE)
        except (BadRecords, OSError) as error:
            bad = error.at if isinstance(error, BadRecords) else self._first_unread(at, error)
            self.suspect(bad)
            if bad == at:
                raise
            return self._store.scrubber.verified_bytes(at, bad - at)

    # ---- repair

    def _ended(self, at: int, task: asyncio.Task[None]) -> None:
        self._open.pop(at, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("repairing the record at %d: %r", at, task.exception())

    async def _repair(self, at: int) -> None:
        pause, warned = RETRY_S, False
        while True:
            reason = self._damage_at(at)
            if not reason:
                return
            refusals = [await self._repair_from(peer, at) for peer in self._peers()]
            if "" in refusals:
                self.repaired += 1
                log.warning("the record at %d was damaged on this disk (%s): repaired from another member", at, reason)
                self._on_repaired(at)
                return
            if not warned:
                warned = True
                reasons = "; ".join(refusals) or "no other member is connected"
                log.error("the record at %d is damaged on this disk (%s), no reader sees it: %s", at, reason, reasons)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_RETRY_S)

    def _damage_at(self, at: int) -> str:
        """Return the damage of the record at `at`; empty when there is none, or the record is gone."""
        try:
            self._store.scrubber.verify(at, 1)
        except BadRecords as error:
            return error.reason
        except OffsetGone:
            pass
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return f"cannot be read: {error.strerror}"
        return ""

    async def _repair_from(self, peer: Peer, at: int) -> str:
        """Repair the record at `at`; return empty on success, otherwise the reason."""
        name, ask = peer
        if not self._damage_at(at):
            return ""
        try:
            answer = await ask(_question(at))
            if answer.code != ResponseCode.SUCCESS:
                return f"{name}: {answer.remark}"
            self._store.repair(at, answer.body)
        except (RemotingError, StoreError, ValueError, OSError) as error:
            return f"{name}: {error}"
        return ""

    # ---- the walk

    async def _walk_forever(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                whole = await self._walk_once()
            except OSError as error:
                log.error("the log cannot be read: %s", error)
                whole = False
            await asyncio.sleep(AGAIN_S if whole else HOPELESS_S)

    async def _walk_once(self) -> bool:
        """Walk the log; return whether it reached the offset that was confirmed when it began."""
        store = self._store
        # Only below it all members have the same bytes. Above it another one may rightly have others.
        at, stop = store.log.start, store.state.confirmed
        while at < min(stop, store.state.confirmed):
            began = time.perf_counter()
            try:
                end = store.scrubber.verify(at, PIECE)
                if store.state.unindexed_from > end:
                    store.indexer.check_entries(at, end)
                at = end
            except OffsetGone:
                at = max(at, store.log.start)  # Retention removed this part; a truncation ends the walk.
            except (BadRecords, OSError) as error:
                bad = error.at if isinstance(error, BadRecords) else self._first_unread(at, error)
                self.suspect(bad)
                await asyncio.wait({self._open[bad]}, timeout=LONGEST_RETRY_S)
                if self._damage_at(bad):
                    return False
                at = bad
            await asyncio.sleep(max(PIECE_S, (time.perf_counter() - began) / SHARE))
        return True

    def _first_unread(self, at: int, error: OSError) -> int:
        """Return the first record from `at` on that the disk cannot read, or the record boundary behind a piece that
        it can read now. Raises `error` when it is another one.
        """
        if error.errno != errno.EIO:
            raise error
        stop = min(at + PIECE, self._store.state.confirmed)
        while at < stop:
            try:
                at = self._store.scrubber.verify(at, 1)
            except BadRecords as damage:
                return damage.at
            except OSError:
                break
        return at


def answering(
    log_repair: LogRepair, follows: Callable[[Identity | None], bool]
) -> Callable[[Connection, Frame], Coroutine[object, object, Frame]]:
    """Answers requests on a connection that this member made: a leader sends requests to its followers over it.

    `follows`: whether this member follows the one at the other end.
    """

    async def answer(conn: Connection, request: Frame) -> Frame:
        if not follows(conn.identity):
            return error_answer(request, ResponseCode.NO_PERMISSION, "READ_LOG: only the leader may ask its followers")
        return log_repair.answer(request)

    return answer


def _question(at: int) -> Frame:
    return Frame(GantryCode.READ_LOG, ext={"at": str(at)})
