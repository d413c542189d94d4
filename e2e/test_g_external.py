"""Clients outside Kubernetes get addresses that they can reach; clients inside get inner ones. Ours and RocketMQ's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_broker.client import Admin, Producer
from kube import ROOT, Cluster, Host, Load, Lost, TooLate, apply, example, get, kubectl, unharmed, until
from rig import java

JAVA_IMAGE = os.environ.get("E2E_JAVA_IMAGE", "")
"""Made by e2e/run from client/Dockerfile.java where Java and Maven are."""
COUNT = 2_000
READ_S = 300
"""Seconds after which messages that are not read count as lost."""
MAIN = "dev.gantry.interop.Driver"
LATE = {"FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}
"""Answers to a send that was stored, whose copies were late."""


@pytest.fixture(scope="module")
def outside(namespace: str) -> Cluster:
    """examples/external.yaml, with the address of a node as its host, for clients in clear text without a key."""
    document = yaml.safe_load(example("external.yaml"))
    document["spec"]["external"]["unprotected"] = True
    document["spec"]["security"] = {"authentication": "Disabled"}
    addresses = get("default", "nodes")[0]["status"]["addresses"]
    document["spec"]["external"]["host"] = next(a["address"] for a in addresses if a["type"] == "InternalIP")
    apply(namespace, yaml.safe_dump(document))
    cluster = Cluster(namespace, document["metadata"]["name"])
    cluster.wait_running()
    return cluster


def external(cluster: Cluster) -> str:
    return str(cluster.status()["addresses"]["external"])


@pytest.fixture(scope="module")
def address(outside: Cluster, any_host: Host) -> str:
    """Its address for clients outside of the cluster, as this machine sees it."""
    found = external(outside)
    name, port = found.split(";")[0].rsplit(":", 1)
    refused: list[OSError] = []

    def reached() -> bool:
        try:
            socket.create_connection((name, int(port)), 10).close()
        except OSError as error:
            refused.append(error)
            return False
        return True

    if not any_host.available and not reached():
        pytest.skip(
            f"this machine cannot connect to {found}, a node of the cluster that KUBECONFIG names ({refused[-1]}): "
            "run it where the nodes can be reached, or without KUBECONFIG"
        )
    until(f"{found} is reached", reached, 60, 1)
    return found


async def test_a_client_on_the_host_uses_the_external_listener(outside: Cluster, address: str) -> None:
    node = address.split(":")[0]
    async with Producer(address) as producer:
        results = [await producer.send("Outside", f"message {i}".encode(), timeout=60) for i in range(50)]
    assert {r.status.name for r in results} == {"SEND_OK"}
    async with Admin(address) as admin:
        masters = await admin.masters()
    assert all(a.startswith(f"{node}:") for a in masters.values()), masters


def test_a_client_inside_gets_inner_addresses(outside: Cluster) -> None:
    result = Load(outside, "inner", 4).result()
    unharmed(result)
    services = get(outside.namespace, "services", selector="gantry.dev/external=true")
    assert {s["spec"]["type"] for s in services} == {"NodePort"}


# ---- RocketMQ's own Java client, sends and reads


def sends(name_servers: str, topic: str) -> list[str]:
    """With a long limit for a send: after the client's 3 s a busy machine gets the message a second time."""
    return ["produce", "--namesrv", name_servers, "--topic", topic, "--run", topic, "--count", str(COUNT),
            "--threads", "4", "--timeout-ms", "30000"]  # fmt: skip


def reads(name_servers: str, topic: str) -> list[str]:
    return ["consume", "--namesrv", name_servers, "--topic", topic, "--run", topic, "--group", f"read-{topic}",
            "--count", str(COUNT), "--timeout-s", str(READ_S)]  # fmt: skip


