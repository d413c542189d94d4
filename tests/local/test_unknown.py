"""What commands and console say about broker groups that do not answer: never an empty answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gantry_operator.cluster.message_walk import Filters
from gantry_operator.console.collector import Collector
from gantry_operator.console.health import health_of
from gantry_operator.console.operations import OperationError, find_by_key, preview_reset, walk
from gantry_operator.console.operations import reset as move_group
from gantry_operator.console.sources import LocalSource

from tests.local.cluster import Cluster, one_group, running

pytestmark = pytest.mark.timeout(600)
"""Each test runs many commands, and each is a process."""

READS = (
    "topic list", "group list", "dlq list", "topic describe Orders", "group describe billing", "dlq read billing",
    "consume Orders -g billing --timeout 1", "rebalance --all --dry-run", "group reset billing --to latest",
    "topic delete Orders", "group delete billing",
)  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two broker groups of one member."""
    groups = [{"name": "a", "members": 1}, {"name": "b", "members": 1}]
    with running(Cluster(tmp_path_factory.mktemp("two"), nameServers={"replicas": 1}, brokerGroups=groups)) as made:
        made.gantry("topic", "create", "Orders", "--queues", "2", "--dir", str(made.folder.root))
        made.gantry("group", "create", "billing", "--dir", str(made.folder.root))
        made.gantry("produce", "Orders", "--count", "8", "--keys", "k", "--dir", str(made.folder.root))
        yield made


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What a command says at its end. On a busy machine lines about its progress come first."""
    return done.stderr.splitlines()[-1]


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
        for command in ("messages Orders", "messages Orders --key k", "consume Orders -g billing --timeout 1"):
            done = two.gantry(*command.split(), *where, check=False)
            assert done.returncode == 1, command
            assert "incomplete: group b has no master: cannot tell" in done.stderr, command
        for reset in (preview_reset, move_group):
            with pytest.raises(OperationError, match=r"group b has no master: cannot tell.*Nothing was changed"):
                await reset(source, "billing", "Orders", -1)
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
            assert last_line(done).startswith("error: "), command
            assert done.stderr.count("error") == 1, command
        for found in (
            find_by_key(source, "Orders", "k", Filters(), None),
            walk(source, "Orders", Filters(), None, older=True),
        ):
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
        assert last_line(gone) == f"error: no NameServer of t runs: gantry up --dir {two.folder.root} starts it"
    finally:
        await source.close()


def ctrl_c_on_the_console(cluster: Cluster) -> tuple[int, list[str]]:
    """Open a page's stream and interrupt the console. Returns its exit code and what it prints then."""
    where = ["--no-browser", "--dir", str(cluster.folder.root)]
    with subprocess.Popen(
        [sys.executable, "-m", "gantry_operator.cli", "console", *where],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=cluster.environment, text=True,
    ) as console:  # fmt: skip
        assert console.stdout is not None
        assert console.stderr is not None
        link = console.stdout.readline().strip()
        with httpx.Client(follow_redirects=True, timeout=20) as client:
            client.get(link).raise_for_status()
            with client.stream("GET", f"{link.partition('?')[0]}c/local/{cluster.name}/live") as stream:
                next(stream.iter_lines())
                console.send_signal(signal.SIGINT)
                code = console.wait(20)
        return code, console.stderr.read().splitlines()[1:]


def test_commands_that_cannot_work_say_why_in_one_sentence(tmp_path: Path) -> None:
    made = Cluster(tmp_path, **one_group(1))
    where = ["--dir", str(made.folder.root)]
    with running(made):
        alone = made.gantry("switchover", "a", *where, check=False)
        assert last_line(alone) == "error: group a has one member, t-a-0: there is no other one to hand over to"
        for name in ("x" * 121, "x" * 248, "___"):
            assert made.gantry("group", "create", name, *where).stdout == f"{name}: on a\n"
        long = made.gantry("group", "create", "x" * 249, *where, check=False)
        assert long.returncode == 2
        assert last_line(long).startswith("error: group 'xxx")
        assert "1 to 248 letters" in last_line(long)
        managed = made.gantry("group", "create", "y" * 200, "--managed", *where)
        assert managed.stdout == f"{'y' * 200}: on a\n", "its resource has a shorter name"
        for command, said in (
            ("consume Nothing -g g", "there is no topic Nothing: gantry topic list shows those that exist; create it"),
            ("group reset nobody --to latest", "there is no consumer group nobody"),
            ("group reset nobody --topic T --to latest", "there is no consumer group nobody"),
        ):
            done = made.gantry(*command.split(), *where, check=False)
            assert (done.returncode, done.stdout) == (1, ""), command
            assert last_line(done).startswith(f"error: {said}"), command
        code, printed = ctrl_c_on_the_console(made)
        assert (code in (0, 130), printed) == (True, [])
        made.write(**one_group(1), hibernate=True)
        made.up()
        made.until("everything stops", lambda: not any(made.resource()["status"]["members"][0].get("pid") for _ in "x"))
        for command in ("topic list", "dlq list", "produce T --count 1", "consume T -g g", "switchover a"):
            done = made.gantry(*command.split(), *where, check=False)
            assert done.returncode == 1, command
            said = "error: t hibernates: write spec.hibernate: false in its manifest, then gantry up FILE"
            assert last_line(done) == said, command
