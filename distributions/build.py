"""`python -m distributions.build [FOLDER]`: build the wheels and source archives, by default into dist/.

There are two distributions from one source tree. `gantry-mq-client` has the client and every module that it imports.
`gantry-mq` has all other modules, and needs the client of the same version. So each file belongs to one distribution,
and a program that only sends and receives installs little. With the project's address (distributions/address.py) the
metadata has the project's pages, and the links of the description lead there.
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from distributions.address import absolute_links, urls

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = (
    "broker_image/gantry_core",
    "broker_image/gantry_broker",
    "operator/gantry_operator",
    "spark_jobs/gantry_spark",
)
CLIENT: Final = "gantry_broker.client"
NEEDED: Final = ("orjson",)
"""Packages of other projects that the client cannot do without."""
EXTRAS: Final = {
    "compression": ("lz4", "zstandard"),
    "grpc": ("grpcio", "protobuf"),
    "opentelemetry": ("opentelemetry-api",),
    "celery": ("kombu",),
    "taskiq": ("taskiq",),
}
"""Extras of the client, and the packages of each: it imports them when they are needed."""
BACKEND: Final = (
    "import sys; from setuptools import build_meta as b; to = sys.argv[1]; b.build_sdist(to); b.build_wheel(to)"
)


def imported(path: Path) -> set[str]:
    """Modules that a file may import, also within functions, without those for type checkers only."""
    tree = ast.parse(path.read_text())
    checked = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in checked:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def client_modules(source: Path = ROOT / "broker_image") -> dict[str, Path]:
    """The client's modules and all that they import, by name."""

    def file_of(module: str) -> Path | None:
        base = source / module.replace(".", "/")
        return next((p for p in (base / "__init__.py", base.with_suffix(".py")) if p.exists()), None)

    found: dict[str, Path] = {}
    waiting = [f"{CLIENT}.{p.stem}" for p in (source / CLIENT.replace(".", "/")).glob("*.py")]
    while waiting:
        module = waiting.pop()
        path = file_of(module)
        if module in found or path is None or not module.startswith("gantry_broker"):
            continue
        found[module] = path
        waiting.append(module.rpartition(".")[0])
        waiting += imported(path)
    return found


def others_of(modules: dict[str, Path]) -> set[str]:
    """Packages of other projects that modules import."""
    names = {name.partition(".")[0] for path in modules.values() for name in imported(path)}
    return names - set(sys.stdlib_module_names) - {"gantry_broker"}


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def requirement(package: str) -> str:
    """The requirement of the project for a package, with its versions."""
    made = project()
    known = [*made["dependencies"], *(r for extra in made["optional-dependencies"].values() for r in extra)]
    return next(r for r in known if r.replace("<", ">").partition(">")[0] == package)


def stage(folder: Path) -> list[Path]:
    """Write both source trees below a folder."""
    client = client_modules()
    mine = {path.resolve() for path in client.values()} | {(ROOT / "broker_image/gantry_broker/py.typed").resolve()}
    trees = [folder / "gantry-mq-client", folder / "gantry-mq"]
    for path in sorted(mine):
        _copy(path, trees[0] / "src" / path.relative_to(ROOT / "broker_image"))
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*")):
            built = path.suffix == ".so" or {"__pycache__", "target"} & set(path.parts)
            if path.is_file() and not built and path.resolve() not in mine:
                _copy(path, trees[1] / "src" / path.relative_to((ROOT / source).parent))
    # A link to examples/: the archive has copies.
    shutil.copytree(ROOT / "examples", trees[1] / "src/gantry_operator/examples", dirs_exist_ok=True)
    version = project()["version"]
    for tree, page in zip(trees, ("distributions/client.md", "README.md"), strict=True):
        (tree / "README.md").write_text(absolute_links((ROOT / page).read_text(), version, page))
    for tree in trees:
        _copy(ROOT / "LICENSE", tree / "LICENSE")
    (trees[0] / "pyproject.toml").write_text(_client_project())
    (trees[1] / "pyproject.toml").write_text(_whole_project())
    return trees


def _client_project() -> str:
    made = project()
    text = (ROOT / "distributions/client.toml").read_text()
    needed = ", ".join(f'"{requirement(p)}"' for p in NEEDED)
    head = f'version = "{made["version"]}"\ndependencies = [{needed}]\n'
    extras = "".join(
        f"{name} = [{', '.join(chr(34) + requirement(p) + chr(34) for p in packages)}]\n"
        for name, packages in EXTRAS.items()
    )
    text = text.replace('name = "gantry-mq-client"\n', f'name = "gantry-mq-client"\n{head}', 1)
    tables = f"[project.optional-dependencies]\n{extras}\n{_urls()}"
    return text.replace("[tool.setuptools.packages.find]", f"{tables}[tool.setuptools.packages.find]", 1)


def _urls() -> str:
    """The table of the project's pages, empty without a public address."""
    found = "".join(f"{name} = {json.dumps(url)}\n" for name, url in urls(project()["version"]).items())
    return f"[project.urls]\n{found}\n" if found else ""


def _whole_project() -> str:
    text = (ROOT / "pyproject.toml").read_text()
    text = text.partition("[tool.ruff]")[0]
    needed = f'dependencies = [\n    "gantry-mq-client=={project()["version"]}",\n'
    text = text.replace("dependencies = [\n", needed, 1)
    text = text.replace("[project.scripts]", f"{_urls()}[project.scripts]", 1)
    return text.replace('where = ["operator", "broker_image", "spark_jobs"]', 'where = ["src"]\nnamespaces = true', 1)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def build(folder: Path) -> list[Path]:
    """Build all, and return the files. Raises CalledProcessError with what the backend says."""
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / "trees"
    shutil.rmtree(work, ignore_errors=True)
    for tree in stage(work):
        subprocess.run(
            [sys.executable, "-c", BACKEND, str(folder.resolve())], cwd=tree, check=True, capture_output=True
        )
    shutil.rmtree(work)
    return sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    for made in build(parser.parse_args().folder):
        print(f"{made.stat().st_size:>10,}  {made}")
