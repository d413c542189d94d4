"""Where a group is in each queue: on the brokers (clustering) or in a file of this client (broadcasting)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from gantry_broker.client.errors import BrokerError
from gantry_broker.client.session import Session
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BodyError, offset_table
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, OffsetAnswer, QueryOffsetHeader, UpdateOffsetHeader
from gantry_broker.remoting.errors import RemotingError

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Keeps committed offsets."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset; None: there is none. Raises RemotingError, BrokerError, NoRoute."""

    def update(self, queue: MessageQueue, offset: int, *, backwards: bool = False) -> None:
        """Notes an offset, to be committed later. Lower ones count only when `backwards` says so."""

    def pending(self, queue: MessageQueue) -> int | None:
        """What was noted last."""

    def forget(self, queue: MessageQueue) -> None:
        """The queue belongs to somebody else now."""

    async def commit(self, *, wait: bool = False, only: MessageQueue | None = None) -> None:
        """Commits what was noted; failures are logged and tried again the next time. `wait`: for the answer."""


class BrokerOffsets:
    """Offsets kept by the brokers."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._pending: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue) -> int | None:
        # Brokers say 0 for a group that is new to a young topic unless told not to (5.x and ours; 4.9 always does).
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
        # Answered also when nobody waits for it: a lost commit would repeat messages after a failover.
        timeout = 3.0 if wait else 1.0
        await asyncio.gather(*(self._commit_at(broker, queues, timeout) for broker, queues in by_broker.items()))

    async def _commit_at(self, broker: str, queues: list[MessageQueue], timeout: float) -> None:
        for queue in queues:
            offset, address = self._pending.get(queue), self._session.address(broker)
            if offset is None or address is None:
                continue
            header = UpdateOffsetHeader(self._group, queue.topic, queue.queue_id, Long(offset))
            frame = Frame(RequestCode.UPDATE_CONSUMER_OFFSET, ext=header.ext())
            try:
                await self._session.call_checked(address, frame, f"commit of {queue}", timeout)
                self._committed[queue] = offset
            except (RemotingError, BrokerError) as error:
                log.info("offset %d of %s in %s is not committed yet: %s", offset, self._group, queue, error)
                if isinstance(error, RemotingError):
                    return  # The rest would wait for it as long, one after the other.


class FileOffsets:
    """Offsets kept in a file in RocketMQ's form; `path` None: in memory only."""

    def __init__(self, path: Path | None) -> None:
        """Raises BodyError when the file is there but is not such a table."""
        self._path = path
        self._pending: dict[MessageQueue, int] = {}
        self._dirty = False
        if path is not None:
            try:
                self._pending = offset_table(path.read_bytes())
            except FileNotFoundError:
                log.info("%s is not there yet: nothing consumed so far", path)
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
        """Every member reads every queue: nothing is forgotten."""

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
            log.error("offsets cannot be kept in %s: %s", self._path, error)
