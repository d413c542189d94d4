"""Carries out `gantry migrate cutover` and `abort`, which come in an annotation of the cluster, one at a time.

The record of the cutover is an annotation, too, which is written before each step. So an operator that takes over goes
on where the last one was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from gantry_operator.migration import steps
from gantry_operator.migration.edge import Edge, drive
from gantry_operator.migration.steps import Phase, Record, Refused
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.migration_request import (
    MIGRATE,
    MIGRATE_RESULT,
    MIGRATION,
    parse_request,
    read_record,
    written,
)

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Seconds after a write that the API server refuses."""
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


class MigrationRequests:
    """`look` at each pass; `on_end` begins the next pass."""

    def __init__(
        self,
        resource: ClusterResource,
        open_edge: Callable[[], AbstractAsyncContextManager[Edge]],
        event: Callable[[str, str, str], None],
        on_end: Callable[[], None],
        why_not: Callable[[], str | None] = lambda: "",
    ) -> None:
        """`open_edge` may raise Refused. `event` gets kind, reason and message. `why_not`: why no request can be
        carried out, since no spec was ever accepted; None: not known yet.
        """
        self._resource = resource
        self._open_edge = open_edge
        self._event = event
        self._on_end = on_end
        self._why_not = why_not
        self._task: asyncio.Task[None] | None = None
        self._answered = 0
        """The version of the resource that contains the last answer."""

    def look(self) -> None:
        """Start to carry out the request of the resource, or go on with it."""
        text = self._resource.annotation(MIGRATE)
        if text is None or (self._task is not None and not self._task.done()) or self._why_not() is None:
            return
        if self._resource.version >= self._answered:  # Else the event with the answer is still to come.
            self._task = asyncio.create_task(self._answer(text))

    async def close(self) -> None:
        """End the work under way. What has begun goes on with the next operator."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _answer(self, text: str) -> None:
        try:
            answer: dict[str, str | None] = {MIGRATE_RESULT: f"{text} {await self._perform(text)}"}
            if self._resource.annotation(MIGRATE) == text:
                answer[MIGRATE] = None  # A newer request that arrived meanwhile remains.
            self._answered = await self._resource.annotate(answer)
        except (ApiError, ApiUnavailable) as error:
            meta = self._resource.obj["metadata"]
            log.warning("answering a request: %s", error, extra={"cluster": f"{meta['namespace']}/{meta['name']}"})
            await asyncio.sleep(AGAIN_S)
        self._on_end()

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
                ended = await drive(edge, begun, asked.limits, save, timeout=asked.timeout_s, say=say)
        except (Refused, ValueError) as error:
            self._event("Warning", "Migration", str(error)[:900])
            return f"failed: {error}"
        return f"done: {SAID[ended.phase]}"
