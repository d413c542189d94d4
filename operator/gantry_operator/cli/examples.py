"""`gantry examples`: the manifests of examples/, which the wheel carries too."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import print_json

QUICKSTART = "quickstart"
"""`gantry up` without a file starts it."""


def examples() -> dict[str, Traversable]:
    """Return the manifests by name."""
    folder = resources.files("gantry_operator") / "examples"
    manifests = {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}
    return dict(sorted(manifests.items()))


def summary(text: str) -> str:
    """Return the comment above a manifest, on one line."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def show_examples(name: str | None, as_json: bool) -> None:
    """Print one manifest, or list all. Raises CliError for an unknown name."""
    manifests = examples()
    if name is not None:
        if name not in manifests:
            raise CliError(f"there is no example {name!r}; write one of {', '.join(manifests)}", Exit.USAGE)
        print(manifests[name].read_text(encoding="utf-8"), end="")
        return
    listed: list[dict[str, Any]] = [
        {"name": name, "about": summary(file.read_text(encoding="utf-8"))} for name, file in manifests.items()
    ]
    if as_json:
        print_json(listed)
        return
    for entry in listed:
        print(f"{entry['name']:<15} {entry['about']}")
