"""`gantry plan`: the objects that a spec changes, and the pods that are replaced, in their order."""

from __future__ import annotations

import copy
from typing import Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes.api.pod_state import former_images
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.targets.preview import COMPARED, preview


def cluster(**spec: Any) -> BrokerCluster:
    made = BrokerCluster.make("demo", "mq", **({"brokerGroups": [{"name": "a", "members": 3}]} | spec))
    made.metadata.uid = "u"
    return made


def live(made: BrokerCluster, image: str = "broker:1") -> dict[tuple[str, str], Any]:
    objects = render(made, plan(made), OperatorSettings(image))
    return {(o["kind"], o["metadata"]["name"]): copy.deepcopy(o) for o in objects if o["kind"] in COMPARED}


def test_the_present_spec_changes_nothing() -> None:
    found = preview(cluster(), live(cluster()), "")
    assert found == {"changes": [], "replaced": [], "started": [], "stopped": [], "image": "broker:1"}


def test_a_setting_replaces_the_brokers_and_the_master_last() -> None:
    found = preview(cluster(broker={"transactionCheckMax": 3}), live(cluster()), "", ["demo-a-1"])
    assert found["replaced"] == ["demo-a-2", "demo-a-0", "demo-a-1"]
    assert {(c["kind"], c["name"], c["action"]) for c in found["changes"]} == {
        ("ConfigMap", "demo-a", "change"),
        ("StatefulSet", "demo-a", "change"),
    }


def test_what_needs_no_restart_replaces_nothing() -> None:
    for spec in ({"logLevel": "DEBUG"}, {"brokerGroups": [{"name": "a", "members": 4}]}, {"hibernate": True}):
        assert preview(cluster(**spec), live(cluster()), "")["replaced"] == []
    grown = preview(
        cluster(brokerGroups=[{"name": "a", "members": 4}, {"name": "b", "members": 1}]), live(cluster()), ""
    )
    assert grown["started"] == ["demo-a-3", "demo-b-0"]
    asleep = preview(cluster(hibernate=True), live(cluster()), "")
    assert len(asleep["stopped"]) == 5
    assert asleep["started"] == []


def test_another_number_of_name_servers_says_why_it_replaces_every_broker() -> None:
    found = preview(cluster(nameServers={"replicas": 3}), live(cluster()), "", ["demo-a-1"])
    assert (found["started"], found["replaced"]) == (["demo-namesrv-2"], ["demo-a-2", "demo-a-0", "demo-a-1"])
    assert "at its start at which ones it registers: every broker is replaced" in found["warnings"][0]
    fewer = preview(cluster(nameServers={"replicas": 1}), live(cluster()), "")
    assert fewer["warnings"] == found["warnings"]
    assert "warnings" not in preview(cluster(broker={"transactionCheckMax": 3}), live(cluster()), "")


def test_another_default_image_replaces_all_pods_but_not_those_of_a_cluster_with_its_own() -> None:
    assert len(preview(cluster(), live(cluster()), "broker:2")["replaced"]) == 5
    own = cluster(image="mine:1")
    assert preview(own, live(own), "broker:2")["replaced"] == []


def test_former_images_are_those_of_pods_of_an_old_revision() -> None:
    made = live(cluster())["StatefulSet", "demo-a"]
    made["status"] = {"updateRevision": "new"}

    def pod(revision: str, image: str) -> dict[str, Any]:
        meta = {"labels": {"controller-revision-hash": revision}}
        return {"metadata": meta, "spec": {"containers": [{"name": "broker", "image": image}]}}

    assert former_images([made], [pod("new", "mirror/broker:1")], "broker:1") == []
    assert former_images([made], [pod("old", "broker:0"), pod("new", "broker:1")], "broker:1") == ["broker:0"]
    assert former_images([made], [], "broker:2") == ["broker:1"]
