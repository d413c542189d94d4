"""The users of a cluster on Kubernetes for the `gantry` command: BrokerUsers, and Secrets with their keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from gantry_operator.access.wanted import ACCESS_KEY, ADMIN, ADMIN_NAME, SECRET_KEY, secret_name
from gantry_operator.api.user import ROTATE, BrokerUser
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import BROKER_USER, SECRET, ApiError, KubeApi, Object
from gantry_operator.platforms.kubernetes.resources.users import decoded, encoded

KEEPERS: Final = {
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "argocd.argoproj.io/instance": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
    "app.kubernetes.io/managed-by=Helm": "Helm",
}
"""By label or annotation (with =: and its value): the program that writes an object again as its repository has it."""


class UserError(Exception):
    """A user that does not exist, or without a key. The text names the remedy."""


def patch_of(obj: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that changes fields of a spec, if the object is still as it was read.

    Raises UserError for an object that a program writes from a repository: the program would take the change back.
    """
    meta = obj["metadata"]
    marks = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    for mark, keeper in KEEPERS.items():
        name, _, value = mark.partition("=")
        if name in marks and value in ("", marks[name]):
            kind = obj.get("kind", "the object")
            raise UserError(f"{keeper} keeps {kind} {meta['name']}: change it in its repository")
    return {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": dict(changes)}


class TargetUsers:
    """The users of one cluster. Every call raises ApiError, ApiUnavailable and UserError."""

    def __init__(self, api: KubeApi, namespace: str, cluster: str) -> None:
        self.namespace = namespace
        self.cluster = cluster
        self._api = api

    async def list(self) -> list[Object]:
        items, _ = await self._api.list(BROKER_USER, self.namespace)
        return [u for u in items if (u.get("spec") or {}).get("cluster") == self.cluster]

    async def taken(self) -> Collection[str]:
        """Return the names that no new user can have: another cluster of the namespace may have them."""
        items, _ = await self._api.list(BROKER_USER, self.namespace)
        return {str(user["metadata"]["name"]) for user in items}

    async def create(self, user: BrokerUser) -> None:
        obj = user.model_dump(mode="json", exclude={"status"}, exclude_none=True)
        obj["metadata"] = {"name": user.name, "namespace": self.namespace}
        try:
            await self._api.create(obj)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            raise UserError(f"{user.name} exists already: delete it first, or change it with kubectl") from None

    async def change(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change fields of the spec (a merge patch). Raises UserError if another program keeps the object."""
        user = await self._user(name)
        await self._api.merge(BROKER_USER, self.namespace, name, patch_of(user, changes))

    async def delete(self, name: str) -> None:
        await self._user(name)
        await self._api.delete(BROKER_USER, self.namespace, name)

    async def rotate(self, name: str, request: str) -> None:
        patch = {"metadata": {"annotations": {ROTATE: request}}}
        if name == ADMIN:
            await self._api.merge(SECRET, self.namespace, secret_name(self.cluster, ADMIN_NAME), patch)
            return
        await self._user(name)
        await self._api.merge(BROKER_USER, self.namespace, name, patch)

    async def key(self, name: str) -> tuple[str, str]:
        """AccessKey and secret key."""
        secret, key, access = await self._place(name)
        secret_object = await self._api.get(SECRET, self.namespace, secret)
        content = {} if secret_object is None else decoded(secret_object)
        if key not in content:
            raise UserError(f"Secret {secret} holds no {key}: is the operator running?")
        return access, content[key]

    async def key_place(self, name: str) -> str:
        secret, key, _ = await self._place(name)
        return f"Secret {secret} ({ACCESS_KEY}, {key})"

    async def put_secret(self, name: str, content: Mapping[str, str]) -> None:
        meta = {"name": name, "namespace": self.namespace, "labels": {names.CLUSTER_LABEL: self.cluster}}
        obj = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": encoded(content)}
        await self._api.apply(obj, "gantry-cli")

    async def state(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of the condition Ready, about the present spec."""
        user = await self._user(name)
        status = user.get("status") or {}
        if status.get("observedGeneration") != user["metadata"].get("generation"):
            return "", "Waiting", ""
        ready: Object = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
        return str(ready.get("status", "")), str(ready.get("reason", "")), str(ready.get("message", ""))

    async def why_not(self, name: str) -> str:
        return "" if name == ADMIN else (await self.state(name))[2]

    async def _place(self, name: str) -> tuple[str, str, str]:
        """Secret, the key in it, and the AccessKey."""
        if name == ADMIN:
            return secret_name(self.cluster, ADMIN_NAME), SECRET_KEY, ADMIN
        spec = (await self._user(name))["spec"]
        access, named = str(spec.get("accessKey") or name), spec.get("secret")
        if named:
            return str(named["name"]), str(named.get("key") or SECRET_KEY), access
        return secret_name(self.cluster, name), SECRET_KEY, access

    async def _user(self, name: str) -> Object:
        user = await self._api.get(BROKER_USER, self.namespace, name)
        if user is None or (user.get("spec") or {}).get("cluster") != self.cluster:
            names = ", ".join(u["metadata"]["name"] for u in await self.list())
            raise UserError(f"there is no user {name} of {self.cluster}, but {names or 'none'}")
        return user
