"""The role labels of pods: the Service of each group leads to its working master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from gantry_operator.cluster.member_watch import QUIET_MS
from gantry_operator.cluster.platform import LedGroup
from gantry_operator.platforms.kubernetes.api.client import ApiError, ApiUnavailable
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform

log = logging.getLogger(__name__)

REFUSED_S = 2.0
"""Seconds before a refused label is written again."""


class RoleLabels:
    """The labels of one cluster's pods. `controllers`: those of its groups, as they come and go."""

    def __init__(self, pods: KubernetesPlatform) -> None:
        self.controllers: Mapping[str, LedGroup] = {}
        self._pods = pods
        pods.answers = self._answers
        pods.sync_labels = self._retry_label_sync

    async def sync(self) -> list[str]:
        """Label each working master. Returns the failures; a failure does not affect other groups.

        A group with a pending announcement is left out: its controller knows for how long the former master keeps its
        label.
        """
        problems = await asyncio.gather(*(self._sync_label(group) for group in self.controllers))
        return list(dict.fromkeys(p for p in problems if p))

    async def _sync_label(self, group: str) -> str:
        controller = self.controllers.get(group)
        if controller is None:  # It ended after the caller looked.
            return ""
        leadership = controller.leadership
        if leadership is None or leadership.master is None or not controller.announced:
            return ""
        watch = controller.watches.get(leadership.master.member)
        report = None if watch is None else watch.report
        if report is not None and report.role == "Master" and report.epoch == leadership.epoch:
            try:
                await self._pods.label(group, leadership.master.member)
            except (ApiError, ApiUnavailable) as error:
                return str(error)
        return ""

    async def _retry_label_sync(self, group: str) -> bool:
        """Correct the labels once. False: try again."""
        problem = await self._sync_label(group)
        if problem:
            # The next pass over the objects reports it.
            log.warning("labels of group %s: %s", group, problem)
            await asyncio.sleep(REFUSED_S)
            return False
        controller = self.controllers.get(group)
        if controller is None:
            return True
        master = None if controller.leadership is None else controller.leadership.master
        return controller.announced and master is not None and not self._pods.mislabelled(group, master.member)

    def _answers(self, group: str, name: str) -> bool:
        """Return whether a member answers. A frozen member, or one behind a network cut, keeps its connection longer
        than the allowed silence.
        """
        controller = self.controllers.get(group)
        number = (
            None if controller is None else next((n for n, w in controller.watches.items() if w.name == name), None)
        )
        if controller is None or number is None or controller.watches[number].reach != "ok":
            return False
        return controller.silence_s(number) * 1000 < QUIET_MS
