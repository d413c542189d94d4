"""A rollback to real RocketMQ that is killed at each step, as are all processes beside it; INTEROP=full."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.rig.driver import Driver
from tests.migration.scene import Scene, put, scene
from tests.migration.test_state import kill_member, member_of, restarted_source, supervisor

GOING_BACK = ("copying-back", "gantry-writes-off", "gantry-readers-off", "offsets", "leaving")
"""Phases from which an abort is possible."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_a_rollback_that_is_killed_goes_back_or_on(java_side: Path, tmp_path: Path, server: str, client: str) -> None:
    with scene(tmp_path, server) as made:
        killed(made, client)


def killed(made: Scene, client: str) -> None:
    clients = made.driver(client)
    clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "2", "-w", "2")
    count = len(put(clients, topic="Orders", count=100, run="run"))
    made.start()
    made.until_following()
    made.migrate("cutover", "--settle", "0", "--routes", "0")
    count = more(made, client, count)
    for phase in GOING_BACK:
        cut_at(made, phase)
        cut_at(made, "aborting-rollback", "--abort")
        assert "Gantry has its clients" in made.migrate("rollback", "--abort").stdout, phase
        assert made.status()["rollback"] == "none", phase
        count = more(made, client, count)
    # On the way without return each process dies: the member, the supervisor with all of its own, the former broker.
    cut_at(made, "copying-back")
    kill_leader(made)
    cut_at(made, "gantry-writes-off")
    kill_all(made)
    cut_at(made, "gantry-readers-off")
    kill_leader(made)
    cut_at(made, "offsets")
    with restarted_source(made):
        cut_at(made, "offsets")
        kill_leader(made)
        cut_at(made, "leaving")
        kill_all(made)
        cut_at(made, "returning")
        assert "the source leads again" in made.migrate("rollback").stdout
        made.gantry("down", "--dir", str(made.folder))
        ends(made.driver(client), count)


def kill_leader(made: Scene) -> None:
    """Gantry's member dies, and leads again."""
    before = member_of(made)
    kill_member(made)
    made.until(
        "Gantry leads again", lambda s: s["groups"]["a"]["state"] == "leads" and member_of(made) not in (None, before)
    )


def kill_all(made: Scene) -> None:
    """The supervisor dies with all of its processes, and is started again."""
    os.kill(supervisor(made), signal.SIGKILL)
    # While Gantry takes no messages it is not ready: what counts is that the supervisor is there.
    made.gantry("up", str(made.file), "--detach", "--timeout", "10", "--dir", str(made.folder), check=False)
    made.until("the member leads", lambda s: s["groups"]["a"]["state"] == "leads")


def more(made: Scene, client: str, count: int) -> int:
    """Send to Gantry by a new client, which has the route; return how many messages there are."""
    ours = made.driver(client)
    try:
        return count + len(put(ours, topic="Orders", first=count, count=20, run="run"))
    finally:
        ours.close()


def cut_at(made: Scene, phase: str, *words: str) -> None:
    """Kill a rollback as soon as this phase is recorded. It refuses to go on while the former broker starts."""
    record, deadline = made.folder / "rollback.json", time.monotonic() + 90
    seen, said = False, ""
    while not seen and time.monotonic() < deadline:
        popen = subprocess.Popen(
            [*made.source.prefix, sys.executable, "-m", "gantry_operator.cli", "migrate", "rollback", "--settle", "1",
             *words, "--dir", str(made.folder)],
            env=made.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        while not seen and popen.poll() is None and time.monotonic() < deadline:
            seen = record.exists() and f'"{phase}"' in record.read_text()
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        said = popen.communicate()[0]
        if not seen and "start it again" not in said:
            break
    assert seen, f"{phase} was not seen: {record.read_text()}{said}{made.story()}"


def ends(theirs: Driver, count: int) -> None:
    got = theirs.run(
        "consume", mode="orderly", topic="Orders", group="all", run="run", count=count, settle_ms=2_000, timeout_s=90
    )
    assert (got.summary["unique"], got.summary["repeated"], got.summary["disorder"]) == (count, 0, 0)
