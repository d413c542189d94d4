"""The core's log port over the message store, with flushes and notifications."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gantry_broker.protocol import plausible
from gantry_broker.replication import epochs
from gantry_broker.store.log.epochs import EpochStart, LeaderEpochs

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Confirmed

log = logging.getLogger(__name__)

CONFIRM_S: Final = 0.05
"""Seconds that the event loop may be held to index confirmed records; usually it takes far less."""

MAX_QUEUES: Final = 4_000_000
"""Most queues in the state of a reset."""
MAX_TOPIC: Final = 255
"""Characters of the longest topic there."""


@dataclass(frozen=True, slots=True)
class StoreLogHooks:
    """Callbacks for changes, and what the log needs from the broker."""

    epoch_body: Callable[[int], bytes]
    """Returns the body of an epoch's control record."""
    on_confirmed: Callable[[Confirmed], None]
    on_truncated: Callable[[int], None]
    """Reports that the log was truncated to, or reset at, this offset."""
    unix_ms: Callable[[], int]


def reset_fields(state: bytes) -> dict[str, Any]:
    """Return a leader's `reset_state` as a JSON object. Raises Implausible."""
    try:
        data = orjson.loads(state or b"{}")
    except orjson.JSONDecodeError as error:
        raise plausible.Implausible(f"state of a reset: {error}", "malformed") from error
    if not isinstance(data, dict):
        raise plausible.Implausible(f"state of a reset = {plausible.shown(data)}: must be a JSON object", "malformed")
    return data


def queue_starts(state: bytes) -> dict[tuple[str, int], int]:
    """Return the first offset of each queue in a leader's `reset_state`. Raises Implausible."""
    starts: dict[tuple[str, int], int] = {}
    for entry in plausible.items("queues", reset_fields(state).get("queues", []), MAX_QUEUES):
        if not isinstance(entry, list) or len(entry) != 3:
            raise plausible.Implausible(f"queues: {plausible.shown(entry)}: write [topic, queue, offset]", "malformed")
        topic = plausible.text("topic", entry[0], MAX_TOPIC, least=1)
        starts[topic, plausible.number("queue", entry[1], 0, 2**31 - 1)] = plausible.offset("offset", entry[2])
    return starts


class StoreLog:
    """See `ports.Log`. Errors of the store pass through unchanged."""

    def __init__(self, store: MessageStore, hooks: StoreLogHooks) -> None:
        self._store = store
        self._state = store.state  # Read several times for each message.
        self._hooks = hooks
        self._refused = -1
        """The last offset that could not be confirmed."""
        self._raw_leader_epochs: object = None
        self._leader_epochs: LeaderEpochs = ()

    @property
    def start(self) -> int:
        return self._store.log.start

    @property
    def end(self) -> int:
        return self._store.log.end

    @property
    def flushed(self) -> int:
        return self._state.flushed

    @property
    def confirmed(self) -> int:
        return self._state.confirmed

    @property
    def leader_epochs(self) -> LeaderEpochs:
        raw = self._store.epoch_cache.epochs
        if raw is not self._raw_leader_epochs:
            # A leadership without records must not be compared with one that has some.
            entries = [EpochStart(*e) for e in raw]
            ends = [*(e.start for e in entries[1:]), *([self._store.log.end] if entries else [])]
            self._leader_epochs = tuple(e for e, end in zip(entries, ends, strict=True) if e.start < end)
            if not entries or entries[-1].start < self._store.log.end:
                self._raw_leader_epochs = raw
        return self._leader_epochs

    def begin_epoch(self, epoch: int, now_ms: int) -> None:
        self._store.appender.begin_epoch(epoch, self._hooks.epoch_body(epoch), self._hooks.unix_ms())

    def read_raw(self, at: int, max_bytes: int) -> memoryview:
        return self._store.log.read_view(at, max_bytes)

    def append_raw(self, at: int, data: bytes) -> None:
        self._store.appender.append_raw(at, data)

    def truncate(self, to: int) -> None:
        self._store.truncator.truncate(to)
        self._hooks.on_truncated(to)

    def reset_state(self) -> bytes:
        return orjson.dumps(self._queue_starts())

    def _queue_starts(self) -> dict[str, Any]:
        """Return the first offset of every queue: a queue may have no record left that shows it."""
        starts = self._store.queue_starts()
        return {"queues": [[topic, queue, at] for (topic, queue), at in starts.items()]}

    def reset(self, to: int, leader_epochs: LeaderEpochs, state: bytes) -> None:
        starts = queue_starts(state)
        self._store.truncator.reset(to, epochs.truncate(leader_epochs, to), starts)
        self._hooks.on_truncated(to)

    def confirm(self, offset: int) -> None:
        """Index as much as takes no time; the next acknowledgement, answer or tick goes on.

        An offset within a record, which only a faulty member acknowledges, confirms the records before it.
        """
        if offset <= self._state.confirmed:
            return
        try:
            confirmed = self._store.indexer.confirm(offset, time.monotonic() + CONFIRM_S)
        except ValueError as error:
            if offset != self._refused:
                self._refused = offset
                log.error("refused to confirm up to %d: %s", offset, error)
            return
        self._hooks.on_confirmed(confirmed)
