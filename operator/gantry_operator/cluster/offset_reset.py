"""Offset resets that an annotation of a ConsumerGroup asks for: a preview first, then the reset after a confirmation.

The place is a time, also for the beginning (0) and the end (the time of the confirmation). It is kept in the status
before the first offset moves: an operator that ends in the middle is followed by one that moves the rest to the same
place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gantry_broker.protocol.codes import RETRY_PREFIX
from gantry_broker.remoting.client import RemotingClient

from gantry_operator.cluster.timestamps import utc
from gantry_operator.cluster.topic_requests import Refused, TryLater, move_group, offset_at
from gantry_operator.topics.model import Observed
from gantry_operator.topics.resets import BadReset, ResetPreview, ResetRequest, parse_reset, preview_of
from gantry_operator.topics.seen import BrokerTables

MAX_QUEUES: Final = 2_048
"""Queues of one reset."""
SHOWN: Final = 200
AT_ONCE: Final = 16


class ResetFailed(Exception):
    """A reset cannot be computed or carried out now."""


@dataclass(frozen=True, slots=True)
class Following:
    """`status` must be kept; then, if `answered`, the annotation goes. `again`: there is more to do."""

    status: dict[str, Any] | None
    note: tuple[Literal["Normal", "Warning"], str, str] | None = None
    answered: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Move:
    """One topic in one broker group."""

    group: str
    topic: str
    targets: Mapping[int, int]
    without_offset: tuple[int, ...]


class Resets:
    """For one pass: with what the brokers said at its beginning."""

    def __init__(
        self, client: RemotingClient, address: Callable[[str], str | None], seen: Observed,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:  # fmt: skip
        self._client = client
        self._address = address
        self._seen = seen
        self._now_ms = now_ms

    async def next(self, group: str, text: str, before: Mapping[str, Any] | None) -> Following | None:
        """Return the next step; None: there is none. Raises ResetFailed, TryLater, RemotingError."""
        state = None if before is None else before.get("state")
        request = "" if before is None else str(before.get("request", ""))
        if not text:
            if state == "Running":
                return self._done(dict(before or {}))
            # A preview whose annotation is gone was withdrawn.
            return Following(None) if state in ("Preview", "Refused") else None
        try:
            reset = parse_reset(text)
        except BadReset as error:
            refused = {"request": text[:320], "state": "Refused", "message": str(error)}
            return None if refused == before else Following(refused, ("Warning", "ResetRefused", str(error)))
        if state == "Running" and request == reset.text:
            return await self._carry_out(group, reset, dict(before or {}))
        if reset.confirmed:
            if state != "Preview" or request != reset.text:
                problem = f"it was not previewed: write {reset.text} first, read status.reset, and then add ,confirm"
                refused = {"request": reset.text, "state": "Refused", "message": problem}
                return None if refused == before else Following(refused, ("Warning", "ResetRefused", problem))
            timestamp = self._now_ms() if reset.timestamp is None else reset.timestamp
            status = await self._described(group, reset, timestamp, "Running", "the offsets are being set")
            return Following(status, again=True)
        if state == "Preview" and request == reset.text:
            return None
        timestamp = self._now_ms() if reset.timestamp is None else reset.timestamp
        try:
            status = await self._described(group, reset, timestamp, "Preview", "")
        except Refused as error:
            status = {"request": reset.text, "state": "Refused", "message": str(error)}
            return None if status == before else Following(status, ("Warning", "ResetRefused", str(error)))
        status["message"] = (
            f"a reset would skip {status['skipped']} messages and repeat {status['repeated']}: to carry it out, write "
            f"{reset.text},confirm"
        )
        return Following(status, ("Normal", "ResetPreview", status["message"]))

    async def _carry_out(self, group: str, reset: ResetRequest, status: dict[str, Any]) -> Following:
        timestamp = status.get("timestamp")
        if type(timestamp) is not int:
            raise ResetFailed("its status has no time")
        try:
            for move in await self._moves(group, reset, timestamp):
                address = self._at(move.group)
                await move_group(
                    self._client, address, group, move.topic, move.targets, move.without_offset, timestamp
                )  # fmt: skip
        except Refused as error:
            refused = {**status, "state": "Refused", "message": f"some offsets were not set: {error}"}
            return Following(refused, ("Warning", "ResetRefused", str(error)), answered=True)
        return self._done(status, answered=True)

    def _done(self, status: dict[str, Any], answered: bool = False) -> Following:
        message = f"done at {utc()}: {status.get('skipped', 0)} messages skipped, {status.get('repeated', 0)} repeated"
        return Following({**status, "state": "Done", "message": message}, ("Normal", "OffsetsReset", message), answered)

    async def _described(
        self, group: str, request: ResetRequest, timestamp: int, state: str, message: str
    ) -> dict[str, Any]:  # fmt: skip
        preview = await self._preview(group, request, timestamp)
        rows = [r for r in preview.rows if r.skipped or r.repeated]
        return {
            "request": request.text,
            "state": state,
            "message": message,
            "timestamp": timestamp,
            "skipped": preview.skipped,
            "repeated": preview.repeated,
            "queues": [
                {
                    "topic": r.broker.partition("\0")[2], "group": r.broker.partition("\0")[0], "queue": r.queue,
                    "at": r.first if r.committed is None else r.committed, "to": r.target, "skipped": r.skipped,
                    "repeated": r.repeated,
                }
                for r in rows[:SHOWN]
            ],
        }  # fmt: skip

    async def _preview(self, group: str, request: ResetRequest, timestamp: int) -> ResetPreview:
        rows: list[tuple[str, int, int, int, int | None, int]] = []
        for move in await self._moves(group, request, timestamp):
            tables = self._tables(move.group)
            topic = tables.topic(move.topic)
            committed = tables.committed(move.topic, group)
            for queue, target in move.targets.items():
                assert topic is not None
                seen = topic.queues[queue]
                # The broker group and the topic together name where a row belongs.
                rows.append(
                    (f"{move.group}\0{move.topic}", queue, seen.first, seen.end, committed.get(queue), target)
                )  # fmt: skip
        return preview_of(rows)

    async def _moves(self, group: str, reset: ResetRequest, timestamp: int) -> list[_Move]:
        """Ask the brokers where a reset moves each queue. Raises Refused, ResetFailed, TryLater, RemotingError."""
        everything = [self._tables(g) for g in self._seen.groups if g not in self._seen.draining]
        topics = {reset.topic} if reset.topic else self._topics_of(group, everything)
        if not topics or not any(t.topic(name) for t in everything for name in topics):
            what = f"topic {reset.topic} of group {group}" if reset.topic else f"any topic of group {group}"
            raise Refused(f"no broker knows {what}: name one that exists, as TOPIC={reset.text}")
        places = [
            (tables, name, topic)
            for tables in everything
            for name in sorted(topics)
            if (topic := tables.topic(name)) is not None
        ]
        count = sum(topic.config.write_queues for _, _, topic in places)
        if count > MAX_QUEUES:
            raise Refused(
                f"{count} queues would move, {MAX_QUEUES} is the limit: name one topic, as TOPIC={reset.text}"
            )
        turn = asyncio.Semaphore(AT_ONCE)

        async def target(tables: BrokerTables, name: str, queue: int) -> int:
            async with turn:
                return await offset_at(self._client, self._at(tables.group), name, queue, timestamp)

        out = []
        for tables, name, topic in places:
            # Queues that take no messages any more are left to their readers, as the broker's own reset does.
            numbers = range(min(topic.config.write_queues, len(topic.queues)))
            committed = tables.committed(name, group)
            if reset.timestamp == 0:
                offsets = [topic.queues[q].first for q in numbers]
            else:
                offsets = list(await asyncio.gather(*(target(tables, name, q) for q in numbers)))
            targets = dict(zip(numbers, offsets, strict=True))
            out.append(_Move(tables.group, name, targets, tuple(q for q in numbers if q not in committed)))
        return out

    def _topics_of(self, group: str, everything: list[BrokerTables]) -> set[str]:
        topics: set[str] = set()
        for tables in everything:
            topics |= {*tables.topics_of(group), *tables.members(group).topics}
        return {name for name in topics if not name.startswith(RETRY_PREFIX)}

    def _tables(self, group: str) -> BrokerTables:
        tables = self._seen.tables.get(group)
        if tables is None:
            raise ResetFailed(f"no master of {group} answers now")
        return tables

    def _at(self, group: str) -> str:
        address = self._address(group)
        if address is None:
            raise TryLater(f"the address of group {group} is not known yet")
        return address