def summary(output: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    found: dict[str, Any] | None = next((line for line in lines if line["event"] == "summary"), None)
    if found is None:
        raise TooLate(f"the client ended before its work was done: {output}")
    return found


def check_sent_and_read(sent: dict[str, Any], read: dict[str, Any]) -> None:
    if sent["errors"] or sent["statuses"].keys() & LATE:
        raise TooLate(f"failed sends, or a follower that was late: {sent}")
    assert sent["statuses"] == {"SEND_OK": COUNT}, sent
    if read["unique"] < COUNT:
        raise Lost(str(read))
    assert (read["unique"], read["strangers"], read["digest"]) == (COUNT, 0, sent["digest"]), read
    if read["repeated"]:
        raise TooLate(f"a message comes again after an answer that was late: {read}")


def in_a_pod(cluster: Cluster, name: str, version: str, words: list[str]) -> dict[str, Any]:
    command = ["java", "-Xmx256m", *java.JVM_OPENS, "-Drocketmq.client.logRoot=/tmp", "-Duser.home=/tmp"]
    container = {
        "name": "java",
        "image": JAVA_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": [*command, "-cp", f"/opt/driver{version}/*", MAIN, *words],
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    apply(cluster.namespace, json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))

    def ended() -> bool:
        return get(cluster.namespace, "pod", name)["status"]["phase"] in ("Succeeded", "Failed")

    until(f"{name} ends", ended, READ_S + 60)
    output = kubectl("-n", cluster.namespace, "logs", name)
    kubectl("-n", cluster.namespace, "delete", "pod", name, "--wait=false")
    return summary(output)


@pytest.mark.parametrize("version", ["49", "55"])
def test_the_java_client_in_a_pod(outside: Cluster, version: str) -> None:
    if not JAVA_IMAGE:
        pytest.skip(f"e2e/run made no image of RocketMQ's Java client: {java.INSTALL}")
    servers, topic = outside.name_servers, f"JavaInside{version}"
    sent = in_a_pod(outside, f"java-sends-{version}", version, sends(servers, topic))
    read = in_a_pod(outside, f"java-reads-{version}", version, reads(servers, topic))
    check_sent_and_read(sent, read)


@pytest.mark.parametrize("version", ["49", "55"])
def test_the_java_client_outside(address: str, version: str, tmp_path: Path) -> None:
    try:
        java.build()
    except java.JavaMissing as missing:
        pytest.skip(f"the Java client outside of the cluster is not tested here: {missing}")

    def on_the_host(words: list[str]) -> dict[str, Any]:
        flags = [f"-Drocketmq.client.logRoot={tmp_path}", f"-Duser.home={tmp_path}"]
        command = java.command(f"driver{version}", MAIN, *words, flags=flags)
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=READ_S + 240, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return summary(done.stdout)

    servers, topic = address, f"JavaOutside{version}"
    check_sent_and_read(on_the_host(sends(servers, topic)), on_the_host(reads(servers, topic)))


# ---- load balancers: examples/load-balancer.yaml. Without a provider, the test writes their addresses.


def test_load_balancers_are_waited_for_and_then_given_out(namespace: str) -> None:
    apply(namespace, example("load-balancer.yaml"))
    cluster = Cluster(namespace, "public")

    def made() -> list[dict[str, Any]]:
        found = get(namespace, "services", selector="gantry.dev/external=true,gantry.dev/cluster=public")
        return found if len(found) == 2 + 1 + 3 else []

    services = until("one for each NameServer, the group and each member", made, 30)
    for service in services:
        assert service["spec"]["type"] == "LoadBalancer"
        assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
        assert service["metadata"]["annotations"]["service.beta.kubernetes.io/aws-load-balancer-type"] == "nlb"
    pending = [s for s in services if not s.get("status", {}).get("loadBalancer", {}).get("ingress")]
    if pending:
        waits = until("it names the missing addresses", lambda: cluster.condition("Progressing")["message"], 30)
        assert "public" in str(waits)
        assert not cluster.pods(), "brokers start once their addresses are known"
    for number, service in enumerate(pending):
        status = {"status": {"loadBalancer": {"ingress": [{"ip": f"192.0.2.{number + 1}"}]}}}
        kubectl("-n", namespace, "patch", "service", service["metadata"]["name"], "--subresource=status",
                "--type=merge", "-p", json.dumps(status))  # fmt: skip
    cluster.wait_running()
    names = external(cluster).split(";")
    assert names == [f"public-namesrv-{i}.mq.example.com:9876" for i in range(len(names))], names
    config = json.loads(get(namespace, "configmap", "public-a")["data"]["public-a-0.json"])
    assert config["listener_addresses"]["external"]["group"] == "public-a.mq.example.com:10911"
    kubectl("-n", namespace, "delete", "bc", "public")
