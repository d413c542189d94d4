"""Carries out `gantry demote` and `gantry promote`, which come in an annotation of the cluster, one at a time."""

from __future__ import annotations

from collections.abc import Callable

from gantry_operator.cluster.second_site import Refused
from gantry_operator.cluster.site_control import SiteControl
from gantry_operator.platforms.kubernetes.api.cluster_resource import ClusterResource
from gantry_operator.platforms.kubernetes.requests.annotation_requests import AnnotationRequests
from gantry_operator.platforms.kubernetes.requests.site_request import SITE, SITE_RESULT, parse_request


class SiteRequests(AnnotationRequests):
    """The requests of one cluster to change its part in a pair of sites."""

    request, result = SITE, SITE_RESULT

    def __init__(
        self,
        resource: ClusterResource,
        sites: SiteControl,
        on_end: Callable[[], None],
        why_not: Callable[[], str | None] = lambda: "",
    ) -> None:
        super().__init__(resource, on_end, why_not)
        self._sites = sites

    async def _perform(self, text: str) -> str:
        """Carry out a request. Raises ApiError, ApiUnavailable."""
        try:
            request = parse_request(text)
            if refused := self._why_not():
                raise Refused(f"the spec is refused, so the groups are not known: {refused}")
            if request.op == "demote":
                outcome = await self._sites.demote(accept_loss=request.accept_loss, timeout_s=request.timeout_s)
            else:
                outcome = await self._sites.promote(
                    request.token, accept_loss=request.accept_loss, timeout_s=request.timeout_s
                )
        except (Refused, ValueError) as error:
            return f"failed: {error}"
        return f"done: {outcome}"
