"""The users of one cluster on Kubernetes: BrokerUsers, their Secrets, their status, and the Secret with the state."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from gantry_operator.access.decide import Observed, UserResult
from gantry_operator.access.state import AccessState
from gantry_operator.access.wanted import (
    ADMIN_NAME,
    PROXY_NAME,
    WantedUser,
    secret_name,
    wanted_admin,
    wanted_proxy,
    wanted_user,
)
from gantry_operator.api import user as api_user
from gantry_operator.api.cluster import API_VERSION, BrokerCluster
from gantry_operator.api.manifest import ManifestError, parse_user
from gantry_operator.api.user import BrokerUserStatus, UserCondition
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import (
    BROKER_USER,
    SECRET,
    ApiError,
    ApiUnavailable,
    KubeApi,
    Object,
)
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.status_writer import merge_patch
from gantry_operator.platforms.kubernetes.manifests import proxies
from gantry_operator.platforms.kubernetes.objects import drift, mounted_files

log = logging.getLogger(__name__)

STATE_KEY = "state.json"
COMPONENT = "access"


def decoded(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return the content of a Secret, without values that are no text."""
    out = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            out[key] = base64.b64decode(value, validate=True).decode()
        except (ValueError, TypeError):
            continue
    return out


def encoded(content: Mapping[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}


class KubernetesAccessStore:
    """The store of one cluster object, identified by its uid. Secrets of others are never changed."""

    def __init__(
        self,
        api: KubeApi,
        caches: Mapping[str, InformerCache],
        cluster: tuple[str, str, str],
        events: EventRecorder,
        reporter: str,
    ) -> None:
        """`cluster`: namespace, name and uid."""
        self.cluster: BrokerCluster | None = None
        """The last accepted spec; None: none is known yet."""
        self._api = api
        self._caches = caches
        self._namespace, self._name, self._uid = cluster
        self._events = events
        self._reporter = reporter
        self._recorders: dict[str, EventRecorder] = {}
        self._version: str | None = None
        """Resource version of the state's Secret as loaded or written last; None: there was none."""
        self._invalid: dict[str, str] = {}
        """BrokerUsers that cannot be read, with the reason."""
        self._table: bytes | None = None
        """The table that the proxies' Secret holds, and the Secret's version with it."""
        self._table_version = ""
        self._shown: dict[str, dict[str, Any]] = {}
        """The status of each BrokerUser as written last."""

    # ---- what is wanted

    def users(self) -> Iterator[Object]:
        """Return the BrokerUser objects of this cluster that are not being deleted."""
        for obj in self._caches["BrokerUser"].in_namespace(self._namespace):
            deleted = obj["metadata"].get("deletionTimestamp") is not None
            if not deleted and (obj.get("spec") or {}).get("cluster") == self._name:
                yield obj

    def observe(self) -> Observed | None:
        if self.cluster is None or not (self._caches["BrokerUser"].listed and self._caches["Secret"].listed):
            return None
        wanted_users = [wanted_admin(self._name, self._asked_at_secret(ADMIN_NAME))]
        if proxies.wanted(self.cluster):
            wanted_users.append(wanted_proxy(self._name, self._asked_at_secret(PROXY_NAME)))
        self._invalid = {}
        for obj in self.users():
            try:
                wanted_users.append(wanted_user(parse_user(obj)))
            except ManifestError as error:
                self._invalid[obj["metadata"]["name"]] = str(error).replace("\n", "; ")
        listed = self._caches["Secret"].of(self._namespace, names.CLUSTER_LABEL, self._name)
        secrets = {s["metadata"]["name"]: decoded(s) for s in listed if self._usable(s, wanted_users)}
        security = self.cluster.spec.security
        return Observed(self._name, security.mode(), security, wanted_users, secrets)

    def _asked_at_secret(self, user: str) -> str:
        live = self._caches["Secret"].get(self._namespace, secret_name(self._name, user))
        annotations = None if live is None else live["metadata"].get("annotations")
        return str((annotations or {}).get(api_user.ROTATE, ""))

    def _usable(self, secret: Object, wanted_users: list[WantedUser]) -> bool:
        """Of Secrets with the name of our own ones only those that we made: another one may be a former object's."""
        ours = {w.secret: w.name for w in wanted_users if w.own_secret}
        name = secret["metadata"]["name"]
        if secret["metadata"].get("deletionTimestamp") is not None:
            return False
        return name not in ours or drift.owned_by(secret, self._owner_uid(ours[name]))

    # ---- the state

    async def load(self) -> AccessState:
        name = names.access_secret(self._name)
        secret = await self._called(self._api.get(SECRET, self._namespace, name))
        if secret is None:
            self._version = None
            return AccessState()
        if not drift.owned_by(secret, self._uid):
            raise StoreUnavailable(
                f"Secret {name} exists and is not of this cluster: if it is a former cluster's, it is deleted soon; "
                "otherwise delete it, or give the cluster another name"
            )
        self._version = secret["metadata"]["resourceVersion"]
        text = decoded(secret).get(STATE_KEY)
        if text is None:
            return AccessState()
        try:
            return AccessState.model_validate_json(text)
        except ValidationError as error:
            # The users' Secrets have their keys, so the state is made again; former keys of rotations are lost.
            self._events.record(
                "Warning", "AccessStateLost", f"Secret {name} cannot be read: {error.error_count()} errors"
            )
            return AccessState()

    async def save(self, state: AccessState) -> None:
        if self.cluster is None:
            raise StoreUnavailable("no spec is known yet")
        name = names.access_secret(self._name)
        data = encoded({STATE_KEY: state.model_dump_json()})
        if self._version is None:
            obj = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": names.metadata(self.cluster, name, COMPONENT),
                "type": "Opaque",
                "data": data,
            }
            written = await self._called(self._api.create(obj))
        else:
            # With its resource version: a state that another operator has written meanwhile stays.
            patch = {"metadata": {"resourceVersion": self._version}, "data": data}
            written = await self._called(self._api.merge(SECRET, self._namespace, name, patch))
        self._note(written)
        self._version = written["metadata"]["resourceVersion"]

    async def write_secret(self, name: str, content: Mapping[str, str]) -> None:
        if self.cluster is None:
            return
        own = {secret_name(self._name, ADMIN_NAME): COMPONENT}
        if proxies.wanted(self.cluster):
            own[secret_name(self._name, PROXY_NAME)] = names.PROXY
        meta = names.metadata(self.cluster, name, own.get(name, COMPONENT))
        user = next((u for u in self.users() if secret_name(self._name, u["metadata"]["name"]) == name), None)
        if user is not None:
            meta["ownerReferences"] = [_owner(user)]
        elif name not in own:
            return  # The user is gone.
        live = await self._called(self._api.get(SECRET, self._namespace, name))
        if live is not None and not drift.owned_by(live, meta["ownerReferences"][0]["uid"]):
            raise StoreUnavailable(
                f"Secret {name} exists and is of another object: if that is a former one, it is deleted soon; "
                "otherwise delete the Secret, or name it in spec.secret of the BrokerUser"
            )
        obj = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": encoded(content)}
        self._note(await self._called(self._api.apply(obj)))

    async def write_table(self, table: bytes) -> None:
        """Write the proxies' Secret, and bring it into their pods."""
        if self.cluster is None or not proxies.wanted(self.cluster):
            return
        name = names.proxy_table_secret(self._name)
        live = self._caches["Secret"].get(self._namespace, name)
        version = "" if live is None else live["metadata"]["resourceVersion"]
        if self._table is not table or self._table_version != version:
            if live is not None and not drift.owned_by(live, self._uid):
                raise StoreUnavailable(
                    f"Secret {name} exists and is of another object: if that is a former one, it is deleted soon; "
                    "otherwise delete it"
                )
            secret = proxies.table_secret(self.cluster, table)
            if len(table) > proxies.MAX_TABLE:
                raise StoreUnavailable(
                    f"the access table has {len(table)} bytes, and a Secret holds {proxies.MAX_TABLE}: proxies keep "
                    "the former one; write fewer rules, or rules with prefixes"
                )
            if live is None or drift.outdated(secret, live):
                live = await self._called(self._api.apply(secret))
                self._note(live)
            self._table, self._table_version = table, live["metadata"]["resourceVersion"]
        try:
            await mounted_files.refresh(self._api, self._caches, self._namespace, self._name)
        except (ApiError, ApiUnavailable) as error:
            raise StoreUnavailable(f"pods do not get the access table yet: {error}") from error

    def _owner_uid(self, user: str) -> str:
        if user in (ADMIN_NAME, PROXY_NAME):
            return self._uid
        resource = self._caches["BrokerUser"].get(self._namespace, user)
        return "" if resource is None else str(resource["metadata"]["uid"])

    def _note(self, written: Object) -> None:
        self._caches["Secret"].note(written)

    async def _called(self, call: Any) -> Any:
        try:
            return await call
        except (ApiError, ApiUnavailable) as error:
            raise StoreUnavailable(str(error)) from error

    # ---- the outcome

    async def report(self, results: Mapping[str, UserResult], in_force: Callable[[str], bool]) -> None:
        for obj in list(self.users()):
            name = obj["metadata"]["name"]
            status, reason, message = "False", "InvalidSpec", self._invalid.get(name, "")
            result = results.get(name)
            if not message and result is None:
                continue  # It came after the decision.
            if not message and result is not None:
                status, reason, message = _ready(result, in_force(name))
                if reason == "SecretNotUsable":
                    message += f" (a Secret needs the label {names.CLUSTER_LABEL}: {self._name} to be seen)"
            await self._show(obj, result, status, reason, message)

    async def _show(
        self, obj: Object, result: UserResult | None, status: Any, reason: str, message: str
    ) -> None:  # fmt: skip
        meta = obj["metadata"]
        name = meta["name"]
        # The watch may not have brought our own last write yet.
        shown: dict[str, Any] = self._shown.get(meta["uid"], obj.get("status") or {})
        former: dict[str, Any] = next((c for c in shown.get("conditions") or [] if c.get("type") == "Ready"), {})
        since = former.get("lastTransitionTime") if former.get("status") == status else None
        generation = meta.get("generation")
        condition = UserCondition(
            type="Ready", status=status, reason=reason, message=message[:2000], lastTransitionTime=since or utc(),
            observedGeneration=generation,
        )  # fmt: skip
        expires = None if result is None or result.old_key_expires is None else utc(int(result.old_key_expires * 1000))
        new = BrokerUserStatus(
            observedGeneration=generation,
            accessKey=str((obj.get("spec") or {}).get("accessKey") or name),
            superUser=(obj.get("spec") or {}).get("superUser") is True,
            secret="" if result is None else result.secret,
            keys=0 if result is None else result.keys,
            oldKeyExpires=expires,
            conditions=[condition],
        ).to_object()
        if _same(shown, new):
            return
        patch = {"status": merge_patch(shown, new)}
        try:
            await self._api.merge(BROKER_USER, self._namespace, name, patch, "status")
        except (ApiError, ApiUnavailable) as error:
            if not (isinstance(error, ApiError) and error.status == 404):
                raise StoreUnavailable(f"status of BrokerUser {name}: {error}") from error
        self._shown[meta["uid"]] = new
        if former.get("status") != status or former.get("reason") != reason:
            self._recorder(obj).record("Normal" if status == "True" else "Warning", reason, message)

    def note(self, kind: str, reason: str, message: str, user: str) -> None:
        obj = self._caches["BrokerUser"].get(self._namespace, user) if user else None
        recorder = self._events if obj is None else self._recorder(obj)
        recorder.record(kind, reason, message)

    def _recorder(self, obj: Object) -> EventRecorder:
        meta = obj["metadata"]
        if meta["uid"] not in self._recorders:
            self._recorders[meta["uid"]] = EventRecorder(
                self._api, self._namespace, meta["name"], meta["uid"], self._reporter, api_user.KIND
            )
        return self._recorders[meta["uid"]]

    async def close(self) -> None:
        for recorder in self._recorders.values():
            await recorder.close()

    def forget(self, uid: str) -> None:
        """Note that a BrokerUser is gone."""
        self._recorders.pop(uid, None)
        self._shown.pop(uid, None)


