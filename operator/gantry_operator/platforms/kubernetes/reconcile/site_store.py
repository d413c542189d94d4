"""The part of a cluster in a pair of sites: kept in the status of its resource."""

from __future__ import annotations

from gantry_operator.cluster.second_site import SiteState
from gantry_operator.cluster.status import site_of, site_row
from gantry_operator.platforms.kubernetes.api.client import BROKER_CLUSTER, KubeApi, Object


class KubernetesSiteStore:
    """`status.site`. A resource without it, as after a restore of the API server, is no loss: members know more."""

    def __init__(self, api: KubeApi, key: tuple[str, str], obj: Object) -> None:
        self._api = api
        self._key = key
        self._obj = obj

    def load(self) -> SiteState | None:
        """Read the state; None: there is none. Raises ValueError."""
        row = (self._obj.get("status") or {}).get("site")
        if row is None:
            return None
        try:
            return site_of(row)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"status.site: {error!r}") from None

    async def save(self, state: SiteState) -> None:
        """Keep the state. Raises ApiError, ApiUnavailable."""
        row = site_row(state).model_dump(mode="json", exclude_none=True)
        await self._api.merge(BROKER_CLUSTER, *self._key, {"status": {"site": row}}, "status")
