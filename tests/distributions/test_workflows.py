"""The workflows only call commands that are here for a person, too."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from distributions.build import ROOT

WORKFLOWS: Final = sorted((ROOT / ".github/workflows").glob("*.yml"))
OUTSIDE: Final = {"docker", "helm", "gh"}
"""Programs that are not the project's own."""
GUIDES: Final = ("CONTRIBUTING.md", "docs/images.md")


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def test_there_are_workflows_for_checks_and_releases() -> None:
    assert [path.stem for path in WORKFLOWS] == ["checks", "release"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda p: p.stem)
def test_each_step_is_a_command_of_the_project(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    ran = [step["run"] for step in steps(workflow) if "run" in step]
    assert ran
    for command in (part.strip() for text in ran for part in text.split(" | ")):
        words = command.split()
        if words[0] == "make":
            assert set(words[1:]) <= targets, command
        elif words[0] == ".venv/bin/python":
            known = importlib.util.find_spec(words[2]) if words[1] == "-m" else (ROOT / words[1]).exists()
            assert known, command
        else:
            assert words[0] in OUTSIDE, command


def test_what_a_release_runs_is_in_the_guides() -> None:
    guides = "".join((ROOT / name).read_text() for name in GUIDES)
    for step in steps(ROOT / ".github/workflows/release.yml"):
        for module in re.findall(r"-m (distributions\.\w+)", step.get("run", "")):
            assert module in guides, module


def test_a_workflow_may_write_only_what_it_publishes() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}, path.name
