"""BrokerUsers over an API server in memory: Secrets, status and events, and an operator that ends at any step."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from gantry_operator.access.state import AccessState
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.user import BrokerUser
from gantry_operator.cluster import access_control
from gantry_operator.cluster.access_control import AccessControl
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import KINDS
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.resources.users import KubernetesAccessStore, decoded, encoded
from gantry_operator.platforms.kubernetes.targets.users import TargetUsers, UserError

from tests.cluster.test_access_control import Member
from tests.kubernetes.fake_api import FakeApi, WritesLeft
from tests.support.present import present
from tests.support.running import running, until

CLUSTER = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}])
CLUSTER.metadata.uid = "cluster-uid"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "LOOK_S", 0.01)
    monkeypatch.setattr(access_control, "AGAIN_S", 0.03)
    monkeypatch.setattr(access_control, "SECRETS_AFTER_S", 0.1)


class Rig:
    """An operator's part for users, with two members."""

    def __init__(self, fake: FakeApi) -> None:
        self.fake = fake
        self.api = fake.api
        self.now = 1_700_000_000.0
        self.members = {n: Member(n, []) for n in ("demo-a-0", "demo-a-1")}
        self.store: KubernetesAccessStore = None  # type: ignore[assignment]
        self.control: AccessControl = None  # type: ignore[assignment]

    def put_user(self, name: str, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        obj = BrokerUser.make(name, "demo", "mq", **spec).model_dump(mode="json", exclude={"status"}, exclude_none=True)
        known = self.fake.get("BrokerUser", name)
        obj["metadata"] = {"name": name, "namespace": "mq", "annotations": annotations or {}}
        obj["metadata"]["generation"] = 1 if known is None else known["metadata"].get("generation", 1) + 1
        obj["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        if known is not None and "status" in known:
            obj["status"] = known["status"]
        return self.fake.put(obj)

    def put_secret(self, name: str, content: dict[str, str], labelled: bool = True) -> None:
        labels = {names.CLUSTER_LABEL: "demo"} if labelled else {}
        meta = {"name": name, "namespace": "mq", "labels": labels}
        self.fake.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": encoded(content)})

    def secret(self, name: str) -> dict[str, str]:
        found = self.fake.get("Secret", name)
        return {} if found is None else decoded(found)

    def ready(self, name: str) -> dict[str, Any]:
        found = self.fake.get("BrokerUser", name)
        conditions = ((found or {}).get("status") or {}).get("conditions") or [{}]
        ready: dict[str, Any] = conditions[0]
        return ready

    def status(self, name: str) -> dict[str, Any]:
        return (self.fake.get("BrokerUser", name) or {}).get("status") or {}

    def table(self, member: str = "demo-a-0") -> dict[str, list[str]]:
        """Keys by AccessKey."""
        return {u["name"]: u["keys"] for u in self.members[member].table.get("users", [])}

    def reasons(self, about: str = "BrokerUser") -> list[str]:
        found = [o for (k, _, _), o in self.fake.objects.items() if k == "Event"]
        return [o["reason"] for o in found if o["involvedObject"]["kind"] == about]

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Rig]:
        def answer(request: httpx.Request) -> httpx.Response:
            return self.members[request.url.host].answer(request)

        def heard(event: str, obj: Any) -> None:
            self.control.wake()

        events = EventRecorder(self.api, "mq", "demo", "cluster-uid", "op-0")
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            caches = {
                k: InformerCache(self.api, KINDS[k], (), "" if k == "BrokerUser" else names.CLUSTER_LABEL, heard)
                for k in ("BrokerUser", "Secret")
            }
            self.store = KubernetesAccessStore(self.api, caches, ("mq", "demo", "cluster-uid"), events, "op-0")
            self.store.cluster = CLUSTER
            self.control = AccessControl(
                self.store, lambda: self.members.values(), client, lambda: self.now  # type: ignore[arg-type,return-value]
            )  # fmt: skip
            async with running(*caches.values(), self.control):
                yield self
            await self.store.close()
            await events.close()


@pytest.fixture
def rig(fake: FakeApi) -> Rig:
    return Rig(fake)


async def test_a_user_gets_a_secret_a_place_in_the_table_and_a_status(rig: Rig) -> None:
    user = rig.put_user("orders", accessKey="shop-orders")
    async with rig.operator():
        await until(lambda: rig.ready("orders").get("status") == "True")
        secret = present(rig.fake.get("Secret", "demo-user-orders"))
        assert secret["metadata"]["labels"][names.CLUSTER_LABEL] == "demo"
        (owner,) = secret["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("BrokerUser", user["metadata"]["uid"])
        key = decoded(secret)["secretKey"]
        assert decoded(secret) == {"accessKey": "shop-orders", "secretKey": key}
        assert rig.table()["shop-orders"] == [key]
        status = rig.status("orders")
        assert (status["accessKey"], status["secret"], status["keys"]) == ("shop-orders", "demo-user-orders", 1)
        assert status["observedGeneration"] == 1
        assert rig.secret("demo-admin-user")["accessKey"] == "admin"
        admin = present(rig.fake.get("Secret", "demo-admin-user"))
        assert admin["metadata"]["ownerReferences"][0]["uid"] == "cluster-uid"
        await until(lambda: "InForce" in rig.reasons())
        for (kind, _, _), obj in rig.fake.objects.items():
            if kind != "Secret":
                assert key not in json.dumps(obj)


async def test_nothing_is_written_again_without_a_change(rig: Rig) -> None:
    rig.put_user("orders")
    async with rig.operator():
        await until(lambda: rig.ready("orders").get("status") == "True")
        await asyncio.sleep(0.1)
        rig.fake.log.clear()
        rig.control.wake()
        await asyncio.sleep(0.3)
        assert rig.fake.log == []


async def test_the_annotation_rotates_the_key(rig: Rig) -> None:
    rig.put_user("orders")
    async with rig.operator():
        await until(lambda: rig.ready("orders").get("status") == "True")
        first = rig.secret("demo-user-orders")["secretKey"]
        rig.put_user("orders", {"gantry.dev/rotate": "1"})
        await until(lambda: rig.secret("demo-user-orders")["secretKey"] != first)
        second = rig.secret("demo-user-orders")["secretKey"]
        assert rig.table()["orders"] == [second, first]
        await until(lambda: rig.status("orders")["keys"] == 2)
        assert rig.status("orders")["superUser"] is False
        assert rig.status("orders")["oldKeyExpires"] == "2023-11-14T23:13:20Z"
        await until(lambda: "KeyRotated" in rig.reasons())
        rig.now += 3600
        await until(lambda: rig.table()["orders"] == [second])
        await until(lambda: "oldKeyExpires" not in rig.status("orders"))


async def test_the_super_users_key_is_rotated_at_its_secret(rig: Rig) -> None:
    async with rig.operator():
        await until(lambda: rig.secret("demo-admin-user"))
        first = rig.secret("demo-admin-user")["secretKey"]
        await TargetUsers(rig.api, "mq", "demo").rotate("admin", "1")
        await until(lambda: rig.secret("demo-admin-user")["secretKey"] != first)
        assert rig.table()["admin"] == [rig.secret("demo-admin-user")["secretKey"], first]


async def test_a_named_secret_is_read_and_a_change_of_it_is_a_rotation(rig: Rig) -> None:
    rig.put_user("orders", secret={"name": "orders-key"})
    async with rig.operator():
        await until(lambda: rig.ready("orders").get("reason") == "SecretNotUsable")
        assert "gantry.dev/cluster: demo" in rig.ready("orders")["message"]
        assert "orders" not in rig.table()
        rig.put_secret("orders-key", {"secretKey": "from-the-owner\n"})
        await until(lambda: rig.ready("orders").get("status") == "True")
        assert rig.table()["orders"] == ["from-the-owner"]
        rig.put_secret("orders-key", {"secretKey": "another-of-the-owner"})
        await until(lambda: rig.table()["orders"] == ["another-of-the-owner", "from-the-owner"])
        rig.fake.remove("Secret", "mq", "orders-key")
        await until(lambda: rig.ready("orders").get("reason") == "SecretNotUsable")
        assert rig.table()["orders"][0] == "another-of-the-owner", "the last key stays valid"
        assert rig.fake.get("Secret", "orders-key") is None, "it is its owner's"


async def test_the_second_user_with_an_access_key_is_refused(rig: Rig) -> None:
    rig.put_user("orders")
    async with rig.operator():
        await until(lambda: rig.ready("orders").get("status") == "True")
        rig.put_user("aaa", accessKey="orders")
        await until(lambda: rig.ready("aaa").get("reason") == "AccessKeyTaken")
        assert "belongs to BrokerUser orders" in rig.ready("aaa")["message"]
        assert rig.ready("orders")["status"] == "True"
        rig.fake.remove("BrokerUser", "mq", "orders")
        await until(lambda: rig.ready("aaa").get("status") == "True")


async def test_a_deleted_user_leaves_the_table(rig: Rig) -> None:
    rig.put_user("orders")
    async with rig.operator():
        await until(lambda: rig.ready("orders").get("status") == "True")
        rig.fake.remove("BrokerUser", "mq", "orders")
        await until(lambda: "orders" not in rig.table())
        assert "orders" not in rig.table("demo-a-1")


async def test_a_user_that_cannot_be_read_says_so(rig: Rig) -> None:
    user = rig.put_user("orders")
    rig.fake.put(user | {"spec": user["spec"] | {"enabled": "perhaps"}})
    async with rig.operator():
        await until(lambda: rig.ready("orders").get("reason") == "InvalidSpec")
        assert "spec.enabled" in rig.ready("orders")["message"]


async def test_a_secret_of_somebody_else_is_left_alone(rig: Rig) -> None:
    rig.put_secret("demo-user-orders", {"secretKey": "of-somebody-else"})
    rig.put_user("orders")
    rig.put_user("zebra")
    async with rig.operator():
        await until(lambda: "is of another object" in rig.control.problem)
        assert rig.secret("demo-user-orders") == {"secretKey": "of-somebody-else"}
        assert "of-somebody-else" not in str(rig.table())
        await until(lambda: rig.secret("demo-user-zebra"))
        rig.fake.remove("Secret", "mq", "demo-user-orders")
        await until(lambda: rig.secret("demo-user-orders").get("secretKey") in rig.table()["orders"])
        await until(lambda: not rig.control.problem)


async def test_the_state_of_a_former_cluster_is_not_used(rig: Rig) -> None:
    meta = {"name": "demo-access", "namespace": "mq", "ownerReferences": [{"uid": "a former one"}]}
    state = base64.b64encode(AccessState(version=7).model_dump_json().encode()).decode()
    rig.fake.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"state.json": state}})
    async with rig.operator():
        await until(lambda: "not of this cluster" in rig.control.problem)
        assert rig.table() == {}
        rig.fake.remove("Secret", "mq", "demo-access")
        await until(lambda: "admin" in rig.table())


