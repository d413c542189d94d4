"""Groups that left the spec, by their StatefulSets, and their removal by an operator that ends after each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import KINDS
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.members import leaving_groups
from gantry_operator.platforms.kubernetes.members.leaving_groups import GroupRemoval, running_cluster

from tests.kubernetes.fake_api import FakeApi

B = {"name": "b", "members": 2, "resources": {"limits": {"memory": "2Gi"}}, "storage": {"labels": {"x": "y"}}}


def cluster(*groups: dict[str, Any], **spec: Any) -> BrokerCluster:
    made = BrokerCluster.make("demo", "mq", brokerGroups=list(groups), **spec)
    made.metadata.uid = "u"
    return made


def sets_of(of: BrokerCluster) -> list[dict[str, Any]]:
    objects = render(of, plan(of), OperatorSettings("image"))
    return [o for o in objects if o["kind"] == "StatefulSet"]


def test_a_group_that_left_goes_on_as_it_was() -> None:
    before = cluster({"name": "a"}, B)
    now, problems = running_cluster(cluster({"name": "a"}), sets_of(before), [])
    assert problems == []
    assert [g.name for g in now.spec.brokerGroups] == ["a", "b"]
    assert now.spec.resources_of("b").limits == {"memory": "2Gi"}
    assert now.spec.storage_of("b").labels == {"x": "y"}
    old, new = ({s["metadata"]["name"]: s for s in sets_of(c)} for c in (before, now))
    assert old == new, "nothing is changed and no pod restarts"


def test_a_group_without_its_annotation_has_the_members_that_run() -> None:
    (live,) = (s for s in sets_of(cluster({"name": "a"}, B)) if s["metadata"]["name"] == "demo-b")
    del live["metadata"]["annotations"]
    now, _ = running_cluster(cluster({"name": "a"}), [live], [])
    assert [(g.name, g.members) for g in now.spec.brokerGroups] == [("a", 3), ("b", 2)]


def test_a_name_in_use_by_a_former_group_waits() -> None:
    wanted = cluster({"name": "a"}, B)
    sets = sets_of(wanted)
    for live in sets:
        if live["metadata"]["name"] == "demo-b":
            live["metadata"]["annotations"][leaving_groups.REMOVING] = "2026-01-01T00:00:00Z"
    now, problems = running_cluster(wanted, sets, [])
    assert [g.name for g in now.spec.brokerGroups] == ["a"]
    assert "once the former group" in problems[0]
    labels = {"gantry.dev/group": "b"}
    claim = {"metadata": {"name": "data-demo-b-0", "labels": labels, "annotations": {leaving_groups.DRAINED: "2026"}}}
    now, problems = running_cluster(wanted, [s for s in sets if s["metadata"]["name"] != "demo-b"], [claim])
    assert [g.name for g in now.spec.brokerGroups] == ["a"]
    assert "delete the claims data-demo-b-0" in problems[0]


class Cache:
    """The objects of the API server, without a delay."""

    def __init__(self, fake: FakeApi, kind: str) -> None:
        self._fake, self._kind = fake, kind

    def get(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self._fake.get(self._kind, name, namespace)

    def note(self, obj: Mapping[str, Any]) -> None:
        """Nothing is kept here."""


@pytest.mark.parametrize(
    ("reclaim", "component_of_b"), [("Delete", "certificates"), ("Retain", "certificates"), ("Retain", "of a user")]
)
async def test_a_removal_goes_on_after_each_step(reclaim: str, component_of_b: str) -> None:
    async with FakeApi() as fake:
        for obj in render(cluster({"name": "a"}, B), plan(cluster({"name": "a"}, B)), OperatorSettings("image")):
            fake.put(obj)
        for group in ("a", "b"):
            fake.put({"kind": "Lease", "metadata": {"name": f"demo-{group}", "namespace": "mq"}})
            for number in range(2):
                name = f"demo-{group}-{number}"
                fake.put({"kind": "Pod", "metadata": {"name": name, "namespace": "mq"}})
                fake.put({"kind": "PersistentVolumeClaim", "metadata": {"name": f"data-{name}", "namespace": "mq"}})
        for name, component in (("a", "certificates"), ("b", component_of_b)):
            labels = {names.CLUSTER_LABEL: "demo", names.COMPONENT_LABEL: component}
            fake.put({"kind": "Secret", "metadata": {"name": f"demo-{name}-tls", "namespace": "mq", "labels": labels}})
        caches: Any = {kind: Cache(fake, kind) for kind in KINDS}

        def another() -> GroupRemoval:
            return GroupRemoval(fake.api, caches, ("mq", "demo"), lambda: reclaim)

        fake.put({"kind": "BrokerCluster", "metadata": {"name": "demo", "namespace": "mq"}, "spec": {}})
        assert await another().begin_removal("b", another().mark("b"))
        live = fake.get("StatefulSet", "demo-b")
        assert live is not None
        assert leaving_groups.removing([live]) == ("b",)
        assert not await another().continue_removal("b")
        assert live is not None
        assert fake.get("StatefulSet", "demo-b")["spec"]["replicas"] == 0  # type: ignore[index]
        assert not await another().continue_removal("b")
        assert fake.get("Lease", "demo-b") is not None, "its record stays while a pod is left"
        for number in range(2):
            fake.remove("Pod", "mq", f"demo-b-{number}")
        assert not await another().continue_removal("b")
        assert await another().continue_removal("b")
        assert await another().continue_removal("b"), "a step may be repeated"
        assert fake.get("Lease", "demo-b") is None
        assert fake.get("StatefulSet", "demo-b") is None
        assert (fake.get("Secret", "demo-b-tls") is None) == (component_of_b == "certificates")
        assert fake.get("Secret", "demo-a-tls") is not None
        claim = fake.get("PersistentVolumeClaim", "data-demo-b-1")
        assert (claim is None) == (reclaim == "Delete")
        assert claim is None or leaving_groups.DRAINED in claim["metadata"]["annotations"]
        for kind, name in (("Lease", "demo-a"), ("StatefulSet", "demo-a"), ("PersistentVolumeClaim", "data-demo-a-0")):
            assert fake.get(kind, name) is not None


async def test_a_removal_does_not_begin_once_the_group_is_written_back() -> None:
    """Also by an operator that read its proof before, and comes late: the group has taken messages since."""
    async with FakeApi() as fake:
        for obj in render(cluster({"name": "a"}, B), plan(cluster({"name": "a"}, B)), OperatorSettings("image")):
            fake.put(obj)

        def spec_of(*groups: str) -> None:
            resource = {"kind": "BrokerCluster", "metadata": {"name": "demo", "namespace": "mq"}}
            fake.put(resource | {"spec": {"brokerGroups": [{"name": g} for g in groups]}})

        caches: Any = {kind: Cache(fake, kind) for kind in KINDS}
        one, other = (GroupRemoval(fake.api, caches, ("mq", "demo"), lambda: "Delete") for _ in range(2))
        spec_of("a", "b")
        assert not await one.begin_removal("b", one.mark("b")), "the spec has it"
        before = one.mark("b")
        assert await other.stay("b")
        spec_of("a")  # It leaves once more, with the messages that it took.
        assert not await one.begin_removal("b", before), "the proof is older than those messages"
        assert leaving_groups.removing([fake.objects["StatefulSet", "mq", "demo-b"]]) == ()
        assert await one.begin_removal("b", one.mark("b"))
        assert not await other.stay("b"), "its name means a new group now"
        fake.remove("StatefulSet", "mq", "demo-b")
        assert await other.stay("b")
        assert not await one.begin_removal("b", one.mark("b"))
        fake.remove("BrokerCluster", "mq", "demo")
        assert not await one.begin_removal("a", one.mark("a")), "Kubernetes deletes it with the cluster"
