"""The topics and consumer groups of a cluster on Kubernetes as resources, for the `gantry` command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gantry_operator.api.consumer_group import ConsumerGroup
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.platforms.kubernetes.api.client import KINDS, ApiError, KubeApi, Object
from gantry_operator.platforms.kubernetes.targets.users import UserError, patch_of


class TargetTopics:
    """The resources of one cluster. Every call raises ApiError, ApiUnavailable and UserError."""

    waits_for = "the operator"

    def __init__(self, api: KubeApi, namespace: str, cluster: str) -> None:
        self.namespace = namespace
        self.cluster = cluster
        self._api = api

    async def list(self, kind: str) -> list[Object]:
        """With their status."""
        try:
            items, _ = await self._api.list(KINDS[kind], self.namespace)
        except ApiError as error:
            if error.status == 404:
                return []  # The definition is not installed.
            raise
        for item in items:
            item["kind"] = kind
        return [o for o in items if (o.get("spec") or {}).get("cluster") == self.cluster]

    async def create(self, resource: BrokerTopic | ConsumerGroup) -> None:
        obj = resource.model_dump(mode="json", exclude={"status"}, exclude_none=True)
        obj["metadata"] = {"name": resource.name, "namespace": self.namespace}
        try:
            await self._api.create(obj)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            problem = f"{resource.kind} {resource.name} exists already: delete it, or change it with kubectl"
            raise UserError(problem) from None

    async def change(self, kind: str, name: str, changes: Mapping[str, Any]) -> int:
        """Change fields of the spec (a merge patch). Returns the new generation."""
        obj = await self._api.get(KINDS[kind], self.namespace, name)
        if obj is None:
            raise UserError(f"there is no {kind} {name} in namespace {self.namespace}")
        patch = patch_of({"kind": kind} | obj, changes)
        try:
            written = await self._api.merge(KINDS[kind], self.namespace, name, patch)
        except ApiError as error:
            if error.reason != "Conflict":
                raise
            raise UserError(f"{kind} {name} was changed by others meanwhile: try again") from None
        return int(written["metadata"].get("generation") or 0)

    async def delete(self, kind: str, name: str) -> None:
        await self._api.delete(KINDS[kind], self.namespace, name)