async def test_a_state_that_another_operator_wrote_is_not_overwritten(rig: Rig) -> None:
    async with rig.operator():
        await until(lambda: rig.secret("demo-admin-user"))
        live = present(rig.fake.get("Secret", "demo-access"))
        other = json.loads(decoded(live)["state.json"]) | {"version": 40}
        rig.fake.put(live | {"data": encoded({"state.json": json.dumps(other)})})
        with pytest.raises(StoreUnavailable):
            await rig.store.save(AccessState(version=2))
        rig.put_user("orders")
        await until(lambda: "orders" in rig.table())
        assert rig.members["demo-a-0"].table["version"] > 40


@pytest.mark.parametrize("steps", range(14))
async def test_an_operator_that_ends_after_any_request_is_followed_by_one_that_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The first operator makes `steps` requests and none after them. Keys that a client may have read stay valid."""
    rig.put_user("orders")
    rig.put_user("other", {"gantry.dev/rotate": "1"})
    writes = WritesLeft(rig.api, monkeypatch, steps)
    async with rig.operator():
        await until(lambda: writes.left == 0 or rig.ready("other").get("status") == "True")
        await asyncio.sleep(0.05)
        rig.put_user("orders", {"gantry.dev/rotate": "1"})
        await asyncio.sleep(0.1)
    readable = {n: rig.secret(f"demo-user-{n}").get("secretKey") for n in ("orders", "other")}
    writes.left = 10_000
    async with rig.operator():
        for name in ("orders", "other"):
            await until(lambda name=name: rig.ready(name).get("status") == "True")
        await until(lambda: rig.secret("demo-user-orders")["secretKey"] == rig.table()["orders"][0])
        for name, key in readable.items():
            assert rig.secret(f"demo-user-{name}")["secretKey"] == rig.table()[name][0]
            assert key is None or key in rig.table()[name], f"a client of {name} has this key"
        assert rig.table() == rig.table("demo-a-1")


async def test_the_command_makes_and_shows_users(rig: Rig) -> None:
    users = TargetUsers(rig.api, "mq", "demo")
    async with rig.operator():
        await users.create(BrokerUser.make("orders", "demo", "mq"))
        await until(lambda: rig.ready("orders").get("status") == "True")
        assert (await users.key("orders"))[0] == "orders"
        assert await users.key_place("orders") == "Secret demo-user-orders (accessKey, secretKey)"
        assert [u["metadata"]["name"] for u in await users.list()] == ["orders"]
        with pytest.raises(UserError, match="exists already"):
            await users.create(BrokerUser.make("orders", "demo", "mq"))
        await users.put_secret("imported", {"secretKey": "imported-key"})
        await users.create(BrokerUser.make("acl", "demo", "mq", secret={"name": "imported"}))
        await until(lambda: rig.table().get("acl") == ["imported-key"])
        await users.delete("orders")
        await until(lambda: "orders" not in rig.table())
        with pytest.raises(UserError, match="there is no user orders of demo, but acl"):
            await users.rotate("orders", "1")
