"""The newest version that this operator knows of a BrokerCluster, and writes to its annotations."""

from __future__ import annotations

from gantry_operator.platforms.kubernetes.api.client import BROKER_CLUSTER, KubeApi, Object


class ClusterResource:
    """One BrokerCluster. `obj` is its newest known version."""

    def __init__(self, api: KubeApi, obj: Object) -> None:
        self.obj = obj
        self._api = api

    @property
    def version(self) -> int:
        return int(self.obj["metadata"]["resourceVersion"])

    @property
    def ending(self) -> bool:
        """It is being deleted."""
        return self.obj["metadata"].get("deletionTimestamp") is not None

    def annotation(self, name: str) -> str | None:
        return (self.obj["metadata"].get("annotations") or {}).get(name)

    def update(self, obj: Object) -> bool:
        """Take the version of a watch event. True: more than the status has changed."""
        old, self.obj = self.obj["metadata"], obj
        new = obj["metadata"]
        return bool(old["generation"] != new["generation"] or old.get("annotations") != new.get("annotations"))

    async def annotate(self, annotations: dict[str, str | None]) -> int:
        """Write annotations. Returns the version of the resource that contains them.

        Raises ApiError and ApiUnavailable.
        """
        meta = self.obj["metadata"]
        patch = {"metadata": {"annotations": annotations}}
        written = await self._api.merge(BROKER_CLUSTER, meta["namespace"], meta["name"], patch)
        self.note(written)
        return int(written["metadata"]["resourceVersion"])

    def note(self, written: Object) -> None:
        """Keep the result of this operator's write, unless a watch event has brought a newer version."""
        if int(written["metadata"]["resourceVersion"]) > self.version:
            self.obj = written
