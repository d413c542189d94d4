"""The modules of gantry_operator import downwards only. `tests/test_imports.py` looks for circles."""

from __future__ import annotations

import ast
from pathlib import Path

import gantry_operator

ROOT = Path(gantry_operator.__file__).parent
LAYERS = (
    ("api",),
    ("plan", "registry"),
    ("access", "certificates", "drain", "failover", "tables", "topics"),
    ("cluster",),
    ("migration",),
    ("platforms.kubernetes.names",),
    ("platforms.kubernetes.api",),
    ("platforms.kubernetes.manifests", "platforms.kubernetes.monitoring"),
    ("platforms.kubernetes.objects",),
    (
        "platforms.kubernetes.members",
        "platforms.kubernetes.resources",
        "platforms.kubernetes.analytics",
        "platforms.kubernetes.requests",
    ),
    ("platforms.kubernetes.tables", "platforms.kubernetes.allowed"),
    ("platforms.kubernetes.reconcile",),
    ("platforms.kubernetes", "platforms.local"),
    ("platforms.kubernetes.targets",),
    ("actions",),
    ("console",),
    ("cli",),
)
"""From the lowest up. A part imports itself and lower layers; parts of one layer do not import each other. A module
belongs to the longest name that fits. The program has a command that starts the console, so `cli` is above it.
"""


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(text: str, known: set[str]) -> set[str]:
    """Modules of gantry_operator that a file imports, those of `import_module("...")` and of functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names = [f"{module}.{a.name}" for a in node.names]
            names = [n if n.removeprefix("gantry_operator.") in known else module for n in names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        found |= {n.removeprefix("gantry_operator.") for n in names if n.startswith("gantry_operator.")}
    return found


def graph() -> dict[str, set[str]]:
    files = modules()
    return {name: imports(path.read_text(), set(files)) - {name} for name, path in files.items()}


def layer_of(module: str) -> tuple[int, str] | None:
    fits = [
        (len(part), level, part)
        for level, parts in enumerate(LAYERS)
        for part in parts
        if module == part or module.startswith(f"{part}.")
    ]
    return max(fits)[1:] if fits else None


def upward(found: dict[str, set[str]]) -> list[str]:
    wrong = []
    for module, used in found.items():
        here = layer_of(module)
        for other in used:
            there = layer_of(other)
            if here is not None and there is not None and there[1] != here[1] and there[0] >= here[0]:
                wrong.append(f"{module} imports {other}")
    return wrong


def test_every_module_belongs_to_a_layer() -> None:
    assert {m for m in graph() if m not in ("", "platforms") and layer_of(m) is None} == set()


def test_no_module_imports_a_higher_layer() -> None:
    assert upward(graph()) == []


def between_platforms(found: dict[str, set[str]]) -> list[str]:
    """Rooms of a platform lie on several layers, so the order of layers alone does not keep platforms apart."""
    platform = {m: m.split(".")[1] for m in found if m.startswith("platforms.")}
    pairs = [(m, other) for m in platform for other in found[m] if other in platform]
    return [f"{m} imports {other}" for m, other in pairs if platform[m] != platform[other]]


def test_no_platform_imports_another() -> None:
    assert between_platforms(graph()) == []


def test_an_upward_import_is_found() -> None:
    found = graph()
    found["cluster.status"] = found["cluster.status"] | {"platforms.local.events"}
    found["platforms.local.events"] = found["platforms.local.events"] | {"platforms.kubernetes.names"}
    assert upward(found) == ["cluster.status imports platforms.local.events"]
    assert between_platforms(found) == ["platforms.local.events imports platforms.kubernetes.names"]
