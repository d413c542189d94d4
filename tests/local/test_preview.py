"""What `gantry plan` says of a cluster on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import save_manifest
from gantry_operator.platforms.local.preview import in_order, masters_of, preview
from gantry_operator.platforms.local.proxies import with_proxies


def cluster(**spec: Any) -> BrokerCluster:
    return BrokerCluster.make("t", "default", **({"brokerGroups": [{"name": "a", "members": 3}]} | spec))


def test_slaves_are_replaced_before_their_master() -> None:
    planned = plan(cluster(brokerGroups=[{"name": "a", "members": 3}, {"name": "b", "members": 2}]))
    names = ["t-namesrv-0", "t-a-0", "t-a-1", "t-a-2", "t-b-0", "t-b-1", "t-proxy-0"]
    expected = ["t-namesrv-0", "t-a-2", "t-a-0", "t-a-1", "t-b-1", "t-b-0", "t-proxy-0"]
    assert in_order(planned, names, {"t-a-1", "t-b-0"}) == expected
    assert in_order(planned, ["t-a-1", "t-a-2"], {"t-a-2"}) == ["t-a-1", "t-a-2"]
    assert in_order(planned, ["t-a-0", "t-a-1"], set()) == ["t-a-1", "t-a-0"]


@pytest.mark.parametrize("damaged", [None, [], {"members": 3}, {"members": [1, {"role": "Slave", "name": "x"}]}])
def test_a_damaged_status_has_no_master(damaged: object) -> None:
    assert masters_of(damaged) == set()
    assert masters_of({"members": [{"name": "t-a-1", "role": "Master"}]}) == {"t-a-1"}


@pytest.mark.parametrize(
    ("spec", "proxies"),
    [({}, ["t-proxy-0"]), ({"proxy": {"replicas": 0}}, []), ({"nameServers": {"replicas": 3}}, ["t-proxy-0"])],
)
def test_a_manifest_without_proxies_gets_the_one_that_up_adds(
    tmp_path: Path, spec: dict[str, Any], proxies: list[str]
) -> None:
    folder = ClusterFolder(tmp_path / "t")
    folder.make()
    save_manifest(folder, with_proxies(cluster()))
    folder.ports.write_text(json.dumps({}))
    found = preview(folder, cluster(**spec))
    assert [name for name in found["started"] if "proxy" in name] == proxies
    assert found["stopped"] == []
