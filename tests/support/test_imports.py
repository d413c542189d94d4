"""Shared test code is imported as tests/__init__.py says, and commands start as a module and by path."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGES_THE_PATH = re.compile(r"\bsys\.path\b *(\[|\.|\+?=)|\baddsitedir\b")
ARGUMENTS = ["--seed", "1", "--profile", "churn"]


def test_no_file_changes_the_path_of_imports() -> None:
    files = [file for folder in ("tests", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    found = [f"{file.relative_to(ROOT)}: {line}" for file in files for line in file.read_text().splitlines()
             if CHANGES_THE_PATH.search(line)]  # fmt: skip
    assert len(files) > 100
    assert not found, "import by the whole name, as tests/__init__.py says"


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {file.parent for file in (ROOT / "tests").rglob("*.py")}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]


@pytest.mark.parametrize("start", [["-m", "tests.simulation.run"], ["tests/simulation/run.py"]], ids=["module", "path"])
def test_a_command_starts_as_a_module_and_by_its_path(start: list[str]) -> None:
    done = subprocess.run([sys.executable, *start, *ARGUMENTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("profile churn")
