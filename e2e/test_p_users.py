"""Authentication as a new cluster has it: users by resource, a key that is rotated under load while operators die."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from gantry_broker.client import ClientError, Credentials, Producer
from gantry_operator.platforms.kubernetes.targets.target import KubeTarget
from kube import SYSTEM, Cluster, Figure, Load, apply, get, kubectl, unharmed, until

pytestmark = pytest.mark.alone

USER = {
    "apiVersion": "gantry.dev/v1alpha1",
    "kind": "BrokerUser",
    "metadata": {"name": "orders"},
    "spec": {
        "cluster": "demo",
        "rules": [
            {"type": "Topic", "name": "T-", "pattern": "Prefix", "actions": ["Pub", "Sub", "Get"]},
            {"type": "Group", "name": "e2e-check", "actions": ["Sub", "Get"]},
        ],
    },
}
SECRET = "demo-user-orders"


def ready(namespace: str, user: str = "orders") -> dict[str, str]:
    found = get(namespace, "bu", user)
    conditions: list[dict[str, str]] = (found.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == "Ready"), {})


@pytest.fixture
def orders(demo: Cluster) -> str:
    """A user by resource, in force. Its Secret."""
    apply(demo.namespace, json.dumps(USER))
    until("the user is in force", lambda: ready(demo.namespace).get("status") == "True", 30)
    return SECRET


async def sent(cluster: Cluster, credentials: Credentials | None, topic: str) -> str:
    """SEND_OK, or why not, through the API server."""
    async with (
        KubeTarget(namespace=cluster.namespace) as target,
        Producer(await target.name_servers(), credentials=credentials) as producer,
    ):
        try:
            return (await producer.send(topic, b"x", timeout=60)).status.name
        except ClientError as error:
            return str(error)


async def test_a_new_cluster_refuses_strangers(demo: Cluster) -> None:
    demo.wait_true("Secured", "Available")
    assert await sent(demo, demo.credentials(), "T-admin") == "SEND_OK"
    assert "NO_PERMISSION" in await sent(demo, None, "T-admin")
    assert "NO_PERMISSION" in await sent(demo, Credentials("admin", "no-key-of-anybody"), "T-admin")


async def test_a_user_by_resource_may_do_what_its_rules_say(demo: Cluster, orders: str) -> None:
    credentials = demo.credentials(orders)
    assert await sent(demo, credentials, "T-orders") == "SEND_OK"
    assert "NO_PERMISSION" in await sent(demo, credentials, "another")
    columns = ["orders", "demo", "orders", "false", "True"]
    until("one line shows it", lambda: kubectl(
        "-n", demo.namespace, "get", "bu", "orders", "--no-headers").split()[:5] == columns)  # fmt: skip
    assert credentials.secret_key not in kubectl("-n", demo.namespace, "get", "bu,bc,cm,events", "-o", "yaml")


@pytest.mark.usefixtures("orders")
def test_bad_users_are_refused_at_apply(demo: Cluster) -> None:
    rule = {"type": "Topic", "name": "x", "actions": ["Pub"]}
    bad = {
        "name is missing": {"rules": [rule | {"name": ""}]},
        "spec.rules[0].type": {"rules": [rule | {"type": "Queue"}]},
        "spec.rules[0].sources[0]": {"rules": [rule | {"sources": ["10.0.0.0/33"]}]},
        "168h or less": {"rotation": {"overlap": "200h"}},
        "spec.accessKey": {"accessKey": "a b"},
        "unknown field": {"superuser": True},
    }
    for words, spec in bad.items():
        user = USER | {"metadata": {"name": "bad"}, "spec": {"cluster": "demo", **spec}}
        with pytest.raises(AssertionError) as refused:
            apply(demo.namespace, json.dumps(user))
        assert words in str(refused.value)
    with pytest.raises(AssertionError, match="cluster cannot be changed"):
        kubectl("-n", demo.namespace, "patch", "bu", "orders", "--type", "merge", "-p", '{"spec":{"cluster":"x"}}')


def test_a_key_is_rotated_under_load_while_operators_die(demo: Cluster, orders: str, figure: Figure) -> None:
    before = demo.credentials(orders)
    old = Load(demo, "old-key", senders=2, secret=orders)
    kubectl("-n", demo.namespace, "annotate", "bu", "orders", "gantry.dev/rotate=e2e", "--overwrite")
    kubectl(
        "-n", SYSTEM, "delete", "pods", "-l", "app.kubernetes.io/name=gantry-operator", "--grace-period=0", "--force",
        "--wait=false",
    )  # fmt: skip
    until("the Secret has another key", lambda: demo.credentials(orders).secret_key != before.secret_key, 90)
    new = Load(demo, "new-key", senders=2, secret=orders)
    # A failover with both keys in use.
    epoch = demo.epoch()
    kubectl("-n", demo.namespace, "delete", "pod", demo.master_name(), "--wait=false")
    until("it leads in another epoch", lambda: demo.epoch() > epoch, 120)
    demo.wait_running()
    results = {"old key": old.stop(), "new key": new.stop()}
    figure("a key rotated under load, operators killed, a master replaced", results)
    for result in results.values():
        unharmed(result)

    def both() -> bool:
        status = get(demo.namespace, "bu", "orders")["status"]
        return status["keys"] == 2 and bool(status["oldKeyExpires"])

    until("the status has both keys", both)


async def test_a_deleted_user_is_refused_and_its_secret_goes(demo: Cluster, orders: str) -> None:
    credentials = demo.credentials(orders)
    kubectl("-n", demo.namespace, "delete", "bu", "orders")
    deadline = time.monotonic() + 180
    while (said := await sent(demo, credentials, "T-orders")) == "SEND_OK" and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    assert "NO_PERMISSION" in said
    until("its Secret is gone", lambda: SECRET not in kubectl("-n", demo.namespace, "get", "secrets"), 60)
