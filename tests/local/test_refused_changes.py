"""Changes that `gantry up` refuses on a cluster with data, with or without its supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.up import _prepare
from gantry_operator.platforms.local.control import ControlError
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import refuse_change


def made(name: str = "t", **spec: Any) -> BrokerCluster:
    groups = {"brokerGroups": [{"name": "a", "members": 3}]}
    return BrokerCluster.model_validate(
        {
            "apiVersion": "gantry.dev/v1alpha1",
            "kind": "BrokerCluster",
            "metadata": {"name": name},
            "spec": groups | spec,
        }
    )


PLACE, OTHER = {"url": "file:///archive"}, {"url": "file:///other"}
SOURCE = {"nameServers": ["192.0.2.1:9876"]}


def begins(**bootstrap: Any) -> BrokerCluster:
    return made(bootstrap=bootstrap)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (made(), made(mode="Raft"), "spec.mode is Raft, was MasterSlave: while members change one by one"),
        (made(mode="Raft"), made(), "spec.mode is MasterSlave, was Raft: while members change one by one"),
        (made(), made(name="u"), "metadata.name is 'u'"),
        (made(), begins(follow=PLACE), r"spec\.bootstrap\.follow was added: disks that get empty later"),
        (made(), begins(fromArchive=PLACE), r"spec\.bootstrap\.fromArchive was added"),
        (made(), begins(fromRocketMQ=SOURCE), r"spec\.bootstrap\.fromRocketMQ was added"),
        (begins(fromArchive=PLACE), begins(follow=PLACE), r"spec\.bootstrap\.follow was added"),
        (begins(follow=PLACE), begins(follow=OTHER), r"bootstrap\.follow\.url is file:///other, was file:///archive"),
        (
            begins(fromArchive=PLACE),
            begins(fromArchive=PLACE | {"time": "2026-01-31T12:00:00Z"}),
            r"bootstrap\.fromArchive\.time is 2026-01-31T12:00:00Z, was None",
        ),
        (
            begins(fromRocketMQ=SOURCE),
            begins(fromRocketMQ=SOURCE | {"brokers": [{"group": "a", "broker": "b"}]}),
            r"bootstrap\.fromRocketMQ\.brokers is ",
        ),
        (made(), made(broker={"mappedFileSizeCommitLog": 65_536}), "mappedFileSizeCommitLog is fixed"),
    ],
)
def test_the_reason_is_reported(old: BrokerCluster, new: BrokerCluster, reason: str) -> None:
    with pytest.raises(ControlError, match=reason):
        refuse_change(old, new)


def test_the_rest_may_change() -> None:
    refuse_change(made(), made(brokerGroups=[{"name": "b", "members": 3}]))
    refuse_change(made(), made(flush="Sync", minInSyncReplicas=2, replication="Async"))


def test_a_bootstrap_may_go_and_be_reached_in_another_way() -> None:
    refuse_change(begins(follow=PLACE), made())
    refuse_change(begins(fromRocketMQ=SOURCE), made())
    refuse_change(begins(follow=PLACE), begins(follow=PLACE | {"credentialsSecret": "renewed"}))
    refuse_change(begins(fromRocketMQ=SOURCE), begins(fromRocketMQ={"nameServers": ["192.0.2.2:9876"]}))


def test_a_manifest_of_another_version_is_named(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.manifest.write_text('{"metadata": {"name": "t"}, "spec": {"brokerGroups": [], "of_the_next_version": 1}}')
    with pytest.raises(CliError, match=r"cluster\.json was written by another version of gantry .*of_the_next_version"):
        _prepare(folder, made())
    assert "of_the_next_version" in folder.manifest.read_text()
