"""What the README shows is what a person gets."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import typer
from gantry_operator.cli.app import app

from tests.local.cluster import Cluster, running

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAX_LINES = 128
MAX_PICTURE = 300_000


def shape(status: str) -> list[str]:
    """The lines of `gantry status` without times, numbers, addresses, and which member it is."""
    lines = []
    for line in status.strip().splitlines():
        line = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME", line)
        line = re.sub(r"demo-a-\d(, demo-a-\d)*", "MEMBER", line)
        line = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", line)
        line = re.sub(r"\b\d+(\.\d+)?\b", "N", line)
        line = line.replace("every disk must report first", "").replace("Slave", "ROLE").replace("Master", "ROLE")
        lines.append(" ".join(line.split()))
    return lines


def test_the_status_is_what_a_cluster_shows_after_a_failover(tmp_path: Path) -> None:
    sample = next(block for block in re.findall(r"```\n(.*?)```", README, re.DOTALL) if block.startswith("demo  "))
    with running(Cluster(tmp_path, name="demo", proxy={"replicas": 1})) as cluster:
        os.kill(int(cluster.master()["pid"]), signal.SIGKILL)
        deadline = time.monotonic() + 90
        shown = ""
        while "InSyncSetExpanded" not in shown or not re.search(r"Degraded +False", shown):
            assert time.monotonic() < deadline, shown
            time.sleep(0.2)
            shown = cluster.gantry("status", "--dir", str(cluster.folder.root)).stdout
    now, then = shape(shown), shape(sample)
    events = now.index("EVENT TIME ABOUT MESSAGE")
    assert now[:events] == then[: then.index("EVENT TIME ABOUT MESSAGE")]
    reasons = {line.split()[0] for line in now[events:]}
    assert {line.split()[0] for line in then[events:]} <= reasons | {"WaitingForMembers"}
    completed = [[line for line in lines if line.startswith("FailoverCompleted")] for lines in (now, then)]
    assert completed[0] == completed[1]


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= MAX_LINES
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", README)]
    for link in links:
        if link and not link.startswith("http"):
            assert (ROOT / link).exists(), link
    first = README.index("![")
    assert first < README.index("## "), "a picture comes first"
    for picture in re.findall(r"!\[[^]]*]\(([^)]+)\)", README):
        assert (ROOT / picture).stat().st_size <= MAX_PICTURE, picture


def test_every_page_has_a_place_in_the_documentation() -> None:
    index = (ROOT / "docs/README.md").read_text()
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", index)}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= links
    for link in links:
        assert (ROOT / "docs" / link).exists(), link


GUIDES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("tutorial-*.md")))


def test_every_command_of_the_readme_and_the_tutorials_exists() -> None:
    assert len(GUIDES) == 3
    main = typer.main.get_command(app)
    for guide in GUIDES:
        blocks = re.findall(r"```\n(.*?)```", guide.read_text(), re.DOTALL)
        lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
        ours = [match[1].split() for line in lines if (match := re.match(r"gantry ([^&]*)", line))]
        assert ours, guide.name
        for words in ours:
            command: Any = main
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= known, (guide.name, words)


def test_the_bake_file_builds_every_image_of_the_chart() -> None:
    bake = json.loads((ROOT / "docker-bake.json").read_text())
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    version = bake["variable"]["VERSION"]["default"]
    values = (ROOT / "helm/gantry/values.yaml").read_text()
    for group in bake["group"].values():
        parts = set()
        for name in group["targets"]:
            made = bake["target"][name]
            assert made["target"] in stages
            parts.add(made["target"])
            (tag,) = made["tags"]
            assert f"{tag.rpartition('/')[2].replace('${VERSION}', version)}\n" in values
        assert parts == {"operator", "broker", "spark"}


def test_the_checklist_names_fields_that_exist() -> None:
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|", (ROOT / "docs/production.md").read_text(), re.MULTILINE)
    fields = {name for row in rows for name in re.findall(r"`([a-zA-Z]+(?:\[\])?(?:\.[a-zA-Z]+)*)(?::[^`]*)?`", row)}
    known = (ROOT / "docs/resource-reference.md").read_text()
    kinds = {"BrokerTopic", "BrokerUser", "alerts.enabled"}
    assert {field for field in fields - kinds if f"| `{field}`" not in known} == set()
