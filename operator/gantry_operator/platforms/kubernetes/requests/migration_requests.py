"""Carries out `gantry migrate cutover`, `abort` and `rollback`, which come in an annotation of the cluster, one at a
time.

The records of the cutover and of the rollback are annotations, too, which are written before each step. So an operator
that takes over goes on where the last one was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

from gantry_operator.migration import cutover_steps
from gantry_operator.migration.cutover_edge import FAILURES, Edge, drive
from gantry_operator.migration.cutover_steps import Limits, Phase, Record, Refused
from gantry_operator.migration.progress import END, SAID, said_lacking
from gantry_operator.migration.source_config import NotYet, at_the_end
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.requests.annotation_requests import AnnotationRequests
from gantry_operator.platforms.kubernetes.requests.migration_request import (
    MIGRATE,
    MIGRATE_RESULT,
    MIGRATION,
    MigrationRequest,
    parse_request,
    read_record,
    written,
)
from gantry_operator.platforms.kubernetes.requests.rollbacks import OpenSides, Rollbacks

log = logging.getLogger(__name__)

ONE_WAY = {
    Phase.FINISHING: "there is no way back",
    Phase.TAKING: "there is no way back",
    Phase.ABORTING: "the source has not all of its settings back",
}
"""Phases that are tried until they end: a person could ask for nothing else."""
GIVE_BACK_S = 60.0
"""Seconds for the sources of a cluster that is deleted."""
AGAIN_S = 2.0
"""Seconds before it is tried on."""


class MigrationRequests(AnnotationRequests):
    """The requests of one cluster for a cutover, and for a rollback after it."""

    request, result = MIGRATE, MIGRATE_RESULT

    def __init__(
        self,
        resource: ClusterResource,
        open_edge: Callable[[], AbstractAsyncContextManager[Edge]],
        open_sides: OpenSides,
        event: Callable[[str, str, str], None],
        on_end: Callable[[], None],
        why_not: Callable[[], str | None] = lambda: "",
        copy_kv: Callable[[Edge], Awaitable[None]] | None = None,
        check: Callable[[Edge], Awaitable[None]] | None = None,
    ) -> None:
        """`open_edge` and `open_sides` may raise Refused. `event` gets kind, reason and message. `copy_kv` gives the
        cluster's NameServers the source's key-value configuration. `check` raises Refused for a spec with which no
        cutover may begin.
        """
        super().__init__(resource, on_end, why_not)
        self.waits = ""
        """What the present step waits for, for people."""
        self._open_edge, self._copy_kv, self._check = open_edge, copy_kv, check
        self._event = event
        self._rollbacks = Rollbacks(resource, open_sides, event, self._wait_for)

    def _wait_for(self, waits: str) -> None:
        self.waits = waits

    async def _perform(self, text: str) -> str:
        """Carry out a request. Raises ApiError, ApiUnavailable."""
        try:
            request = parse_request(text)
            if refused := self._why_not():
                raise Refused(f"the spec is refused, so the groups are not known: {refused}")
            if request.op == "rollback" or (request.op == "abort" and self._rollbacks.under_way()):
                return f"done: {await self._rollbacks.carry_out(request, lambda: self._is_called_off(text))}"
            ended = await self._carry_out(request, text)
        except (Refused, ValueError, *FAILURES) as error:
            self._event("Warning", "Migration", str(error)[:900])
            return f"failed: {error}"
        finally:
            self.waits = ""
        if lacking := said_lacking(ended):
            self._event("Warning", "Migration", lacking[:900])
            return f"done: {SAID[ended.phase]}; {lacking}"
        return f"done: {SAID[ended.phase]}" + (f". Next: {END}" if ended.phase is Phase.DONE else "")

    async def _carry_out(self, request: MigrationRequest, text: str) -> Record:
        """Make steps until the cutover is done, or the abort. Raises Refused, ApiError, ApiUnavailable."""
        shown: list[Phase] = []

        def say(phase: Phase, waits: str) -> None:
            if not shown or shown[-1] is not phase:
                shown.append(phase)
                ways = "; gantry migrate abort goes back" if phase in cutover_steps.RETURNING else ""
                end = f". Next: {END}" if phase is Phase.DONE else ""
                self._event("Normal", "Migration", f"{phase.value}: {SAID[phase]}{ways}{end}")
            self.waits = waits
            if phase in cutover_steps.RETURNING and self._is_called_off(text):
                raise Refused("a newer request calls it off")

        begun: Record | None = None
        while True:
            async with self._open_edge() as edge:
                if begun is None:
                    begun = await self._begin(edge, request)
                    if request.op == "cutover":
                        await self._bring_kv(edge)
                interrupted = request.op == "cutover" and begun.phase is Phase.ABORTING
                try:
                    ended = await drive(edge, begun, request.limits, self._save, timeout=request.timeout_s, say=say)
                    if request.op == "cutover" and ended.phase is Phase.DONE:
                        await self._bring_kv(edge, leads=True)
                    if interrupted:
                        raise Refused(f"an abort was under way, and is done: {SAID[ended.phase]}")
                    return ended
                except Refused as error:
                    begun = read_record(self._resource.annotation(MIGRATION))
                    why = ONE_WAY.get(begun.phase)
                    if why is None or (begun.phase is Phase.FINISHING and await self._can_be_called_off(edge, text)):
                        raise
                    self._event("Warning", "Migration", f"{error}; it is tried on: {why}"[:900])
            await asyncio.sleep(AGAIN_S)

    async def give_back(self) -> None:
        """Go back from a cutover of a cluster that is deleted: nobody else would give the source what it lacks."""
        await self.close()
        try:
            if self._rollbacks.under_way():
                raise Refused("a rollback was under way")
            record = read_record(self._resource.annotation(MIGRATION))
            if record.phase not in (*cutover_steps.RETURNING, Phase.ABORTING, Phase.FOLLOWING) or not record.groups:
                return

            async def save(record: Record) -> None:
                """There is no resource to write it to."""

            async with self._open_edge() as edge:
                ended = await drive(edge, cutover_steps.abort(record, time.time()), Limits(), save, timeout=GIVE_BACK_S)
            if left := cutover_steps.still_owed(ended, {}):
                self._warn(cutover_steps.said_owed(left, cutover_steps.RELEASE))
        except (Refused, ApiError, ApiUnavailable) as error:
            text = (
                f"the cluster was deleted, and the source has not its settings back ({error}): {cutover_steps.RELEASE}"
            )
            self._warn(text)

    def _warn(self, text: str) -> None:
        """Say it in the log, too: events of a cluster that is deleted are soon gone."""
        meta = self._resource.obj["metadata"]
        log.error("%s", text, extra={"cluster": f"{meta['namespace']}/{meta['name']}"})
        self._event("Warning", "Migration", text[:900])

    async def _begin(self, edge: Edge, request: MigrationRequest) -> Record:
        """Return the record with which to begin or go on. Raises Refused, ApiError, ApiUnavailable."""
        record, now = read_record(self._resource.annotation(MIGRATION)), time.time()
        if request.op == "abort":
            begun = cutover_steps.abort(record, now, await edge.look())
        elif record.phase is Phase.ABORTING:
            return record
        else:
            if record.phase is Phase.FOLLOWING and self._check is not None:
                await self._check(edge)
            begun = cutover_steps.begin(record, await edge.look(), request.limits, now)
        if begun != record:
            await self._save(begun)
        return begun

    async def _bring_kv(self, edge: Edge, *, leads: bool = False) -> None:
        """Copy the key-value configuration, before a cutover and, as Gantry `leads`, behind it. A failure costs no
        cutover: clients keep the source's NameServers.
        """
        try:
            if self._copy_kv is not None and leads:
                await at_the_end(partial(self._copy_kv, edge))
            elif self._copy_kv is not None:
                with contextlib.suppress(NotYet):
                    await self._copy_kv(edge)
        except (Refused, ApiError, ApiUnavailable, *FAILURES) as error:
            text = f"the key-value configuration is not copied to the new NameServers: {error}"
            self._event("Warning", "Migration", text[:900])

    async def _save(self, record: Record) -> None:
        await self._resource.annotate({MIGRATION: written(record)})

    def _is_called_off(self, text: str) -> bool:
        """Whether a newer request is to abort what `text` asks for, or the cluster is being deleted."""
        newer = self._resource.annotation(MIGRATE)
        if self._resource.ending:
            return True
        return newer is not None and newer != text and newer.split()[:1] == ["abort"]

    async def _can_be_called_off(self, edge: Edge, text: str) -> bool:
        """Whether a newer request is to abort, and that is possible although copies were to finish."""
        if not self._is_called_off(text):
            return False
        try:
            cutover_steps.abort(read_record(self._resource.annotation(MIGRATION)), time.time(), await edge.look())
        except Refused:
            return False
        return True
