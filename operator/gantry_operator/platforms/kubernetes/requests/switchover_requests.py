"""Answers switchover requests in annotations of a cluster: each is carried out once, over an operator's restart too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gantry_broker.tasks import end_tasks

from gantry_operator.cluster.control import ClusterControl
from gantry_operator.cluster.group_controller import SwitchoverFailed
from gantry_operator.plan.plan import member_name
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.requests.switchover_request import (
    SWITCHOVER,
    SWITCHOVER_BEGUN,
    SWITCHOVER_RESULT,
    begun,
    led_since,
    parse_switchover,
)

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Seconds after a write that the API server refuses."""


class SwitchoverRequests:
    """The requests of one cluster, one at a time. `look` at each pass; `on_end` begins the next pass."""

    def __init__(
        self,
        resource: ClusterResource,
        control: ClusterControl,
        events: EventRecorder,
        on_end: Callable[[], None],
    ) -> None:
        self._resource = resource
        self._control = control
        self._events = events
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._unsent: tuple[str, str] | None = None
        """A finished request and its answer, until the answer is written."""
        self._answered = ("", 0)
        """The last finished request and the resource version at that time. Once the answer is written: the version that
        contains the answer."""

    def look(self) -> None:
        """Start to answer the request of the resource, if there is one, and a spec was accepted or refused."""
        text = self._resource.annotation(SWITCHOVER)
        if self.at_work:
            return
        if text in (None, self._answered[0]) and self._resource.version < self._answered[1]:
            return  # This event is older than the answer. The event with the answer is still to come.
        if text is None:
            # Withdrawn, or answered without a confirmed write. The same text later is another request.
            self._unsent = None
        if text is not None and (self._control.plan is not None or self._control.refused):
            self._task = asyncio.create_task(self._answer(text))
        elif text is None and self._resource.annotation(SWITCHOVER_BEGUN) is not None:
            self._task = asyncio.create_task(self._forget())

    @property
    def at_work(self) -> bool:
        """A request is being answered."""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """End the switchover under way. The next operator finishes its request."""
        await end_tasks(self._task)

    async def _forget(self) -> None:
        """Remove the record of a request. A request was withdrawn while no operator ran. The same text later is another
        request.
        """
        try:
            await self._resource.annotate({SWITCHOVER_BEGUN: None})
        except (ApiError, ApiUnavailable) as error:
            await self._refused("deleting the record of a request", error)
        self._on_end()

    async def _answer(self, text: str) -> None:
        try:
            if self._unsent is None or self._unsent[0] != text:
                self._unsent = (text, await self._perform(text))
                self._answered = (text, self._resource.version)
            answer: dict[str, str | None] = {SWITCHOVER_RESULT: " ".join(self._unsent), SWITCHOVER_BEGUN: None}
            if self._resource.annotation(SWITCHOVER) == text:
                answer[SWITCHOVER] = None  # A newer request that arrived meanwhile remains.
            self._answered = (text, await self._resource.annotate(answer))
            self._unsent = None
        except (ApiError, ApiUnavailable) as error:
            await self._refused("answering a request", error)
        self._on_end()

    async def _refused(self, doing: str, error: Exception) -> None:
        meta = self._resource.obj["metadata"]
        log.warning("%s: %s", doing, error, extra={"cluster": f"{meta['namespace']}/{meta['name']}"})
        await asyncio.sleep(AGAIN_S)

    async def _perform(self, text: str) -> str:
        """Carry out a request. Raises ApiError and ApiUnavailable before the switchover starts."""
        try:
            group, member = parse_switchover(text)
            controller, to = self._control.switchover_of(group, member)
            if to is None:
                leadership = await controller.known_leadership()
                done = led_since(self._resource.annotation(SWITCHOVER_BEGUN), text, leadership)
                if done is not None:
                    leader = member_name(self._resource.obj["metadata"]["name"], group, done)
                    return f"done: {leader} leads {group} in epoch {leadership.epoch}"
                await self._resource.annotate({SWITCHOVER_BEGUN: begun(text, leadership)})
            return "done: " + await controller.switchover(to, "asked for")
        except SwitchoverFailed as error:
            outcome = f"failed: {error}"
            self._events.record("Warning", "SwitchoverFailed", outcome)
            return outcome
