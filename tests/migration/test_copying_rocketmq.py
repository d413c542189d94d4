"""Topics are copied by messages from a real Apache RocketMQ to Gantry, and back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.ports import Ports

from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import until
from benchmarks.rig.target import Target
from tests.migration.scene import Elected, Scene, as_documented, put, replicated, scene

COUNT = 2_000


def ours_of(made: Scene) -> Target:
    ports = Ports.load(ClusterFolder(made.folder).ports)
    source = made.source
    name_server = ports.address(next(name for name in ports.taken if name.startswith("moved-namesrv")))
    return Target(
        "gantry", name_server, ports.address("group/a"), source.cluster, source.broker_name, source.prefix, 0, [],
        source.log,
    )  # fmt: skip


def copy(made: Scene, source: str, target: str, topics: str, state: Path) -> str:
    return made.gantry(
        "migrate", "copy", "--from", source, "--to", target, "--topics", topics, "--state", str(state)
    ).stdout


def rows(clients: Driver, topic: str, group: str, count: int) -> dict[int, list[tuple[Any, ...]]]:
    """By queue, in their order: what a consumer sees of each message."""
    got = clients.run("consume", topic=topic, group=group, run="run", count=count, each=True, mode="pull", settle_ms=0)
    found: dict[int, list[tuple[Any, ...]]] = {}
    for line in got.of("message"):
        own = {
            name: value for name, value in line["properties"].items()
            if name in ("n", "a", "word", "KEYS", "TAGS", "UNIQ_KEY")
        }  # fmt: skip
        found.setdefault(line["queue"], []).append(
            (line["n"], line["msgId"], line["bornMs"], line["size"], line.get("keys"), line.get("tags"), own)
        )
    return found


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_copies_to_gantry_and_back(java_side: Path, tmp_path: Path, server: str, client: str) -> None:
    with scene(tmp_path, server) as made:
        there_and_back(made, tmp_path, client)


def there_and_back(made: Scene, base: Path, client: str) -> None:
    theirs = made.driver(client)
    theirs.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    options: dict[str, Any] = {"topic": "Orders", "run": "run", "keys": "k", "tags": "A,B", "properties": True}
    put(theirs, count=COUNT, size=300, threads=2, **options)
    put(theirs, first=COUNT, count=10, size=50_000, compress_over=1_000, **options)
    theirs.run("consume", topic="Orders", group="billing", run="run", count=COUNT + 10, settle_ms=100)
    put(theirs, first=COUNT + 10, count=100, size=300, **options)
    made.write(bootstrap=None)
    spec = json.loads(made.file.read_text())
    del spec["spec"]["bootstrap"]
    made.file.write_text(json.dumps(spec))
    made.gantry("up", str(made.file), "--dir", str(made.folder), "--detach")
    gantry = ours_of(made)
    ours = Driver(gantry, client, "JSON", base / "driver-ours.log")
    made._drivers.append(ours)
    total = COUNT + 110
    for _ in range(2):
        said = copy(made, made.source.namesrv, gantry.namesrv, "Orders", base / "there.json")
        assert f"{total} messages are copied" in said, said
    assert rows(ours, "Orders", "look", total) == rows(theirs, "Orders", "look", total)
    rest = ours.run("consume", topic="Orders", group="billing", run="run", count=100, settle_ms=1_000)
    assert (rest.summary["received"], rest.summary["unique"]) == (100, 100), "billing goes on where it was"

    put(ours, first=total, count=200, size=300, **options)
    ours.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "New", "-r", "4", "-w", "4")
    put(ours, topic="New", count=30, size=300, run="run")
    said = copy(made, gantry.namesrv, made.source.namesrv, "Orders,New", base / "back.json")
    assert "230 messages are copied" in said, said
    assert rows(theirs, "Orders", "look", total + 200) == rows(ours, "Orders", "look", total + 200)
    assert rows(theirs, "New", "look", 30) == rows(ours, "New", "look", 30)
    back = theirs.run("consume", topic="Orders", group="billing", run="run", count=200, settle_ms=1_000)
    assert (back.summary["received"], back.summary["unique"]) == (200, 200), "billing goes on where it was at Gantry"


@pytest.mark.timeout(290)
def test_a_source_moves_by_messages(java_side: Path, tmp_path: Path) -> None:
    with scene(tmp_path, "server49") as made:
        by_messages(made)


@pytest.mark.timeout(500)
def test_a_source_with_dledger_is_refused_and_moves_by_messages_through_a_failover(
    java_side: Path, tmp_path: Path
) -> None:
    with replicated(tmp_path, Elected) as (made, group):
        made.write()
        refused = made.gantry("migrate", "check", str(made.file), check=False)
        said = refused.stdout + refused.stderr
        assert refused.returncode == 1, said
        assert "keeps its log with DLedger, which has no HA port: migrate it by messages" in said
        assert made.gantry("migrate", "start", str(made.file), "--dir", str(made.folder), check=False).returncode
        before = group.master()

        def fail_over() -> None:
            group.inject("kill9")
            until("the next leader", lambda: group.master() not in ("", before), 120)

        by_messages(made, fail_over)


def by_messages(made: Scene, meanwhile: Callable[[], None] = lambda: None) -> None:
    """`meanwhile`: what happens to the source while the copy runs."""
    theirs = made.driver("49")
    theirs.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    options: dict[str, Any] = {"topic": "Orders", "run": "run", "keys": "k", "tags": "A,B", "properties": True}
    put(theirs, count=200, size=300, **options)
    theirs.run("consume", topic="Orders", group="billing", run="run", count=200, settle_ms=100)
    made.write()
    spec = json.loads(made.file.read_text())
    del spec["spec"]["bootstrap"]
    made.file.write_text(json.dumps(spec))
    words = ["migrate", "start", str(made.file), "--by", "messages", "--from", made.source.namesrv]
    words += ["--dir", str(made.folder)]
    for total in (200, 300):  # The second time it goes on where the first one was killed.
        with subprocess.Popen(
            [*made.source.prefix, sys.executable, "-m", "gantry_operator.cli", *words],
            env=made.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as started:  # fmt: skip
            try:
                deadline = time.monotonic() + 120
                if total == 300:
                    meanwhile()
                    put(theirs, first=200, count=100, size=300, **options)
                while not copied(made, total):
                    assert started.poll() is None, made.gantry(*words, check=False).stderr
                    assert time.monotonic() < deadline, made.migrate("status").stdout
                    time.sleep(0.5)
            finally:
                started.kill()
    as_documented("migrate status", made.migrate("status"), 2, "%RETRY%")
    # The offsets may have been set before, and the rest copied.
    as_documented("migrate cutover", made.migrate("cutover"), 1, "group billing: ", "copying: ")
    assert made.status()["phase"] == "done"
    ours = Driver(ours_of(made), "49", "JSON", made.base / "ours.log")
    try:
        assert rows(ours, "Orders", "all", 300) == rows(theirs, "Orders", "all", 300)
        rest = ours.run("consume", topic="Orders", group="billing", run="run", count=100, settle_ms=1_000)
        assert (rest.summary["unique"], rest.summary["repeated"]) == (100, 0)
    finally:
        ours.close()


def copied(made: Scene, total: int) -> bool:
    if not (made.folder / "messages-copy.json").exists():
        return False
    found = made.status()["topics"].get("Orders", [])
    return sum(queue["copied"] for queue in found) >= total
