"""Shared test code is imported as tests/__init__.py says, and commands start as a module and by path."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_broker.starting import importing

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


def names_of(module: str, files: dict[str, Path], tree: ast.Module) -> set[str]:
    """What can be imported from a module: submodules, and names that it binds outside of functions and classes."""
    below = {name.removeprefix(f"{module}.").split(".")[0] for name in files if name.startswith(f"{module}.")}
    waiting, found = list[ast.AST](tree.body), set[str]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        found |= {a.asname or a.name.split(".")[0] for a in getattr(node, "names", []) if isinstance(a, ast.alias)}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return found | below


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def test_every_name_that_is_imported_from_the_project_is_there() -> None:
    """Types are checked in the product alone, and some files here run rarely: names that moved show here."""
    roots = [ROOT, *(ROOT / folder for folder in ("operator", "broker_image", "spark_jobs"))]
    tops = {"tests": ROOT, "benchmarks": ROOT, "e2e": ROOT} | {
        folder.name: root for root in roots[1:] for folder in root.iterdir() if folder.name.startswith("gantry_")
    }
    paths = {path: root for top, root in tops.items() for path in (root / top).rglob("*.py")}
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path, root in paths.items()
    }
    with importing():
        trees = {path: ast.parse(path.read_text()) for path in paths}
    known: dict[str, set[str]] = {}
    missing = []
    for path, tree in trees.items():
        for node in statements(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module in files:
                if node.module not in known:
                    known[node.module] = names_of(node.module, files, trees[files[node.module]])
                gone = [a.name for a in node.names if a.name not in known[node.module]]
                missing += [f"{path.name}:{node.lineno}: {name}" for name in gone]
    assert not missing
    assert len(known) > 500


@pytest.mark.parametrize("start", [["-m", "tests.simulation.run"], ["tests/simulation/run.py"]], ids=["module", "path"])
def test_a_command_starts_as_a_module_and_by_its_path(start: list[str]) -> None:
    done = subprocess.run([sys.executable, *start, *ARGUMENTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("profile churn")
