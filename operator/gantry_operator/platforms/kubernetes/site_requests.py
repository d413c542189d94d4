"""Carries out `gantry demote` and `gantry promote`, which come in an annotation of the cluster, one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gantry_operator.cluster.second_site import Refused
from gantry_operator.cluster.site_control import SiteControl
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.site_request import SITE, SITE_RESULT, parse_request

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Seconds after a write that the API server refuses."""


class SiteRequests:
    """`look` at each pass; `on_end` begins the next pass."""

    def __init__(
        self,
        resource: ClusterResource,
        sites: SiteControl,
        on_end: Callable[[], None],
        why_not: Callable[[], str | None] = lambda: "",
    ) -> None:
        """`why_not`: why no request can be carried out, since no spec was ever accepted; None: not known yet."""
        self._why_not = why_not
        self._resource = resource
        self._sites = sites
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._answered = 0
        """The version of the resource that contains the last answer."""

    def look(self) -> None:
        """Start to answer the request of the resource. One whose answer could not be written is carried out again,
        which changes nothing.
        """
        text = self._resource.annotation(SITE)
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
            answer: dict[str, str | None] = {SITE_RESULT: f"{text} {await self._perform(text)}"}
            if self._resource.annotation(SITE) == text:
                answer[SITE] = None  # A newer request that arrived meanwhile remains.
            self._answered = await self._resource.annotate(answer)
        except (ApiError, ApiUnavailable) as error:
            meta = self._resource.obj["metadata"]
            log.warning("answering a request: %s", error, extra={"cluster": f"{meta['namespace']}/{meta['name']}"})
            await asyncio.sleep(AGAIN_S)
        self._on_end()

    async def _perform(self, text: str) -> str:
        """Carry out a request. Raises ApiError, ApiUnavailable."""
        try:
            asked = parse_request(text)
            if refused := self._why_not():
                raise Refused(f"the spec is refused, so the groups are not known: {refused}")
            if asked.op == "demote":
                said = await self._sites.demote(accept_loss=asked.accept_loss, timeout_s=asked.timeout_s)
            else:
                said = await self._sites.promote(asked.token, accept_loss=asked.accept_loss, timeout_s=asked.timeout_s)
        except (Refused, ValueError) as error:
            return f"failed: {error}"
        return f"done: {said}"
