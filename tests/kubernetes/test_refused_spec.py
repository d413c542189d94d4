"""An operator that starts under a refused spec: failover goes on with the running groups."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes.api.lease_registry import LEADERSHIP
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.names import group_set
from gantry_operator.platforms.kubernetes.reconcile.recovered_spec import Recovered, recovered

from tests.support.present import present


def live_objects(cluster: BrokerCluster) -> dict[tuple[str, str], dict[str, Any]]:
    """What runs of `cluster`, by kind and name."""
    settings = OperatorSettings("broker", "spark", "ops", ())
    objects = render(cluster, plan(cluster), settings, external_addresses=None, pinned_ports={}, replicas={})
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


def recovered_from(
    live: dict[tuple[str, str], dict[str, Any]], refused: dict[str, Any], *, owned_leases: bool = False
) -> Recovered:
    sets = [o for (kind, _), o in live.items() if kind == "StatefulSet"]
    obj = {"metadata": {"namespace": "mq", "name": "demo", "uid": "u"}, "spec": refused}
    return recovered(obj, sets, lambda kind, name: live.get((kind, name)), owned_leases=owned_leases)


def taken(
    cluster: BrokerCluster, refused: dict[str, Any], replicas: int = 3, *, owned_leases: bool = False
) -> BrokerCluster:
    """The spec from the objects of `cluster`."""
    live = live_objects(cluster)
    live["StatefulSet", group_set("demo", "a")]["spec"]["replicas"] = replicas
    assert ("ConfigMap", group_set("demo", "a")) in live
    return present(recovered_from(live, refused, owned_leases=owned_leases).cluster)


@pytest.mark.parametrize("mode", ["MasterSlave", "Raft"])
def test_the_mode_is_that_in_which_the_members_run(mode: str) -> None:
    """A Raft group with a MasterSlave controller would get a registry entry, and its Service would follow no leader."""
    groups = [{"name": "a", "members": 3}]
    cluster = BrokerCluster.make("demo", "mq", mode=mode, minInSyncReplicas=2, flush="Sync", brokerGroups=groups)
    spec = taken(cluster, {"mode": 7}).spec
    assert (spec.mode, spec.minInSyncReplicas, spec.flush) == (mode, 2, "Sync")
    assert spec.failover.automatic


def test_no_automatic_promotion_where_the_spec_forbids_it() -> None:
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}])
    assert not taken(cluster, {"failover": {"automatic": False}}).spec.failover.automatic
    assert not taken(cluster, {"failover": {"automatic": "no"}}).spec.failover.automatic
    assert taken(cluster, {"failover": 3}).spec.failover.automatic


def test_a_master_may_be_silent_for_as_long_as_was_said() -> None:
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}])
    for wanted, taken_for in (("30s", "30s"), ("1ms", "2s"), (7, "2s"), ("soon", "2s")):
        spec = taken(cluster, {"failover": {"detectionTimeout": wanted, "automatic": False}}).spec
        assert (spec.failover.detectionTimeout, spec.failover.automatic) == (taken_for, False)
    spec = taken(cluster, {"failover": {"unclean": True}}).spec
    assert not spec.failover.unclean, "nothing is given up for a spec that is refused"


def test_leases_that_go_with_the_cluster_stay_so() -> None:
    """Without its owner a Lease would outlive the volumes, and no later group of its name would get a master."""
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}])
    assert taken(cluster, {"reclaim": "delete"}).spec.reclaim == "Retain"
    assert taken(cluster, {"reclaim": "delete"}, owned_leases=True).spec.reclaim == "Delete"


def test_fewer_members_than_must_acknowledge_are_taken_as_they_are() -> None:
    cluster = BrokerCluster.make("demo", "mq", minInSyncReplicas=3, brokerGroups=[{"name": "a", "members": 3}])
    assert taken(cluster, {}, replicas=2).spec.minInSyncReplicas == 2


def test_a_raft_group_from_which_members_were_taken_is_still_one() -> None:
    groups = [{"name": "a", "members": 3}]
    cluster = BrokerCluster.make("demo", "mq", mode="Raft", brokerGroups=groups)
    spec = taken(cluster, {"mode": 7}, replicas=2).spec
    assert (spec.mode, spec.brokerGroups[0].members) == ("Raft", 3)


def test_a_setting_of_another_version_is_left_out_and_the_others_hold() -> None:
    live = live_objects(BrokerCluster.make("demo", "mq", mode="Raft", brokerGroups=[{"name": "a", "members": 3}]))
    configs = live["ConfigMap", group_set("demo", "a")]["data"]
    configs |= {name: json.dumps(json.loads(text) | {"of_the_next_version": 1}) for name, text in configs.items()}
    found = recovered_from(live, {"mode": 7})
    assert (present(found.cluster).spec.mode, found.left_out) == ("Raft", {})


def test_damaged_configs_of_one_group_keep_no_other_from_failover() -> None:
    """No component corrects them while the spec is refused. A group without any takes those of another one."""
    live = live_objects(BrokerCluster.make("demo", "mq", brokerGroups=[{"name": g, "members": 3} for g in "abc"]))
    configs = {g: live["ConfigMap", group_set("demo", g)]["data"] for g in "bc"}
    configs["b"] |= dict.fromkeys(configs["b"], '{"mode": ')
    configs["c"] |= dict.fromkeys(configs["c"], '{"mode": "MasterSlave", "min_in_sync": "two"}')
    found = recovered_from(live, {"mode": 7})
    assert found.cluster is not None
    assert [g.name for g in found.cluster.spec.brokerGroups] == ["a", "b"]
    assert list(found.left_out) == ["c"]
    assert "its configuration is not understood: spec.minInSyncReplicas" in found.left_out["c"]


LEADS = LeadershipRecord().promoted(MemberId(0, "x"), [MemberId(0, "x")])


@pytest.mark.parametrize("has_leadership", [False, True])
@pytest.mark.parametrize("text", [None, "{}", "[]", '{"x": 1}', '{"mode": 3}'])
def test_a_group_without_a_usable_config_is_known_by_its_leadership_record(
    text: str | None, has_leadership: bool
) -> None:
    """A group in mode Raft has none. It is left out, because a MasterSlave controller would stay."""
    mode = "MasterSlave" if has_leadership else "Raft"
    live = live_objects(BrokerCluster.make("demo", "mq", mode=mode, brokerGroups=[{"name": "a", "members": 3}]))
    configs = live.pop(("ConfigMap", group_set("demo", "a")))
    if text is not None:
        live["ConfigMap", group_set("demo", "a")] = configs | {"data": dict.fromkeys(configs["data"], text)}
    if has_leadership:
        lease = {"metadata": {"annotations": {LEADERSHIP: json.dumps(LEADS.to_json())}}}
        live["Lease", group_set("demo", "a")] = lease
    found = recovered_from(live, {"mode": 7})
    assert found.left_out == ({} if has_leadership else {"a": "none of its configs can be read"})
    assert (found.cluster is not None and found.cluster.spec.mode == "MasterSlave") == has_leadership
