"""The life of a cluster: grow, shrink, change, pause, delete, and start again with its kept volumes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kube import Cluster, Figure, Load, apply, example, get, kubectl, storage_class, unharmed, until, with_storage


def ids(cluster: Cluster) -> set[str]:
    return {p["metadata"]["name"] for p in cluster.pods()}


def sized(demo: Cluster, members: int) -> dict[str, Any]:
    """The status, once the group `a` has so many members, and `b` has one."""
    demo.patch({"spec": {"brokerGroups": [{"name": "a", "members": members}, {"name": "b", "members": 1}]}})
    return demo.wait_running(members=members + 1)


def test_members_and_groups_are_added(demo: Cluster) -> None:
    before = demo.uids()
    status = sized(demo, 4)
    assert {m["name"] for m in status["members"]} == {f"demo-a-{i}" for i in range(4)} | {"demo-b-0"}
    assert before.items() <= demo.uids().items(), "no broker was restarted for it"
    result = Load(demo, "two", 4).result()
    unharmed(result)


def test_members_are_removed_and_never_the_master(demo: Cluster, figure: Figure) -> None:
    """First a switchover gives the highest number the master's role."""
    sized(demo, 4)
    demo.switch_over("a=demo-a-3")
    until("demo-a-3 leads", lambda: demo.master_name() == "demo-a-3", 30)
    demo.wait_running()
    load = Load(demo, "shrink")
    sized(demo, 3)
    until("its pod is gone", lambda: ids(demo) == {"demo-a-0", "demo-a-1", "demo-a-2", "demo-b-0"}, 60)
    result = load.stop()
    figure("members: 4 to 3, the master leaves", result)
    unharmed(result)
    assert get(demo.namespace, "pvc", "data-demo-a-3"), "its volume is kept"
    assert demo.master_name() != "demo-a-3"


def test_a_setting_is_rolled_out_without_an_error(demo: Cluster, figure: Figure) -> None:
    sized(demo, 3)
    before = {n: u for n, u in demo.uids().items() if n.startswith("demo-a")}
    load = Load(demo, "roll")
    begun = time.monotonic()
    demo.patch({"spec": {"broker": {"fileReservedTime": 48}}})

    def rolled() -> bool:
        now = demo.uids()
        return all(now.get(n, u) != u for n, u in before.items()) and demo.status()["phase"] == "Running"

    until("everybody is replaced", rolled, 120, 0.5)
    figure("rolling a setting over 3+1 members, s", round(time.monotonic() - begun, 1))
    result = load.stop()
    figure("load while a setting is rolled out", result)
    # Group b, of one member, is away while it restarts: meanwhile clients send to group a.
    unharmed(result)
    said = [e["message"] for e in demo.events() if e["reason"] == "ReplacingMember"]
    assert any("is a slave, and all members are in sync" in m for m in said)


def test_paused_by_annotation(demo: Cluster) -> None:
    kubectl("-n", demo.namespace, "annotate", "bc", "demo", "gantry.dev/paused=true")
    until("paused", lambda: demo.status()["phase"] == "Paused", 20)
    kubectl("-n", demo.namespace, "delete", "pdb", "demo-a")
    time.sleep(2)
    assert not [o for o in get(demo.namespace, "pdb") if o["metadata"]["name"] == "demo-a"]
    kubectl("-n", demo.namespace, "annotate", "bc", "demo", "gantry.dev/paused-")
    until("put right", lambda: get(demo.namespace, "pdb", "demo-a"), 15)
    demo.wait_running()


def test_deleted_and_made_again_over_its_volumes(demo: Cluster) -> None:
    """The log continues: epochs rise, offsets do not begin again."""
    result = Load(demo, "before", 3).result()
    before = {m["name"]: m for m in demo.status()["members"]}
    kubectl("-n", demo.namespace, "delete", "bc", "demo")
    until("the pods are gone", lambda: not demo.pods(), 90)
    assert get(demo.namespace, "pvc", "data-demo-a-0")
    assert get(demo.namespace, "lease", "demo-a")
    text = example("quickstart.yaml").replace(
        "    - name: a\n      members: 3\n", "    - {name: a, members: 3}\n    - {name: b, members: 1}\n"
    )
    apply(demo.namespace, text)  # The group `b` too, for its volumes.
    after = {m["name"]: m for m in demo.wait_running(members=4)["members"]}
    assert result["lost"] == 0
    for name, row in before.items():
        assert after[name]["maxOffset"] >= row["maxOffset"], name
        assert after[name]["epoch"] > row["epoch"], name


def test_reclaim_delete_takes_the_volumes_along(demo: Cluster) -> None:
    demo.patch({"spec": {"reclaim": "Delete"}})
    until(
        "the claims have an owner",
        lambda: all(p["metadata"].get("ownerReferences") for p in get(demo.namespace, "pvc") if "a-3" not in str(p)),
        20,
    )
    kubectl("-n", demo.namespace, "delete", "bc", "demo")
    until("the volumes are gone", lambda: not get(demo.namespace, "pvc"), 90)
    until("the Leases are gone", lambda: not get(demo.namespace, "lease"), 30)


@pytest.fixture
def growing() -> Iterator[str]:
    with storage_class("e2e-growing", expands=True) as name:
        yield name


def test_volumes_grow_where_their_class_allows_it(namespace: str, growing: str) -> None:
    """The claims request more, the set is created again around its pods, and no pod restarts."""
    apply(namespace, with_storage("grown", "1Gi", growing))
    cluster = Cluster(namespace, "grown")
    cluster.wait_running()
    before, old = cluster.uids(), get(namespace, "statefulset", "grown-a")["metadata"]["uid"]
    load = Load(cluster, "grow")
    cluster.patch({"spec": {"storage": {"size": "2Gi"}}})

    def sizes() -> set[str]:
        claims = get(namespace, "pvc", selector="gantry.dev/cluster=grown")
        return {c["spec"]["resources"]["requests"]["storage"] for c in claims}

    until("every claim asks for more", lambda: sizes() == {"2Gi"}, 30)
    until("a new set", lambda: get(namespace, "statefulset", "grown-a")["metadata"]["uid"] != old, 30)
    cluster.wait_running()
    unharmed(load.stop())
    assert cluster.uids() == before
    kubectl("-n", namespace, "delete", "bc", "grown")
