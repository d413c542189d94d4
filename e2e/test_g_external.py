"""Clients outside Kubernetes get addresses that they can reach; clients inside get inner ones."""

from __future__ import annotations

import pytest
import yaml
from gantry_broker.client import Admin, Producer
from kube import Cluster, Host, Load, apply, example, get


@pytest.fixture(scope="module")
def outside(namespace: str) -> Cluster:
    """examples/external.yaml, with the address of a node as its host."""
    document = yaml.safe_load(example("external.yaml"))
    addresses = get("default", "nodes")[0]["status"]["addresses"]
    document["spec"]["external"]["host"] = next(a["address"] for a in addresses if a["type"] == "InternalIP")
    apply(namespace, yaml.safe_dump(document))
    cluster = Cluster(namespace, document["metadata"]["name"])
    cluster.wait_running()
    return cluster


async def test_a_client_on_the_host_uses_the_external_listener(outside: Cluster, host: Host) -> None:
    if not host.available:
        pytest.skip("the nodes' addresses may not be reachable from here")
    address = outside.status()["addresses"]["external"]
    node = address.split(":")[0]
    async with Producer(address) as producer:
        results = [await producer.send("Outside", f"message {i}".encode(), timeout=20) for i in range(50)]
    assert {r.status.name for r in results} == {"SEND_OK"}
    async with Admin(address) as admin:
        masters = await admin.masters()
    assert all(a.startswith(f"{node}:") for a in masters.values()), masters


def test_a_client_inside_gets_inner_addresses(outside: Cluster) -> None:
    result = Load(outside, "inner", 4).result()
    assert result["lost"] == result["errors"] == 0
    services = get(outside.namespace, "services", selector="gantry.dev/external=true")
    assert {s["spec"]["type"] for s in services} == {"NodePort"}
