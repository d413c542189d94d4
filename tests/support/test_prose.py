"""The documents' style that `codespell` (pyproject.toml, .ci/words.txt) cannot check: line lengths and phrases."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GENERATED = {"resource-reference.md"}
WIDTH = 120
PHRASES = {
    "nobody who": "no one that, no member that",
    "is told": "is notified, receives",
    "are told": "are notified, receive",
    "has it no more": "no longer has it",
    "no more than what": "only what",
}


NAMES = re.compile(r"(?:^|_)(?:told|tells?|telling)(?:_|$)|Told(?![a-z])")
"""Words that names of code do not have beside those of `.ci/words.txt`: notify, assign and report are the terms."""
CODE = ("operator", "broker_image", "spark_jobs", "tests", "e2e", "benchmarks", "helm", ".ci")


def names_of(source: bytes) -> set[str]:
    """All names in a Python file."""
    return {t.string for t in tokenize.tokenize(io.BytesIO(source).readline) if t.type == tokenize.NAME}


def test_names_are_standard_terms() -> None:
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*.py") if "vendor" not in path.parts]
    assert len(files) > 500
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in names_of(path.read_bytes())
        if NAMES.search(name)
    }
    assert not found, sorted(found)


def test_a_name_of_the_list_is_found() -> None:
    found = names_of(b"def told_of(tell: Told) -> None:\n    just_told = excellent.cancelled\n")
    assert {name for name in found if NAMES.search(name)} == {"told_of", "tell", "Told", "just_told"}


def prose_lines(page: Path) -> list[tuple[int, str]]:
    """The numbered lines of a page outside code blocks and tables."""
    found, in_code = [], False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith(("|", "    ")):
            found.append((number, line))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_are_short(page: Path) -> None:
    if page.name in GENERATED:
        return
    long = [f"{page.name}:{n}: {len(line)}" for n, line in prose_lines(page) if len(line) > WIDTH and "](" not in line]
    assert not long, f"lines of more than {WIDTH} characters: {long}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_phrases_are_plain(page: Path) -> None:
    found = [
        f"{page.name}:{number}: {phrase!r}; write: {instead}"
        for number, line in prose_lines(page)
        for phrase, instead in PHRASES.items()
        if re.search(rf"\b{phrase}\b", line, re.IGNORECASE)
    ]
    assert not found, found
