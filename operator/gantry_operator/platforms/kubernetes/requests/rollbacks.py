"""Carries out a rollback to the source, which is asked for in an annotation of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from gantry_operator.migration import cutover_steps, rollback_steps
from gantry_operator.migration.copy_state import CopyState
from gantry_operator.migration.cutover_edge import FAILURES
from gantry_operator.migration.cutover_steps import Refused
from gantry_operator.migration.progress import END_BACK, SAID_BACK, said_lacking_back
from gantry_operator.migration.rollback_edge import RollbackEdge, drive
from gantry_operator.migration.rollback_steps import COPIES, Phase, Record
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.requests.migration_request import (
    MIGRATION,
    ROLLBACK,
    MigrationRequest,
    read_record,
    read_rollback,
    written,
)

ONE_WAY = {
    Phase.RETURNING: "there is no way back",
    Phase.ABORTING: "Gantry has not all of its permissions back",
}
"""Phases that are tried until they end: a person could ask for nothing else."""
AGAIN_S = 2.0
"""Seconds before it is tried on."""


class _NoCopy(Exception):
    """The copy cannot go on where the last one was."""


class Sides(NamedTuple):
    """What a rollback asks and changes."""

    edge: RollbackEdge
    state: CopyState


OpenSides = Callable[[Mapping[str, cutover_steps.Group]], AbstractAsyncContextManager[Sides]]
"""Opens both sides. It gets what the cutover recorded."""


class Rollbacks:
    """The rollback of one cluster."""

    def __init__(
        self,
        resource: ClusterResource,
        open_sides: OpenSides,
        event: Callable[[str, str, str], None],
        waits: Callable[[str], None],
    ) -> None:
        """`open_sides` may raise Refused. `event` gets kind, reason and message; `waits` what the step waits for."""
        self._resource, self._open, self._event, self._waits = resource, open_sides, event, waits

    def under_way(self) -> bool:
        """Whether a rollback has begun and neither ended nor gone back. Raises Refused."""
        return self._record().phase not in (Phase.NONE, Phase.DONE)

    def _record(self) -> Record:
        return read_rollback(self._resource.annotation(ROLLBACK))

    async def carry_out(self, request: MigrationRequest, called_off: Callable[[], bool]) -> str:
        """Make steps until the rollback is done, or its abort; return what a person is to know. `called_off`: whether
        a newer request aborts it. Raises Refused, ApiError, ApiUnavailable, errors of clients.
        """
        shown: list[Phase] = []

        def say(phase: Phase, waits: str) -> None:
            returns = phase in (*COPIES, Phase.LEAVING)
            if not shown or shown[-1] is not phase:
                shown.append(phase)
                ways = "; gantry migrate rollback --abort goes back to Gantry" if returns else ""
                end = f". Next: {END_BACK}" if phase is Phase.DONE else ""
                self._event("Normal", "Migration", f"{phase.value}: {SAID_BACK[phase]}{ways}{end}")
            self._waits(waits)
            if returns and called_off():
                raise Refused("a newer request calls it off")

        interrupted = request.op == "rollback" and self._record().phase is Phase.ABORTING
        begun: Record | None = None
        ends, gave_up = time.monotonic() + request.timeout_s, ""
        while True:
            try:
                async with self._open(read_record(self._resource.annotation(MIGRATION)).groups) as sides:
                    begun = begun or await self._begin(sides, request)
                    ended, text = await self._drive(sides, begun, request, say)
                    break
            except _NoCopy as error:  # After a restart of this operator: clients may wait.
                if called_off():
                    raise Refused("a newer request calls it off") from None
                if time.monotonic() > ends:
                    gave_up, begun = await self._give_up(str(error))
                    continue
                self._waits(str(error))
            except Refused as error:
                begun = self._record()
                why = ONE_WAY.get(begun.phase)
                if why is None:
                    raise
                self._event("Warning", "Migration", f"{error}; it is tried on: {why}"[:900])
            await asyncio.sleep(AGAIN_S)
        if gave_up:
            raise Refused(f"{gave_up}. Gantry has its clients, and the source stands aside")
        if interrupted:
            raise Refused(f"an abort of the rollback was under way, and is done: {SAID_BACK[ended.phase]}")
        return text

    async def _give_up(self, problem: str) -> tuple[str, Record]:
        """Go back to Gantry where clients wait. Returns the reason, and the record with which to go back. Raises
        Refused where they do not wait, ApiError, ApiUnavailable.
        """
        record = self._record()
        late = f"the copy could not go on, in phase {record.phase.value}: {problem}"
        if record.phase not in rollback_steps.PAUSED:
            raise Refused(late)
        record = rollback_steps.abort(record, time.time())
        await self._save(record)
        return late, record

    async def _drive(
        self, sides: Sides, begun: Record, request: MigrationRequest, say: Callable[[Phase, str], None]
    ) -> tuple[Record, str]:
        """Make steps, and return the last record and what a person is to know. Raises _NoCopy, Refused, ApiError,
        ApiUnavailable.
        """
        edge = sides.edge
        async with contextlib.AsyncExitStack() as stack:
            if begun.phase in COPIES:
                try:
                    await stack.enter_async_context(edge.copying(sides.state, begun.phase))
                except (Refused, *FAILURES) as error:
                    raise _NoCopy(str(error)) from error
            ended = await drive(edge, begun, request.back, self._save, timeout=request.timeout_s, say=say)
        words = [SAID_BACK[ended.phase]]
        if edge.copy is not None and ended.phase is Phase.DONE:
            words.append(f"{edge.copy.sent()} messages are copied")
            if expired := edge.copy.expired():
                words.append(f"{expired} had expired at Gantry before they were read: the source lacks them")
        if lacking := said_lacking_back(ended):
            self._event("Warning", "Migration", lacking[:900])
            words.append(lacking)
        return ended, "; ".join(words) + (f". Next: {END_BACK}" if ended.phase is Phase.DONE else "")

    async def _begin(self, sides: Sides, request: MigrationRequest) -> Record:
        """Return the record with which to begin or go on. Raises Refused, ApiError, ApiUnavailable."""
        record, now = self._record(), time.time()
        if request.op == "abort":
            begun = rollback_steps.abort(record, now)
        elif record.phase in (Phase.ABORTING, Phase.DONE):
            return record
        else:
            cut = read_record(self._resource.annotation(MIGRATION))
            done = cut.phase is cutover_steps.Phase.DONE
            begun = rollback_steps.begin(record, cut.groups, await sides.edge.look(), now, cut_over=done)
        if begun != record:
            await self._save(begun)
        return begun

    async def _save(self, record: Record) -> None:
        await self._resource.annotate({ROLLBACK: written(record)})
