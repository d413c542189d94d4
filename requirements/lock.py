"""Makes the lock files beside it, or says which are stale: `python requirements/lock.py [--check | --upgrade]`.

Packages keep the versions that they have; `--upgrade` takes the newest ones.
Each lock has every version and hash of what one thing installs, and neither index nor download addresses, so it works
with whatever package index pip is set up for. Its first line has a digest of what it was made from.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "pyproject.toml"
MARK = "# made from "

LOCKS: dict[str, tuple[list[str], list[str]]] = {
    # lock: (files of this folder, extras of pyproject.toml; no extras and no "project" entry: files only)
    "dev": (["build.in"], ["project", "opentelemetry", "operator", "spark", "tables", "celery", "taskiq", "dev"]),
    "base": (["build.in"], ["project"]),
    "broker": (["broker.in"], []),
    "operator": (["operator.in"], []),
    "spark": (["spark.in"], []),
    "audit": (["audit.in"], []),
}


def wanted(lock: str) -> list[str]:
    """The requirements that a lock is made from."""
    files, extras = LOCKS[lock]
    project = tomllib.loads(PROJECT.read_text())["project"]
    found: list[str] = []
    for extra in extras:
        found += project["dependencies"] if extra == "project" else project["optional-dependencies"][extra]
    for name in files:
        lines = (line.partition("#")[0].strip() for line in (HERE / name).read_text().splitlines())
        found += [line for line in lines if line]
    return sorted(set(found))


def digest(lock: str) -> str:
    """Of everything that a lock depends on: its own requirements, and those of `dev`, which it takes versions from."""
    text = "\n".join([*wanted(lock), "--", *wanted("dev")])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stale() -> list[str]:
    """Names of the locks that do not fit their requirements any more."""
    found = []
    for lock in LOCKS:
        path = HERE / f"{lock}.txt"
        first = path.read_text().split("\n", 1)[0] if path.exists() else ""
        if first != MARK + digest(lock):
            found.append(lock)
    return found


def make(lock: str, *, upgrade: bool) -> None:
    """Needs uv and a package index. `dev` is made first: the others get its versions."""
    path = HERE / f"{lock}.txt"
    command = ["uv", "pip", "compile", "-", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-annotate", "--no-header", "--output-file", str(path)]
    command += ["--upgrade"] if upgrade else []
    if lock != "dev":
        command += ["--constraint", str(HERE / "dev.txt")]
    text = "\n".join(wanted(lock))
    done = subprocess.run(command, input=text, text=True, capture_output=True, cwd=HERE, check=False)
    if done.returncode != 0:
        sys.exit(f"{lock}: {done.stderr.strip()}")
    path.write_text(f"{MARK}{digest(lock)}\n{path.read_text()}")
    print(f"requirements/{path.name}")


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        old = stale()
        if old:
            sys.exit(f"stale: requirements/{', requirements/'.join(f'{n}.txt' for n in old)}: run `make lock`")
        return
    for lock in LOCKS:
        make(lock, upgrade=sys.argv[1:] == ["--upgrade"])


if __name__ == "__main__":
    main()
