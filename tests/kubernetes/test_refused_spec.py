"""An operator that starts under a refused spec: failover goes on with the running groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from gantry_operator.api import BrokerCluster
from gantry_operator.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.names import group_set
from gantry_operator.platforms.kubernetes.recovered_spec import recovered


def taken(
    cluster: BrokerCluster, refused: dict[str, Any], replicas: int = 3, leases: Sequence[dict[str, Any]] = ()
) -> BrokerCluster:
    """The spec from the objects of `cluster`."""
    settings = OperatorSettings("broker", "spark", "ops", ())
    objects = render(cluster, plan(cluster), settings, external_addresses=None, pinned_ports={}, replicas={})
    found = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    found["StatefulSet", group_set("demo", "a")]["spec"]["replicas"] = replicas
    sets = [o for o in objects if o["kind"] == "StatefulSet" and names.GROUP_LABEL in o["metadata"]["labels"]]
    obj = {"metadata": {"namespace": "mq", "name": "demo", "uid": "u"}, "spec": refused}
    assert ("ConfigMap", group_set("demo", "a")) in found
    what = recovered(obj, sets, lambda kind, name: found.get((kind, name)), owned_leases=bool(leases))
    assert what.cluster is not None
    return what.cluster


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
    assert taken(cluster, {"reclaim": "delete"}, leases=[{"kind": "Lease"}]).spec.reclaim == "Delete"


def test_fewer_members_than_must_acknowledge_are_taken_as_they_are() -> None:
    cluster = BrokerCluster.make("demo", "mq", minInSyncReplicas=3, brokerGroups=[{"name": "a", "members": 3}])
    assert taken(cluster, {}, replicas=2).spec.minInSyncReplicas == 2


def test_a_raft_group_from_which_members_were_taken_is_still_one() -> None:
    groups = [{"name": "a", "members": 3}]
    cluster = BrokerCluster.make("demo", "mq", mode="Raft", brokerGroups=groups)
    spec = taken(cluster, {"mode": 7}, replicas=2).spec
    assert (spec.mode, spec.brokerGroups[0].members) == ("Raft", 3)
