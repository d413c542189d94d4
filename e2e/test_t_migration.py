"""A running Apache RocketMQ outside of Kubernetes moves to a cluster, by its resource alone."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube import SYSTEM, Cluster, CommandFailed, apply, get, kubectl, run, until
from rig import java, rocketmq
from rig.driver import Driver
from rig.processes import NamespaceUnavailable
from rig.target import Target

pytestmark = pytest.mark.alone

ADDRESS = "10.250.0.200"
"""Of the source, on the bridge of the nodes."""
BRIDGE = "kubehost"
FIRST_NODE = 11
"""The last number of the first node's address. The pods of node N are in 10.244.N.0/24."""
MESSAGES = 300
SETTINGS = {
    "brokerIP1": ADDRESS, "mappedFileSizeCommitLog": "1048576", "waitTimeMillsInSendQueue": "10000",
    "osPageCacheBusyTimeOutMills": "10000",
}  # fmt: skip
MANIFEST = {
    "apiVersion": "gantry.dev/v1alpha1",
    "kind": "BrokerCluster",
    "metadata": {"name": "moved"},
    "spec": {
        "brokerClusterName": "demo",
        "nameServers": {"replicas": 1},
        "brokerGroups": [{"name": "a", "brokerName": "demo-a", "members": 1}],
        "proxy": {"replicas": 0},
        "reclaim": "Delete",
        "storage": {"size": "1Gi"},
        "broker": {"mappedFileSizeCommitLog": 1 << 20},
        "bootstrap": {"fromRocketMQ": {"nameServers": [f"{ADDRESS}:9876"]}},
    },
}


@contextlib.contextmanager
def on_the_bridge(source: Target) -> Iterator[None]:
    """Give the source's network namespace an address that pods reach."""
    name, inside, outside = source.prefix[-1], f"ge{os.getpid()}", f"gx{os.getpid()}"
    run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
    try:
        run("ip", "link", "set", outside, "master", BRIDGE, "up")
        run(*source.prefix, "ip", "address", "add", f"{ADDRESS}/24", "dev", inside)
        run(*source.prefix, "ip", "link", "set", inside, "up")
        for node in get("default", "nodes"):
            address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
            number = int(address.rpartition(".")[2]) - FIRST_NODE + 1
            run(*source.prefix, "ip", "route", "add", f"10.244.{number}.0/24", "via", address)
        yield
    finally:
        run("ip", "link", "delete", outside, check=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if os.environ.get("E2E_HOST") != "scripts":
        pytest.skip(
            "a source beside the nodes needs their bridge: run it with the scripts for a local Kubernetes "
            "(E2E_KUBE_SCRIPTS)"
        )
    folder = tmp_path_factory.mktemp("rocketmq")
    try:
        java.build()
        with rocketmq.rocketmq(folder, SETTINGS, heap="256m", direct="256m") as found, on_the_bridge(found):
            yield found
    except (java.JavaMissing, NamespaceUnavailable) as error:
        pytest.skip(f"there is no Apache RocketMQ here: {error}")


def gantry(namespace: str, *words: str) -> str:
    program = Path(sys.executable).parent / "gantry"
    done = subprocess.run([program, *words, "-n", namespace], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        described = kubectl("-n", namespace, "describe", "bc")
        raise CommandFailed(f"{words}: {done.stdout}{done.stderr}{described}")
    return done.stdout


def status(namespace: str) -> dict[str, Any]:
    return dict(json.loads(gantry(namespace, "migrate", "status", "-o", "json")))


def shown(namespace: str) -> dict[str, Any]:
    """Return what the status of the resource says."""
    return dict((get(namespace, "bc", "moved").get("status") or {}).get("migration") or {})


def recorded(namespace: str) -> str:
    """The phase in the record, which needs no operator and no pod."""
    annotations = get(namespace, "bc", "moved")["metadata"].get("annotations") or {}
    return str(json.loads(annotations.get("gantry.dev/migration", "{}")).get("phase", ""))


def test_a_source_outside_is_followed_and_left(operator: None, namespace: str, source: Target, tmp_path: Path) -> None:
    clients = Driver(source, "49", "JSON", tmp_path / "driver.log")
    try:
        clients.mqadmin("updateTopic", "-c", "demo", "-t", "Orders", "-r", "4", "-w", "4")
        clients.run("produce", topic="Orders", count=MESSAGES, size=100, run="run")
        apply(namespace, json.dumps(MANIFEST))
        until("the copy follows", lambda: status(namespace)["groups"]["a"]["lag"] == 0, 120, 1.0)
        until("the resource says what to do", lambda: "migrate=cutover" in shown(namespace).get("next", ""), 60, 1.0)
        # By the resource alone. Its operators and its pod die in the middle, while the source's readers have no right.
        kubectl("-n", namespace, "annotate", "bc", "moved", "gantry.dev/migrate=cutover settle=15 timeout=300")
        until("consumers get nothing", lambda: recorded(namespace) == "readers-off", 60, 0.3)
        for where, what in ((SYSTEM, ["-l", "app.kubernetes.io/name=gantry-operator"]), (namespace, ["moved-a-0"])):
            kubectl("-n", where, "delete", "pods", *what, "--grace-period=0", "--force", "--wait=false")
        until("the cutover is done", lambda: recorded(namespace) == "done", 240, 1.0)
        cluster = Cluster(namespace, "moved")
        cluster.wait_running()
        until("the resource says that it is done", lambda: shown(namespace)["phase"] == "done", 60, 1.0)
        until("the condition ends", lambda: cluster.condition("Migrating")["status"] == "False")
        result = "gantry.dev/migrate-result"
        until("the request is answered", lambda: get(namespace, "bc", "moved")["metadata"]["annotations"][result])
        said = get(namespace, "bc", "moved")["metadata"]["annotations"][result]
        assert "done: Gantry leads" in said, said
        assert status(namespace)["phase"] == "done"
        read = gantry(namespace, "consume", "Orders", "--group", "check", "--count", str(MESSAGES), "--timeout", "120")
        assert len(read.splitlines()) == MESSAGES
        phases = {e["message"].split(":")[0] for e in cluster.events() if e["reason"] == "Migration"}
        assert {"readers-off", "writes-off", "finishing", "taking", "done"} <= phases
        assert f"moved-a-master.{namespace}.svc" in clients.mqadmin("clusterList"), "the source's NameServer knows it"
    finally:
        clients.close()
