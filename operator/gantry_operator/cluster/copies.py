"""Groups that follow a RocketMQ (`spec.bootstrap.fromRocketMQ`) until a cutover, as rolling changes see them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.member_http import httpx
from gantry_operator.plan.plan import FILLED

ANSWER_S: Final = 3.0


async def ask_copy(http: httpx.AsyncClient, members: Sequence[str]) -> dict[str, Any] | None:
    """Return what the member says that follows, the first of its group; None: it does not say that it follows."""
    for url in members[:1]:
        with contextlib.suppress(httpx.HTTPError, ValueError, TypeError):
            answer = await http.get(f"{url}/migration", timeout=ANSWER_S)
            if answer.status_code == 200:
                return dict(answer.json())
    return None


def follows(copy: Mapping[str, Any] | None) -> bool:
    """Return whether a member that says this of its copy follows the source."""
    return copy is not None and copy.get("state") == "following" and copy.get("connected") is True


class Copies:
    """The copies of one cluster."""

    def __init__(
        self, http: httpx.AsyncClient, cluster: Callable[[], BrokerCluster | None], cutover: Callable[[], str]
    ) -> None:
        """`cutover`: the phase of a cutover that is under way; empty: there is none."""
        self._http, self._cluster, self._cutover = http, cluster, cutover

    def hold(self) -> str:
        """Why no member that works may be replaced now; empty: one may."""
        phase = self._cutover() if self._migrates() else ""
        return f"waits for the end of the cutover from RocketMQ, which is in phase {phase}" if phase else ""

    async def follows(self, controller: GroupController) -> bool | None:
        """Return whether the first member of a group follows its source; None: it does not say so, or a member leads or
        has led.
        """
        if not self._migrates() or controller.leadership is not None:
            return None
        reports = [watch.report for watch in controller.watches.values() if watch.reach == "ok"]
        first = controller.watches.get(FILLED)
        if first is None or any(report is not None and report.role != "Waiting" for report in reports):
            return None
        copy = await ask_copy(self._http, [first.url])
        return None if copy is None else follows(copy)

    def _migrates(self) -> bool:
        cluster = self._cluster()
        bootstrap = None if cluster is None else cluster.spec.bootstrap
        return bootstrap is not None and bootstrap.fromRocketMQ is not None
