"""A member that is far behind takes old records from the archive, and only the rest from its leader.

What comes from the archive is a tail that the leader has not confirmed here: the next fetch shows the leader where it
ends and which leader epochs it has, and the leader continues it or cuts it (rule 1). Readers see none of it before
(rule 3). The first records come from the leader: they show that the archive has this log. Meanwhile a small fetch each
second keeps the link. Without an archive, or when it fails, the leader sends all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from gantry_broker.archive.errors import ArchiveError
from gantry_broker.archive.objects import BRIEF
from gantry_broker.archive.opening import open_archive
from gantry_broker.archive.segment import Directory, RangeReader
from gantry_broker.archive.threads import in_daemon_thread
from gantry_broker.replication.epochs import divergence

if TYPE_CHECKING:
    from gantry_broker.archive.chain import GroupArchive
    from gantry_broker.archive.manifest import Part, State
    from gantry_broker.config import BrokerConfig
    from gantry_broker.replication.ports import Log

log = logging.getLogger(__name__)

LEAST: Final = 64 << 20
"""Bytes of the log for which the archive is asked at least, or one segment if that is less."""
AT_ONCE: Final = 8 << 20
"""Bytes that are appended between two fetches, at most, and one block."""
WAIT_S: Final = 1.0
"""Seconds between two fetches while an object is on its way."""
LOOK_S: Final = 10.0
"""Seconds between two looks at the manifest."""
AGAIN_S: Final = 60.0
"""Seconds without the archive after a failure, or after the leader has cut what came from it."""


class Opened(NamedTuple):
    """An object in memory."""

    part: Part
    reader: RangeReader
    directory: Directory


class ArchiveFill:
    """Owned by the event loop."""

    def __init__(self, config: BrokerConfig, segment_size: int) -> None:
        """Open the archive of the configuration, if it names one. Raises ArchiveError for one that cannot be."""
        self.bytes = 0
        """Of the log, taken from the archive since the start."""
        self.error = ""
        self._state: State | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._segment_size = segment_size
        self._least = min(LEAST, segment_size)
        self._group: GroupArchive | None = None
        if config.archive is not None:
            self._group = open_archive(config.archive, BRIEF).group(config.own_group)
            self._uid = config.archive.uid
        self._opened: Opened | None = None
        self._opening: asyncio.Task[Opened] | None = None
        self._not_before = 0.0
        self._compared = False
        """The records before those that it takes were found to be those of the archive."""

    def wanted(self, mine: Log, leader_end: int) -> bool:
        """Whether the archive has much of what this log lacks. `leader_end`: the end of the leader's log."""
        end = mine.end
        if self._group is None or leader_end - end < self._least:
            return False
        if asyncio.get_running_loop().time() < self._not_before:
            return False
        self._look_soon(self._group)
        state = self._state
        if state is None:
            return self._looking is not None  # What the archive has is known in a moment.
        return state.end - end >= self._least and self._continues(mine, state)

    def _continues(self, mine: Log, state: State) -> bool:
        """Whether the archive has what follows in this very log. The leader compares epochs, not bytes: records of
        another history, or of another cluster with the same epochs, would count as acknowledged (rule 1).
        """
        end = mine.end
        if state.owner is None or state.owner.uid != self._uid or state.segment_size != self._segment_size:
            return False
        if state.part_at(end) is None:
            return False
        return end > mine.start and divergence(state.epochs, state.end, mine.leader_epochs, end) >= end

    async def _is_this_log(self, mine: Log, state: State) -> bool:
        """Whether the last records of this log are those of the archive: a group that lost all its disks may have begun
        once more with the same epochs. Raises ArchiveError.
        """
        end = mine.end
        part = state.part_at(end - 1)
        if part is None:
            return False
        opened = self._opened
        if opened is None or opened.part.name != part.name:
            opened = await in_daemon_thread(partial(self._get, part))
        block = opened.directory.blocks_of(end - 1, end)[0]
        data = await in_daemon_thread(partial(opened.reader.block, opened.directory, block))
        first = max(block.start, mine.start)
        theirs, ours = data[first - block.start : end - block.start], b""
        try:
            while len(ours) < len(theirs) and (more := mine.read_raw(first + len(ours), len(theirs) - len(ours))):
                ours += more
        except ValueError:  # No record of this log begins there.
            return False
        return ours == theirs

    def _look_soon(self, group: GroupArchive) -> None:
        """Read the manifest, unless that was done a moment ago."""
        loop = asyncio.get_running_loop()
        if self._looking is None and (not self._looked_at or loop.time() - self._looked_at > LOOK_S):
            self._looked_at = loop.time()
            self._looking = loop.create_task(self._look(group))

    async def _look(self, group: GroupArchive) -> None:
        try:
            self._state = await in_daemon_thread(partial(group.load, self._state))
        except (ArchiveError, OSError) as error:
            self._failed(error)
        finally:
            self._looking = None

    def was_cut(self) -> None:
        """Note that the leader cut the log: the archive may be of another history for some time."""
        self._compared = False
        self._pause()

    async def fill(self, mine: Log, append: Callable[[int, bytes], bool]) -> None:
        """Append some of the archive's records, or wait a moment for them. `append` gets the offset at which they
        begin, and returns whether they were appended there.
        """
        state = self._state
        if state is None and self._looking is not None:
            await asyncio.wait({self._looking}, timeout=WAIT_S)
            state = self._state
        if state is None or not self._continues(mine, state) or (part := state.part_at(mine.end)) is None:
            return
        try:
            opened = await self._open(part)
            if opened is None:
                return
            if not self._compared and not await self._is_this_log(mine, state):
                raise ArchiveError("it has another log than the leader")
            self._compared = True
            done = 0
            for block in opened.directory.blocks_of(mine.end, part.end):
                data = await in_daemon_thread(partial(opened.reader.block, opened.directory, block))
                at = mine.end
                if not block.start <= at < block.end or not append(at, data[at - block.start :]):
                    return
                self.bytes += block.end - at
                done += block.end - at
                if done >= AT_ONCE:
                    return
            self._opened = None
            self.error = ""
        except Exception as error:  # Whatever it is, the leader has the records: the loop must come to its next fetch.
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        log.warning("old records come from the leader, since the archive fails: %s", error)
        self.error = str(error)
        self._pause()

    def _pause(self) -> None:
        self._not_before = asyncio.get_running_loop().time() + AGAIN_S
        self._opened = None

    async def _open(self, part: Part) -> Opened | None:
        """Return the object once it is here; None: it is on its way. Raises ArchiveError."""
        if self._opened is not None and self._opened.part.name == part.name:
            return self._opened
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(in_daemon_thread(partial(self._get, part)))
        await asyncio.wait({self._opening}, timeout=WAIT_S)
        if not self._opening.done():
            return None
        opening, self._opening = self._opening, None
        self._opened = opening.result()
        return self._opened if self._opened.part.name == part.name else None

    def _get(self, part: Part) -> Opened:
        assert self._group is not None
        reader = self._group.whole(part)
        return Opened(part, reader, reader.directory())
