"""Makes the lock files beside it, or says which are stale: `python requirements/lock.py [--check | --upgrade]`.

Packages keep the versions that they have; `--upgrade` takes the newest ones.
Each lock has every version and hash of what one thing installs, and neither index nor download addresses, so it works
with whatever package index pip is set up for (`uv.lock`, from which `uv export` works, has both). Requirements are the
project's, its extras and its dependency groups in pyproject.toml. A lock's first line has a digest of them.
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
    # lock: (dependency groups, extras; "project": what the project itself needs)
    "dev": (["build", "dev"], ["project", "opentelemetry", "operator", "spark", "tables", "celery", "taskiq"]),
    "base": (["build"], ["project"]),
    "broker": (["broker-image"], []),
    "operator": (["operator-image"], []),
    "spark": (["spark-image"], []),
    "audit": (["audit"], []),
}


def wanted(lock: str) -> list[str]:
    """The requirements that a lock is made from."""
    groups, extras = LOCKS[lock]
    made = tomllib.loads(PROJECT.read_text())
    project = made["project"]
    found = [line for group in groups for line in made["dependency-groups"][group]]
    for extra in extras:
        found += project["dependencies"] if extra == "project" else project["optional-dependencies"][extra]
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
