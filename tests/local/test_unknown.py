"""What commands and console say about broker groups that do not answer: never an empty answer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_operator.console.collector import Collector
from gantry_operator.console.health import health_of
from gantry_operator.console.operations import OperationError, find_by_key, find_by_time
from gantry_operator.console.sources import LocalSource

from tests.local.cluster import Cluster, take_down

READS = (
    "topic list", "group list", "dlq list", "topic describe Orders", "group describe billing", "dlq read billing",
    "consume Orders -g billing --timeout 1", "rebalance --all --dry-run", "group reset billing --to latest",
    "topic delete Orders", "group delete billing",
)  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two broker groups of one member."""
    groups = [{"name": "a", "members": 1}, {"name": "b", "members": 1}]
    made = Cluster(tmp_path_factory.mktemp("two"), nameServers={"replicas": 1}, brokerGroups=groups)
    try:
        made.up()
        made.gantry("topic", "create", "Orders", "--queues", "2", "--dir", str(made.folder.root))
        made.gantry("group", "create", "billing", "--dir", str(made.folder.root))
        made.gantry("produce", "Orders", "--count", "8", "--keys", "k", "--dir", str(made.folder.root))
        yield made
    finally:
        take_down(made)


def end(cluster: Cluster, *names: str) -> None:
    """Kill processes, the supervisor first: nothing restarts them."""
    record = cluster.folder.supervisor
    pids = [int(json.loads(record.read_text())["pid"])] if record.exists() else []
    pids += [int(json.loads(cluster.folder.process(name).read_text())["pid"]) for name in names]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    record.unlink(missing_ok=True)


async def test_what_is_not_known_is_said(two: Cluster) -> None:
    where = ["--dir", str(two.folder.root)]
    source = LocalSource(two.folder, two.name, where)
    try:
        whole = two.gantry("topic", "list", *where, "-o", "json")
        assert json.loads(whole.stdout)[0] | {"messages": 8} == json.loads(whole.stdout)[0]
        assert whole.stderr == ""

        end(two, "t-b-0")
        part = two.gantry("topic", "list", *where, "-o", "json", check=False)
        assert part.returncode == 1, "a part is missing"
        assert "incomplete: group b has no master: cannot tell" in part.stderr
        assert [row["topic"] for row in json.loads(part.stdout)] == ["Orders"]
        letters = two.gantry("dlq", "list", *where, check=False)
        assert (letters.returncode, letters.stdout) == (1, "")
        assert "group b has no master: cannot tell" in letters.stderr
        assert "no group has dead letters" not in letters.stderr
        unknown = two.gantry("topic", "describe", "Nothing", *where, check=False)
        assert "no broker group that answers has the topic Nothing: cannot tell" in unknown.stderr
        kept = two.gantry("topic", "delete", "Orders", *where, check=False)
        assert kept.returncode == 1
        assert "group b has no master: cannot tell" in kept.stderr
        assert "Orders" in two.gantry("topic", "list", *where, check=False).stdout, "nothing was changed"

        end(two, "t-a-0")
        for command in READS:
            done = two.gantry(*command.split(), *where, check=False)
            assert (done.returncode, done.stdout) == (1, ""), command
            assert "group a has no master: cannot tell" in done.stderr, command
            assert done.stderr.startswith("error: "), command
            assert done.stderr.count("\n") == 1, command
        for found in (find_by_key(source, "Orders", "k"), find_by_time(source, "Orders", 0)):
            with pytest.raises(OperationError, match="group a has no master: cannot tell"):
                await found
        collector = Collector(source)
        await collector.first()
        health = health_of(collector.snapshot, collector._clock())
        assert health.tone == "bad"
        assert health.unknown == "group a has no master: cannot tell; group b has no master: cannot tell"
        assert "`gantry up` is not running" in health.summary

        end(two, "t-namesrv-0")
        gone = two.gantry("topic", "list", *where, check=False)
        assert gone.stderr == f"error: no NameServer of t runs: gantry up --dir {two.folder.root} starts it\n"
    finally:
        await source.close()


def test_a_hibernated_cluster_says_how_it_wakes(tmp_path: Path) -> None:
    made = Cluster(tmp_path, nameServers={"replicas": 1}, brokerGroups=[{"name": "a", "members": 1}])
    where = ["--dir", str(made.folder.root)]
    try:
        made.up()
        alone = made.gantry("switchover", "a", *where, check=False)
        assert alone.stderr == "error: group a has one member, t-a-0: there is no other one to hand over to\n"
        made.write(nameServers={"replicas": 1}, brokerGroups=[{"name": "a", "members": 1}], hibernate=True)
        made.up()
        made.until("everything stops", lambda: not any(made.resource()["status"]["members"][0].get("pid") for _ in "x"))
        for command in ("topic list", "dlq list", "produce T --count 1", "consume T -g g", "switchover a"):
            done = made.gantry(*command.split(), *where, check=False)
            assert done.returncode == 1, command
            assert done.stderr == (
                "error: t hibernates: write spec.hibernate: false in its manifest, then gantry up FILE\n"
            ), command
    finally:
        take_down(made)
