"""Every sub-command of `mqadmin` 4.9.7 against both systems: outputs of the same shape."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.rig import java
from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target
from tests.interop.mqadmin_shapes import DIFFERENT, LEFT_OUT, RECORDED, play, story


@pytest.fixture
def admin(system: Target, drivers: Callable[[Target, str, str], Driver]) -> Driver:
    return drivers(system, "49", "JSON")


SYSTEMS = ["gantry", "rocketmq"] if os.environ.get("INTEROP") == "full" else ["gantry"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("system", SYSTEMS, indirect=True)
def test_outputs_have_the_shape_of_apache_rocketmq(system: Target, admin: Driver, tmp_path: Path) -> None:
    """With INTEROP=full the same test checks the recording against Apache RocketMQ itself."""
    recorded: dict[str, list[str]] = json.loads(RECORDED.read_text())
    shapes = play(system, admin, tmp_path)
    assert list(shapes) == story()
    differences = []
    for line, found in shapes.items():
        if line in DIFFERENT and system.name == "gantry":
            assert found, line
            continue
        for mark, lines in (("-", set(recorded[line]) - set(found)), ("+", set(found) - set(recorded[line]))):
            differences += [f"{line}\n  {mark} {text}" for text in sorted(lines)]
    assert not differences, "\n".join(differences)


def test_the_story_has_every_sub_command(admin: Driver) -> None:
    """mqadmin itself lists them."""
    listed = set(re.findall(r"^ {3}(\w+) +\S", admin.run("mqadmin").summary["output"], re.MULTILINE))
    played = {line.split()[0] for line in story()}
    assert len(listed) > 50
    assert listed - played == LEFT_OUT.keys()


def test_commands_that_print_until_stopped(system: Target, admin: Driver, tmp_path: Path) -> None:
    """clusterRT sends to every broker and prints the duration."""
    words = java.command(
        "driver49", "org.apache.rocketmq.tools.command.MQAdminStartup", "clusterRT", "-a", "2", "-i", "1", "-s", "16",
        "-c", system.cluster, "-n", system.namesrv, heap="128m", flags=[f"-Duser.home={tmp_path}"],
    )  # fmt: skip
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "logback_tools.xml").write_text("<configuration/>")
    out = tmp_path / "out"
    with out.open("wb") as file:
        running = subprocess.Popen(
            [*system.prefix, *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ROCKETMQ_HOME": str(tmp_path)},
        )
    row = rf"^{system.cluster} +{system.broker_name} +\d+\.\d+ +2 +0"
    try:
        deadline = time.monotonic() + 30
        while not (found := re.search(row, out.read_text(), re.MULTILINE)) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        running.kill()
        running.wait()
    assert found, out.read_text()
