"""What a page shows of a command, and what the command prints: the same but for numbers, sizes, addresses and paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def shape(text: str) -> list[str]:
    """Return the lines without what differs from run to run, sorted: a terminal mixes both outputs of a command."""
    lines = []
    for line in text.strip().splitlines():
        line = re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS", line)
        line = re.sub(r"(^|\s)/\S+", r"\1PATH", line)
        line = re.sub(r"\b\d+(\.\d+)? ([KMG]i)?B(/s)?(?!\w)", r"SIZE\3", line)
        line = re.sub(r"\b\d+(\.\d+)?\b", "N", line)
        lines.append(" ".join(line.split()))
    return sorted(lines)


def shown(page: str, command: str, number: int = 0) -> list[str]:
    """Return the shape of what a page shows behind `$ command`. `number`: of its places, the first one is 0."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, _, said = part.partition("\n")
            if line.partition("  #")[0].strip() == command:
                found.append(shape(said))
    assert len(found) > number, f"docs/{page} does not show {command!r}"
    return found[number]


def difference(page: str, command: str, said: str, *, number: int = 0, may: Sequence[str] = ()) -> list[str]:
    """Return the lines that only a page has (-) or only the command printed (+). `may`: begins of lines that come or
    not.
    """
    there, here = shown(page, command, number), shape(said)
    found = [f"- {line}" for line in there if line not in here] + [f"+ {line}" for line in here if line not in there]
    return [line for line in found if not line[2:].startswith(tuple(may))]
