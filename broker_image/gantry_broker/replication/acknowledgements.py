"""Where records are acknowledged: batches of sends that wait for their promise, in the order of the log.

The replica calls `reached` with the offset up to which the promise is kept. With Sync replication that is the confirmed
offset: it grows when enough members have the records, as `confirmable` of `leader.py` says (of `raft_leader.py` in mode
Raft). With Async it is the end of the leader's own log. `broker/send/sender.py` writes the answers; it adds its
batches through `broker/log_writer.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gantry_broker.protocol.codes import SendStatus

Callback = Callable[[SendStatus], None]


class Acknowledgements:
    """One entry per batch of sends: the log's end after the batch. Ends are added in rising order.

    Each batch gets its status once: SEND_OK when the promise is kept, another one when it cannot be kept in time.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[int, int, Callback]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, end: int, deadline_ms: int, callback: Callback) -> None:
        """Add a batch. One of the methods below calls `callback` once, with the status."""
        self._queue.append((end, deadline_ms, callback))

    def reached(self, offset: int) -> None:
        """Answer SEND_OK to every batch that lies below `offset`."""
        queue = self._queue
        while queue and queue[0][0] <= offset:
            # Taken out before the call: a callback that ends the role must not answer the batch twice.
            queue.popleft()[2](SendStatus.SEND_OK)

    def expire(self, now_ms: int, flushed: int, sync_flush: bool) -> None:
        """Answer each batch past its deadline with the status of the half of the promise that failed."""
        if not any(deadline <= now_ms for _, deadline, _ in self._queue):
            return
        late = [w for w in self._queue if w[1] <= now_ms]
        self._queue = deque(w for w in self._queue if w[1] > now_ms)
        for end, _, callback in late:
            on_disk = not sync_flush or end <= flushed
            callback(SendStatus.FLUSH_SLAVE_TIMEOUT if on_disk else SendStatus.FLUSH_DISK_TIMEOUT)

    def fail(self, status: SendStatus) -> None:
        """Answer all waiting batches with `status`."""
        # Empty before the first call, which may add batches or fail all once more.
        late, self._queue = self._queue, deque()
        for _, _, callback in late:
            callback(status)
