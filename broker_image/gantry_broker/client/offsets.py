"""Consumer offsets of a group: on the brokers (clustering) or in a file of this client (broadcasting)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final, Protocol

from gantry_broker.client.errors import BrokerError
from gantry_broker.client.session import Session
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, OffsetAnswer, QueryOffsetHeader, UpdateOffsetHeader
from gantry_broker.protocol.offset_tables import offset_table
from gantry_broker.remoting.errors import RemotingError

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Commits that wait for one broker's answer at a time."""


class OffsetStore(Protocol):
    """Stores a group's offsets."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the committed offset; None: there is none. Raises RemotingError, BrokerError, NoRoute."""

    def update(self, queue: MessageQueue, offset: int, *, backwards: bool = False) -> None:
        """Set an offset for the next commit. A lower offset counts only with `backwards`."""

    def pending(self, queue: MessageQueue) -> int | None:
        """Return the offset for the next commit."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue that this member no longer reads."""

    async def commit(self, *, wait: bool = False, only: MessageQueue | None = None) -> None:
        """Commit pending offsets. It logs failures and tries again with the next commit. `wait`: allow more time
        for the answer.
        """


class BrokerOffsets:
    """Offsets on the brokers."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._pending: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue) -> int | None:
        # Without this field brokers answer 0 for a new group of a young topic (4.9 always does).
        header = QueryOffsetHeader(self._group, queue.topic, queue.queue_id, setZeroIfNotFound=False)
        address = await self._session.master(queue.broker, queue.topic)
        answer = await self._session.call(address, Frame(RequestCode.QUERY_CONSUMER_OFFSET, ext=header.ext()))
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(f"offset of {self._group} in {queue}", answer.code, answer.remark)
        offset = OffsetAnswer.from_ext(answer.ext).offset
        return offset if offset >= 0 else None

    def update(self, queue: MessageQueue, offset: int, *, backwards: bool = False) -> None:
        if backwards:
            self._committed.pop(queue, None)
            self._pending[queue] = offset
        elif offset > self._pending.get(queue, -1):
            self._pending[queue] = offset

    def pending(self, queue: MessageQueue) -> int | None:
        return self._pending.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        self._pending.pop(queue, None)
        self._committed.pop(queue, None)

    async def commit(self, *, wait: bool = False, only: MessageQueue | None = None) -> None:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue, offset in self._pending.items():
            if only in (None, queue) and self._committed.get(queue) != offset:
                by_broker.setdefault(queue.broker, []).append(queue)
        # Commits always wait for an answer: a lost commit repeats messages after a failover.
        timeout = 3.0 if wait else 1.0
        await asyncio.gather(*(self._commit_at(broker, queues, timeout) for broker, queues in by_broker.items()))

    async def _commit_at(self, broker: str, queues: list[MessageQueue], timeout: float) -> None:
        for start in range(0, len(queues), AT_ONCE):
            batch = queues[start : start + AT_ONCE]
            if not all(await asyncio.gather(*(self._commit_one(broker, queue, timeout) for queue in batch))):
                return  # The broker is unreachable. The other offsets would wait as long, one after the other.

    async def _commit_one(self, broker: str, queue: MessageQueue, timeout: float) -> bool:
        """Commit one queue's offset. Return False when the broker cannot be reached."""
        offset, address = self._pending.get(queue), self._session.address(broker)
        if offset is None or address is None:
            return True
        header = UpdateOffsetHeader(self._group, queue.topic, queue.queue_id, Long(offset))
        frame = Frame(RequestCode.UPDATE_CONSUMER_OFFSET, ext=header.ext())
        try:
            await self._session.call_checked(address, frame, f"commit of {queue}", timeout)
            self._committed[queue] = offset
        except (RemotingError, BrokerError) as error:
            log.info("offset %d of %s in %s is not committed yet: %s", offset, self._group, queue, error)
            return not isinstance(error, RemotingError)
        return True


class FileOffsets:
    """Offsets in a file of RocketMQ's form; `path` None: in memory only."""

    def __init__(self, path: Path | None) -> None:
        """Raise BodyError when the file exists but holds no such table."""
        self._path = path
        self._pending: dict[MessageQueue, int] = {}
        self._dirty = False
        if path is not None:
            try:
                self._pending = offset_table(path.read_bytes())
            except FileNotFoundError:
                log.info("%s does not exist yet: nothing is consumed so far", path)
            except BodyError as error:
                raise BodyError(f"{path}: {error}") from None

    async def read(self, queue: MessageQueue) -> int | None:
        return self._pending.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, backwards: bool = False) -> None:
        if backwards or offset > self._pending.get(queue, -1):
            self._pending[queue] = offset
            self._dirty = True

    def pending(self, queue: MessageQueue) -> int | None:
        return self._pending.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Keep the offset, because every member reads every queue."""

    async def commit(self, *, wait: bool = False, only: MessageQueue | None = None) -> None:
        if self._path is None or not self._dirty:
            return
        temporary = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(fastjson.dumps({"offsetTable": self._pending}))
            temporary.replace(self._path)
            self._dirty = False
        except OSError as error:
            log.error("cannot write offsets to %s: %s", self._path, error)
