"""Requests of a person in an annotation of the cluster: carried out one at a time, and answered in another annotation.

A request whose answer could not be written is carried out again, which must change nothing. Switchovers, for which that
is not so, have `switchover_requests.py`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from gantry_broker.tasks import end_tasks

from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Seconds after a write that the API server refuses."""


class AnnotationRequests(ABC):
    """`look` at each pass; `on_end` begins the next pass."""

    request: ClassVar[str]
    """The annotation with the request."""
    result: ClassVar[str]
    """The annotation with the request, then "done: ..." or "failed: ..."."""

    def __init__(
        self, resource: ClusterResource, on_end: Callable[[], None], why_not: Callable[[], str | None] = lambda: ""
    ) -> None:
        """`why_not`: why no request can be carried out, since no spec was ever accepted; None: not known yet."""
        self._resource = resource
        self._on_end = on_end
        self._why_not = why_not
        self._task: asyncio.Task[None] | None = None
        self._answered = 0
        """The version of the resource that contains the last answer."""

    def look(self) -> None:
        """Start to carry out the request of the resource, or go on with it."""
        text = self._resource.annotation(self.request)
        if text is None or (self._task is not None and not self._task.done()) or self._why_not() is None:
            return
        if self._resource.version >= self._answered:  # Else the event with the answer is still to come.
            self._task = asyncio.create_task(self._answer(text))

    async def close(self) -> None:
        """End the work under way. What has begun goes on with the next operator."""
        await end_tasks(self._task)

    async def _answer(self, text: str) -> None:
        try:
            answer: dict[str, str | None] = {self.result: f"{text} {await self._perform(text)}"}
            if self._resource.annotation(self.request) == text:
                answer[self.request] = None  # A newer request that arrived meanwhile remains.
            self._answered = await self._resource.annotate(answer)
        except (ApiError, ApiUnavailable) as error:
            meta = self._resource.obj["metadata"]
            log.warning("answering a request: %s", error, extra={"cluster": f"{meta['namespace']}/{meta['name']}"})
            await asyncio.sleep(AGAIN_S)
        self._on_end()

    @abstractmethod
    async def _perform(self, text: str) -> str:
        """Carry out a request. Returns "done: ..." or "failed: ...". Raises ApiError, ApiUnavailable."""
