"""Modules and folders import each other in one direction: a circle of imports hides which part needs which."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import gantry_broker
import gantry_core
import gantry_operator
import gantry_spark
import pytest

ROOT: Final = Path(gantry_broker.__file__).parent
OPERATOR: Final = Path(gantry_operator.__file__).parent
SPARK: Final = Path(gantry_spark.__file__).parent
CORE: Final = Path(gantry_core.__file__).parent
PROJECT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = (CORE, ROOT, SPARK, OPERATOR, PROJECT / "distributions", PROJECT / "helm")
"""From the lowest up: a package imports those before it alone."""


def module_name(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, name: str, known: set[str]) -> set[str]:
    """The modules of `known` that a module imports anywhere, within functions and for type checks too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name if path.stem == "__init__" else name.rpartition(".")[0]
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parts, *filter(None, [node.module])])
            names = {f"{source}.{alias.name}" for alias in node.names}
            # `from package import module` needs the module, `from module import name` the module before the name.
            found.update(names & known)
            if names - known:
                found.add(source)
    return (found & known) - {name}


@cache
def import_graph(root: Path) -> dict[str, set[str]]:
    return graph_of((root,))


def graph_of(roots: Iterable[Path]) -> dict[str, set[str]]:
    paths = {module_name(path, root): path for root in roots for path in root.rglob("*.py")}
    return {name: imports_of(path, name, set(paths)) for name, path in paths.items()}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or over others."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        seen: set[str] = set()
        waiting = list(graph[name])
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting.extend(graph[other])
        reached[name] = seen
    found: list[set[str]] = []
    for name in sorted(graph):
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({other for other in reached[name] if name in reached[other]})
    return found


def folder_graph(graph: dict[str, set[str]], parent: str) -> dict[str, set[str]]:
    """Which folder of `parent` imports which other one beside it. A module there counts as a folder of its own."""
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        for other in {name, *others}:
            if name.startswith(f"{parent}.") and other.startswith(f"{parent}."):
                here, there = (module.removeprefix(f"{parent}.").split(".")[0] for module in (name, other))
                found.setdefault(there, set())
                found.setdefault(here, set()).update({there} - {here})
    return found


def folder_circles(graph: dict[str, set[str]], root: str) -> list[list[str]]:
    """Circles of the folders and modules right below `root`, and of the folders beside each other further down.

    Further down, modules beside folders do not count: `broker/errors.py` is used by and uses `broker/send/`.
    """
    parents = {".".join(name.split(".")[:depth]) for name in graph for depth in range(1, name.count(".") + 1)}
    found = []
    for parent in sorted(parents):
        beside = folder_graph(graph, parent)
        if parent != root:
            rooms = {name for name in beside if f"{parent}.{name}" in parents}
            beside = {name: others & rooms for name, others in beside.items() if name in rooms}
        found += [sorted(f"{parent}.{name}" for name in circle) for circle in circles(beside)]
    return found


@pytest.mark.parametrize("root", PACKAGES, ids=lambda root: root.name)
def test_no_folders_import_each_other_in_a_circle(root: Path) -> None:
    graph = import_graph(root)
    assert len(graph) > 2
    found = folder_circles(graph, root.name)
    assert not found, f"these folders import each other in a circle: {found}"


def test_packages_import_those_below_them_alone() -> None:
    graph = graph_of(PACKAGES)
    assert len(graph) > 500
    floors = {root.name: floor for floor, root in enumerate(PACKAGES)}
    pairs = {(name.split(".")[0], other.split(".")[0]) for name, others in graph.items() for other in others}
    assert ("gantry_operator", "gantry_spark") in pairs
    assert not [pair for pair in pairs if floors[pair[0]] < floors[pair[1]]]


def test_the_console_imports_nothing_of_the_command() -> None:
    graph = import_graph(OPERATOR)
    console = [name for name in graph if name.startswith("gantry_operator.console")]
    assert len(console) > 5
    assert not [(name, other) for name in console for other in graph[name] if other.startswith("gantry_operator.cli")]


def test_contracts_import_the_protocol_only() -> None:
    graph = import_graph(ROOT)
    contracts = {name for name in graph if name.startswith("gantry_broker.contracts")}
    assert len(contracts) > 3
    others = {other for name in contracts for other in graph[name]} - contracts
    assert {other.split(".")[1] for other in others} <= {"protocol"}


def test_a_client_imports_nothing_of_the_broker() -> None:
    graph = import_graph(ROOT)
    seen: set[str] = set()
    waiting = [name for name in graph if name.startswith("gantry_broker.client")]
    assert waiting
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph[name])
    assert {name.split(".")[1] for name in seen if "." in name} & {"broker", "http", "replication", "store"} == set()


@pytest.mark.parametrize("root", PACKAGES, ids=lambda root: root.name)
def test_no_modules_import_each_other_in_a_circle(root: Path) -> None:
    graph = import_graph(root)
    assert len(graph) > 2
    found = [sorted(circle) for circle in circles(graph)]
    assert not found, f"these modules import each other in a circle: {found}"


def test_the_store_has_no_circle_and_imports_nothing_of_the_broker_above_it() -> None:
    graph = import_graph(ROOT)
    store = {name for name in graph if name.startswith("gantry_broker.store.")}
    assert not [circle for circle in circles(graph) if circle & store]
    above = {other for name in store for other in graph[name] if not other.startswith("gantry_broker.store")}
    assert {name.split(".")[1] for name in above} <= {"descriptors", "protocol", "settings"}


def test_a_circle_is_found(tmp_path: Path) -> None:
    root = tmp_path / "package"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "inner" / "__init__.py").write_text("")
    (root / "a.py").write_text("from package import b\n")
    (root / "b.py").write_text("def late():\n    from package.inner.c import name\n")
    (root / "inner" / "c.py").write_text("from .. import a\n")
    (root / "d.py").write_text("from package.a import other\n")
    assert circles(import_graph(root)) == [{"package.a", "package.b", "package.inner.c"}]


def test_a_circle_of_folders_is_found() -> None:
    graph = {"p": set(), "p.a.x": {"p.b.y"}, "p.b.y": set(), "p.b.z": {"p.a.w"}, "p.a.w": set()}
    assert circles(graph) == []
    assert folder_circles(graph, "p") == [["p.a", "p.b"]]
    inner = {"p.b.c.x": {"p.b.d.y"}, "p.b.d.z": {"p.b.c.w"}, "p.b.d.y": set(), "p.b.c.w": set()}
    assert folder_circles(inner, "p") == [["p.b.c", "p.b.d"]]