def stray_status(obj: Object) -> dict[str, Any] | None:
    """Return the status of a BrokerUser whose cluster does not exist; None: it has that status."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    before: dict[str, Any] = obj.get("status") or {}
    cluster = spec.get("cluster", "")
    message = f"there is no BrokerCluster {cluster} in namespace {meta.get('namespace')}: create it, or write another"
    condition = UserCondition(
        type="Ready", status="False", reason="ClusterNotFound", message=message, lastTransitionTime=utc(),
        observedGeneration=meta.get("generation"),
    )  # fmt: skip
    new = BrokerUserStatus(
        observedGeneration=meta.get("generation"),
        accessKey=str(spec.get("accessKey") or meta["name"]),
        superUser=spec.get("superUser") is True,
        conditions=[condition],
    ).to_object()
    return None if _same(before, new) else merge_patch(before, new)


def _ready(result: UserResult, in_force: bool) -> tuple[str, str, str]:
    if not result.accepted:
        return "False", result.reason, result.message
    if result.reason != "Accepted":
        return "False", result.reason, result.message
    if not in_force:
        return "False", "Waiting", "some members do not have the user as the spec says yet"
    return "True", "InForce", result.message or "every member that answers knows the user"


def _same(shown: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Equal besides the times of transitions."""

    def plain(status: Mapping[str, Any]) -> dict[str, Any]:
        conditions = [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in status.get("conditions") or []]
        return dict(status) | {"conditions": conditions}

    return plain(shown) == plain(new)


def _owner(user: Object) -> dict[str, Any]:
    """Kubernetes deletes the Secret together with the BrokerUser."""
    meta = user["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": api_user.KIND,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
