"""Carries out `gantry migrate cutover` and `abort`, which come in an annotation of the cluster, one at a time.

The record of the cutover is an annotation, too, which is written before each step. So an operator that takes over goes
on where the last one was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from gantry_operator.migration import steps
from gantry_operator.migration.edge import Edge, drive
from gantry_operator.migration.steps import Phase, Record, Refused
from gantry_operator.platforms.kubernetes.annotation_requests import AnnotationRequests
from gantry_operator.platforms.kubernetes.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.migration_request import (
    MIGRATE,
    MIGRATE_RESULT,
    MIGRATION,
    parse_request,
    read_record,
    written,
)

SAID = {
    Phase.FOLLOWING: "the copies follow the source",
    Phase.READERS_OFF: "the source gives nothing to consumers any more; gantry migrate abort goes back",
    Phase.WRITES_OFF: "the source takes no messages any more; gantry migrate abort goes back",
    Phase.FINISHING: "each group takes the last bytes and leads; there is no way back",
    Phase.TAKING: "the source's NameServers take over the new addresses",
    Phase.DONE: "Gantry leads. Stop the source's brokers, and do not start them again",
    Phase.ABORTING: "the source gets its permission back",
}
"""What an event says about a phase."""
FORWARD_ONLY = frozenset({Phase.FINISHING, Phase.TAKING})
WAYS = f"annotate {MIGRATE}=cutover to go on, or {MIGRATE}=abort to go back"


class MigrationRequests(AnnotationRequests):
    """The requests of one cluster for a cutover."""

    request, result = MIGRATE, MIGRATE_RESULT

    def __init__(
        self,
        resource: ClusterResource,
        open_edge: Callable[[], AbstractAsyncContextManager[Edge]],
        event: Callable[[str, str, str], None],
        on_end: Callable[[], None],
        why_not: Callable[[], str | None] = lambda: "",
    ) -> None:
        """`open_edge` may raise Refused. `event` gets kind, reason and message."""
        super().__init__(resource, on_end, why_not)
        self._open_edge = open_edge
        self._event = event

    async def _perform(self, text: str) -> str:
        """Carry out a request. Raises ApiError, ApiUnavailable."""
        shown: list[Phase] = []

        def say(phase: Phase, waits: str) -> None:
            if not shown or shown[-1] is not phase:
                shown.append(phase)
                self._event("Normal", "Migration", f"{phase.value}: {SAID[phase]}")

        async def save(record: Record) -> None:
            await self._resource.annotate({MIGRATION: written(record)})

        try:
            asked = parse_request(text)
            if refused := self._why_not():
                raise Refused(f"the spec is refused, so the groups are not known: {refused}")
            record = read_record(self._resource.annotation(MIGRATION))
            async with self._open_edge() as edge:
                if asked.op == "abort":
                    begun = steps.abort(record, time.time())
                else:
                    begun = steps.begin(record, await edge.look(), asked.limits, time.time())
                if begun != record:
                    await save(begun)
                while True:
                    try:
                        ended = await drive(edge, begun, asked.limits, save, timeout=asked.timeout_s, say=say)
                        break
                    except Refused as error:
                        begun = read_record(self._resource.annotation(MIGRATION))
                        if begun.phase not in FORWARD_ONLY:
                            raise Refused(f"{error}; {WAYS}") from None
                        self._event("Warning", "Migration", f"{error}; it is tried on: there is no way back"[:900])
        except (Refused, ValueError) as error:
            self._event("Warning", "Migration", str(error)[:900])
            return f"failed: {error}"
        return f"done: {SAID[ended.phase]}"
