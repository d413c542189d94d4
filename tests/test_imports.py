"""The modules of gantry_broker import each other in one direction: a circle of imports hides which part needs which."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import gantry_broker

ROOT: Final = Path(gantry_broker.__file__).parent


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


def import_graph(root: Path) -> dict[str, set[str]]:
    paths = {module_name(path, root): path for path in root.rglob("*.py")}
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


def test_no_modules_of_the_broker_import_each_other_in_a_circle() -> None:
    graph = import_graph(ROOT)
    assert len(graph) > 100
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
