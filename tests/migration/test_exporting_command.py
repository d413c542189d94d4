"""`gantry export` of a cluster that runs, and of one that is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rig import gantry
from tests.migration.test_exporting import MANIFEST, SMALL, opened
from tests.support.samples import difference


def test_the_command_exports_a_cluster_that_runs_and_one_that_is_down(tmp_path: Path) -> None:
    manifest = tmp_path / "cluster.yaml"
    spec = {"brokerGroups": [{"name": "a", "members": 2}, {"name": "b", "members": 1}], "broker": SMALL}
    manifest.write_text(json.dumps(MANIFEST | {"spec": spec | {"proxy": {"replicas": 0}}}))
    with gantry.Cluster(tmp_path / "cluster", manifest) as cluster:
        cluster.gantry("topic", "create", "T", "--queues", "2")
        cluster.gantry("produce", "T", "--count", "40")
        running = json.loads(cluster.gantry("export", "--to", str(tmp_path / "running"), "-o", "json"))
        cluster.gantry("down")
        down = json.loads(cluster.gantry("export", "--to", str(tmp_path / "down"), "--group", "a", "-o", "json"))
        said = cluster.gantry("export", "--to", str(tmp_path / "shown"), "--group", "a")
        command = "gantry export --to /mnt/out"
        assert not difference("migration.md", command, said, may=("N timer messages", "next: a broker"))
        with pytest.raises(RuntimeError, match="is not empty"):
            cluster.gantry("export", "--to", str(tmp_path / "down"), "--group", "a")
        with pytest.raises(RuntimeError, match="has no group 'c'"):
            cluster.gantry("export", "--to", str(tmp_path / "other"), "--group", "c")
    assert (running.keys(), down.keys()) == ({"a", "b"}, {"a"})
    assert down["a"]["end"] >= running["a"]["end"] > 0
    counts = []
    for folder in (tmp_path / "running" / "a", tmp_path / "running" / "b", tmp_path / "down" / "a"):
        store = opened(folder)
        counts.append(sum(store.reader.max_offset("T", number) for number in range(2)))
        store.close(clean=False)
    assert counts[0] + counts[1] == 40
    assert counts[0] == counts[2] > 0
