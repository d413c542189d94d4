"""What follows once records are confirmed: the tables follow, and the readers of the queues are notified.

Here nothing is confirmed, and no send is answered: see `replication/acknowledgements.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantry_broker.broker.metadata.replay import Replay
    from gantry_broker.store.types import Confirmed


class AfterConfirm:
    """Passes confirmed control records to the tables and notifies readers in the next pass of the event loop."""

    def __init__(self, replay: Replay, held: Sized) -> None:
        """`held`: the waiting pulls; while it is empty, no pull is woken."""
        self.on_messages_available: dict[str, Callable[[int], None]] = {}
        """By topic: the internal reader (delays, transactions, timers), called with the queue that has new messages."""
        self.wake_pulls: Callable[[Sequence[tuple[str, int]]], None] = lambda queues: None
        """Called with the queues (topic, number) that have new messages, while pulls are held."""
        self.pops: Sized = ()
        """The waiting pops; while they are none, none is woken."""
        self.wake_pops: Callable[[Sequence[tuple[str, int]]], None] = lambda queues: None
        """Called with the queues that have new messages, while pops wait."""
        self._replay = replay
        self._held = held
        self._available: list[tuple[str, int]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def waits(self) -> bool:
        """Whether there are readers to notify."""
        return bool(self._available)

    def confirmed(self, confirmed: Confirmed) -> None:
        """Take the result of `Indexer.confirm`."""
        if confirmed.control:
            self._replay.confirmed(confirmed.control)
        # The caller finishes its own step first, because readers may append.
        if confirmed.available:
            if not self._available:
                self._loop.call_soon(self._notify)
            self._available += confirmed.available

    def _notify(self) -> None:
        available, self._available = self._available, []
        queues = list(dict.fromkeys(available))
        held = len(self._held) > 0
        for topic, queue_id in queues:
            notify = self.on_messages_available.get(topic)
            if notify is not None:
                notify(queue_id)
        if held:
            self.wake_pulls(queues)
        if len(self.pops):
            self.wake_pops(queues)
