"""Broker groups come and go under load: a new one takes its share, and one that left the spec drains and is removed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kube import Cluster, Figure, Load, apply, example, get, kubectl, unharmed, until


def spec(*groups: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"brokerGroups": list(groups)}}


A = {"name": "a", "members": 2}
B = {
    "name": "b",
    "members": 1,
    "resources": {"requests": {"cpu": "20m", "memory": "200Mi"}, "limits": {"memory": "700Mi"}},
    "storage": {"labels": {"backup": "daily"}, "annotations": {"example.com/owner": "team"}},
}
PLAIN_B = {key: value for key, value in B.items() if key != "storage"}
C = {"name": "c", "members": 1}


@pytest.fixture(scope="module")
def cluster(namespace: str) -> Cluster:
    text = example("quickstart.yaml").replace(
        "    - name: a\n      members: 3\n", "    - {name: a, members: 2}\n    - {name: b, members: 1}\n"
    )
    apply(namespace, text)
    found = Cluster(namespace)
    found.patch({"spec": {"reclaim": "Delete"}})
    found.wait_running(members=3)
    return found


@pytest.fixture(scope="module")
def load(cluster: Cluster) -> Load:
    return Load(cluster, "moving", senders=2, script="moving.py")


def rows(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in cluster.status().get("groups", [])}


def grouped(cluster: Cluster, *groups: dict[str, Any]) -> dict[str, Any]:
    """The status, once the cluster has these groups and no other."""
    cluster.patch(spec(*groups))
    cluster.wait_running(members=sum(group["members"] for group in groups))
    names = {group["name"] for group in groups}
    until("the groups are those", lambda: rows(cluster).keys() == names, 180)
    return cluster.wait_running()


def test_settings_of_one_group(cluster: Cluster, load: Load) -> None:
    cluster.patch(spec(A, B))

    def limits() -> dict[str, Any] | None:
        found = [pod["spec"]["containers"][0]["resources"] for pod in cluster.pods("gantry.dev/group=b")]
        return found[0] if [r["limits"]["memory"] for r in found] == ["700Mi"] else None

    assert until("its pod has them", limits, 120)["requests"]["memory"] == "200Mi"

    def claim() -> dict[str, Any]:
        found: dict[str, Any] = get(cluster.namespace, "pvc", "data-demo-b-0")["metadata"]
        return found

    until("its claim has the label", lambda: claim()["labels"].get("backup") == "daily", 30)
    assert claim()["annotations"]["example.com/owner"] == "team"
    cluster.wait_running(members=3)
    cluster.patch(spec(A, PLAIN_B))
    until("the label is gone", lambda: "backup" not in claim()["labels"], 120)
    cluster.wait_running(members=3)


def test_a_new_group_takes_its_share(cluster: Cluster, load: Load, figure: Figure) -> None:
    grouped(cluster, A, PLAIN_B)
    begun = time.monotonic()
    cluster.patch(spec(A, PLAIN_B, C))
    cluster.wait_running(members=4)
    ready = time.monotonic()
    # The rate is that of a minute, so it shows the first messages at once.
    until("it takes messages", lambda: rows(cluster)["c"]["messagesIn"] > 1, 60)
    figure("a new group takes messages, s after the cluster is ready", round(time.monotonic() - ready, 1))
    figure("a new group takes messages, s after the change", round(time.monotonic() - begun, 1))
    assert any(e["reason"] == "GroupExtended" for e in cluster.events())


def test_a_group_drains_also_while_its_master_fails(cluster: Cluster, load: Load, figure: Figure) -> None:
    grouped(cluster, A, PLAIN_B, C)
    begun = time.monotonic()
    cluster.patch(spec(PLAIN_B, C))
    until("it closes", lambda: rows(cluster)["a"]["drain"]["phase"] == "Closing", 60)
    cluster.wait_true("Draining", "Available")
    old = cluster.master_name()
    kubectl("-n", cluster.namespace, "delete", "pod", old, "--grace-period=0", "--force")
    cluster.wait_other_master(old)
    until("it is gone", lambda: "a" not in rows(cluster) and not cluster.pods("gantry.dev/group=a"), 180)
    figure("a group is drained and removed, s", round(time.monotonic() - begun, 1))

    def left() -> list[str]:
        kinds = ("statefulset", "lease", "pvc", "svc", "configmap", "pdb")
        return [
            f"{kind}/{o['metadata']['name']}"
            for kind in kinds
            for o in get(cluster.namespace, kind, selector="gantry.dev/group=a")
        ]

    until("nothing of it is left", lambda: not left(), 60)
    cluster.wait_running(members=2)
    until("the condition is false", lambda: cluster.condition("Draining")["status"] == "False", 30)


def test_the_name_is_used_again(cluster: Cluster, load: Load, figure: Figure) -> None:
    grouped(cluster, PLAIN_B, C)
    grouped(cluster, {"name": "a", "members": 1}, PLAIN_B, C)
    cluster.first_epoch()
    result = load.stop()
    figure("load while groups come and go", result)
    unharmed(result)
    assert result["sentTo"]["c"] > 0
