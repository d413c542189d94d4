"""Bad manifests are refused with a message that names the field, and no running object changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kube import Cluster, CommandFailed, api, apply, example, get, kubectl, storage_class, until, with_storage

from tests.api import drawn_manifests

DRAWN = 250
"""Drawn manifests."""


def changed(**spec: Any) -> str:
    document = yaml.safe_load(example("quickstart.yaml"))
    document["spec"].update(spec)
    return yaml.safe_dump(document)


GROUP_A = {"name": "a", "members": 3}
BAD = {
    "unknown field": (changed(replicaton="Sync"), "replicaton"),
    "unknown field within": (changed(broker={"deletewhen": "04"}), "deletewhen"),
    "not one of": (changed(replication="sync"), "spec.replication"),
    "changed mode": (changed(mode="Raft"), "mode cannot be changed"),
    "Raft of two": (
        changed(mode="Raft", brokerGroups=[{"name": "a", "members": 2}]).replace("name: demo", "name: other"),
        "members: 3 or more",
    ),
    "no group": (changed(brokerGroups=[]), "spec.brokerGroups"),
    "group name": (changed(brokerGroups=[GROUP_A, {"name": "B"}]), "spec.brokerGroups[1].name"),
    "reserved group name": (changed(brokerGroups=[GROUP_A, {"name": "master"}]), "name is reserved"),
    "same group twice": (changed(brokerGroups=[GROUP_A, GROUP_A]), "spec.brokerGroups[1]"),
    "no members": (changed(brokerGroups=[{"name": "a", "members": 0}]), "spec.brokerGroups[0].members"),
    "too many in sync": (changed(minInSyncReplicas=4), "at most the smallest brokerGroups[].members"),
    "reserved label": (changed(storage={"labels": {"gantry.dev/x": "mine"}}), "labels has a key that"),
    "drain": (changed(drain="Now"), "spec.drain"),
    "size": (changed(storage={"size": "10 GB"}), "spec.storage.size"),
    "no size": (changed(storage={"size": "0"}), "size is 0"),
    "misspelt resource": (changed(resources={"requests": {"memroy": "1Gi"}}), "requests has a resource that"),
    "shrunk volume": (changed(storage={"size": "1Gi"}), "size cannot shrink"),
    "another class": (changed(storage={"className": "other"}), "className cannot be changed"),
    "segment size": (changed(broker={"mappedFileSizeCommitLog": 65536}), "cannot be changed"),
    "quantity": (changed(resources={"limits": {"memory": "1 G"}}), "limits has a value that is no amount"),
    "requests above limits": (
        changed(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
        "lower requests or raise limits",
    ),
    "too short a detection": (changed(failover={"detectionTimeout": "1ms"}), "from 1500ms to 5m"),
    "number out of range": (changed(broker={"maxMessageSize": 1}), "spec.broker.maxMessageSize"),
    "wrong type": (changed(nameServers={"replicas": "two"}), "spec.nameServers.replicas"),
    "NodePort without host": (changed(external={"type": "NodePort"}), "host is missing"),
    "unknown braces": (changed(external={"type": "LoadBalancer", "host": "{pod}.x"}), "unknown field in braces"),
    "schedule": (changed(analytics={"schedule": "tomorrow"}), "spec.analytics.schedule"),
    "Spark setting": (changed(analytics={"sparkConf": {"shuffle": "8"}}), "spark."),
    "cluster name": (example("quickstart.yaml").replace("name: demo", "name: " + "d" * 33), "metadata.name"),
}


def refusal(cluster: Cluster, text: str) -> str:
    try:
        apply(cluster.namespace, text)
    except CommandFailed as refused:
        return str(refused)
    return "(accepted)"


def test_bad_manifests_change_nothing(demo: Cluster) -> None:
    before, generation = demo.uids(), demo.object()["metadata"]["generation"]
    wrong = [f"{kind}: {said}" for kind, (text, words) in BAD.items() if words not in (said := refusal(demo, text))]
    assert not wrong, "\n".join(wrong)
    assert demo.object()["metadata"]["generation"] == generation
    assert demo.uids() == before
    demo.wait_running()


def test_the_api_server_refuses_what_the_models_refuse(demo: Cluster) -> None:
    """Manifests that break each rule of the definitions, and others at the borders of what is right."""
    wrong, refused = [], 0
    for document in drawn_manifests.documents(DRAWN):
        document["metadata"]["name"] = document["metadata"]["name"].replace("demo", "another")
        models = drawn_manifests.verdict(document)
        server = api().refusal(demo.namespace, document)
        refused += bool(server)
        if bool(models) != bool(server) and not drawn_manifests.ONLY_MODELS.search(models):
            wrong.append(f"{document}: the models say {models!r}, the API server says {server!r}")
    assert not wrong, "\n".join(wrong)
    assert DRAWN / 4 < refused < DRAWN * 3 / 4


@pytest.fixture
def rigid() -> Iterator[str]:
    with storage_class("e2e-rigid", expands=False) as name:
        yield name


def test_a_refusal_that_only_the_operator_sees_becomes_a_condition(namespace: str, rigid: str) -> None:
    """A volume of this class cannot grow: the status names the field, and the brokers continue."""
    apply(namespace, with_storage("rigid", "1Gi", rigid))
    cluster = Cluster(namespace, "rigid")
    cluster.wait_running()
    before = cluster.uids()
    cluster.patch({"spec": {"storage": {"size": "2Gi"}}})
    said = until("the condition", lambda: (c := cluster.condition("Degraded"))["status"] == "True" and c["message"], 30)
    assert "spec.storage.size" in str(said)
    cluster.wait_true("Available")
    assert cluster.uids() == before
    kubectl("-n", namespace, "delete", "bc", "rigid")


def test_images_outside_the_charts_list_are_refused_and_change_nothing(demo: Cluster) -> None:
    """The author of a BrokerCluster cannot create arbitrary pods, neither by an image nor by Spark's settings."""
    before = demo.uids()
    account = {"spark.kubernetes.authenticate.driver.serviceAccountName": "default"}
    wrong = {"image": "evil.example/broker:1", "analytics": {"sparkConf": account}}
    demo.patch({"spec": wrong})
    said = until(
        "the condition", lambda: (c := demo.condition("Progressing"))["reason"] == "InvalidSpec" and c["message"], 30
    )
    assert "spec.image" in str(said)
    assert "image.allowed" in str(said)
    assert "serviceAccountName" in str(said)
    assert not [c for c in get(demo.namespace, "cronjob") if c["metadata"]["name"] == "demo-analytics"]
    assert demo.uids() == before
    demo.patch({"spec": {"image": None, "analytics": None}})
    demo.wait_running()
    assert demo.uids() == before
