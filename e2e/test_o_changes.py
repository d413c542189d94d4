"""Changes of pods while clients send: their memory, a version that does not fit, an image that does not exist."""

from __future__ import annotations

from kube import Cluster, Figure, Load, TooLate, until


def test_resources_are_rolled_out_without_an_error(demo: Cluster, figure: Figure) -> None:
    demo.patch({"spec": {"brokerGroups": [{"name": "a", "members": 3}, {"name": "b", "members": 1}]}})
    demo.wait_running(members=4)
    before = {n: u for n, u in demo.uids().items() if n.startswith("demo-a")}
    load = Load(demo, "memory")
    demo.patch({"spec": {"resources": {"limits": {"memory": "768Mi"}}}})

    def rolled() -> bool:
        now = demo.uids()
        return all(now.get(n, u) != u for n, u in before.items()) and demo.status()["phase"] == "Running"

    until("everybody is replaced", rolled, 120, 0.5)
    result = load.stop()
    figure("load while memory limits are rolled out", result)
    assert result["lost"] == 0, result
    assert {p["spec"]["containers"][0]["resources"]["limits"]["memory"] for p in demo.pods()} == {"768Mi"}


def test_a_bad_image_stops_at_one_slave_and_is_reverted(demo: Cluster, figure: Figure) -> None:
    load = Load(demo, "image")
    before, master, epoch = demo.uids(), demo.master_name(), demo.epoch()
    demo.patch({"spec": {"image": "gantry-broker:9.9.0", "imagePullPolicy": "Never"}})

    def refused() -> bool:
        said = demo.condition("Progressing")["message"]
        return "keeps its version: the new version is 9.9.0" in said and "upgrade the operator first" in said

    until("a version that does not fit is refused", refused, 60)
    assert "UpgradeRefused" in {e["reason"] for e in demo.events()}
    assert demo.uids() == before
    demo.patch({"spec": {"image": "gantry-broker:nowhere", "imagePullPolicy": "Never"}})
    until("the condition says why", lambda: "ErrImageNeverPull" in demo.condition("Degraded")["message"], 60)
    stays = demo.uids()
    changed = {n for n, uid in before.items() if stays.get(n) != uid}
    # A group of one member has no other member to protect.
    assert len(changed - {"demo-b-0"}) == 1, changed
    if master in changed and demo.epoch() > epoch:
        raise TooLate(f"a failover that nobody asked for: {demo.status()['lastFailover']}")
    assert master not in changed
    demo.patch({"spec": {"image": None, "imagePullPolicy": None}})
    demo.wait_running()
    result = load.stop()
    figure("load while a bad image is tried and reverted", result)
    assert result["lost"] == 0, result
    left = demo.uids()
    assert {n for n in before if n.startswith("demo-a") and left[n] != before[n]} == changed - {"demo-b-0"}
