"""`python -m distributions.site [FOLDER]`: build the documentation as a site, by default into build/site.

docs/README.md is the one index: its headings and tables are the navigation, and a page that it does not name is an
error. README, CHANGELOG and CONTRIBUTING of the project are pages, too. A link to another file of the project leads to
its source where the project has an address (distributions/address.py), else it is text. A link or an anchor that leads
nowhere ends the build.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from distributions.address import home
from distributions.address import page as source_page
from distributions.build import project

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = {"README.md": "start.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the project that are not in docs/, and their names in the site."""
INDEX: Final = "index.md"
"""docs/README.md in the site."""
DECISIONS: Final = "Decisions"
_HEADING: Final = re.compile(r"^## (.+)$")
_ROW: Final = re.compile(r"^\| (.+?) \|")
_LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\](?:\([^)]*\))?)*)\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)

Section = tuple[str, list[tuple[str, str]]]
"""A heading, and title and page of its entries."""


class SiteError(Exception):
    """The site cannot be built; the text says why."""


def page_of(path: str) -> str | None:
    """The page of a file of the project, both relative to their roots; None: it is not a page."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if not path.startswith("docs/"):
        return None
    inside = path.removeprefix("docs/")
    return f"{inside.removesuffix('README.md')}{INDEX}" if inside.endswith("README.md") else inside


def navigation() -> list[Section]:
    """The sections of docs/README.md: an entry for each link of a first column. Raises SiteError for a page that has no
    place.
    """
    sections: list[Section] = []
    for line in (ROOT / "docs" / "README.md").read_text().splitlines():
        if heading := _HEADING.match(line):
            sections.append((heading[1], []))
        elif row := _ROW.match(line):
            for text, target in _LINK.findall(row[1]):
                page = page_of(posixpath.normpath(posixpath.join("docs", target.partition("#")[0])))
                if page is not None:
                    sections[-1][1].append((text[0].upper() + text[1:] if text[:2].islower() else text, page))
    adr = ROOT / "docs" / "adr"
    decisions = [(title_of(path), f"adr/{path.name}") for path in sorted(adr.glob("[0-9]*.md"))]
    sections.append((DECISIONS, decisions))
    named = {page for _, entries in sections for _, page in entries} | {INDEX}
    pages = {page_of(path.relative_to(ROOT).as_posix()) for path in (ROOT / "docs").rglob("*.md")}
    if without := sorted(str(page) for page in pages - named):
        raise SiteError(f"docs/README.md has no link to {', '.join(without)}: write a line for each")
    return sections


def title_of(path: Path) -> str:
    """The first heading of a page."""
    return path.read_text().partition("\n")[0].lstrip("# ")


def markdown_of(source: str, repository: str | None) -> str:
    """A page whose links lead to the site or to the project's source. `source`: its file, relative to the project.

    Raises SiteError for a link to a file that does not exist.
    """
    pieces = _CODE.split((ROOT / source).read_text())
    return "".join(
        piece if piece.startswith("```") else _LINK.sub(lambda found: _link(found, source, repository), piece)
        for piece in pieces
    )


def _link(found: re.Match[str], source: str, repository: str | None) -> str:
    text, target = found[1], found[2]
    if "](" in text:  # an image that is a link
        text = _LINK.sub(lambda inner: _link(inner, source, repository), text)
    address, mark, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
    if "://" in target or not address:
        return f"[{text}]({target})"
    if not (ROOT / path).exists():
        raise SiteError(f"{source} has a link to {target}: it does not exist")
    page = page_of(path) if (ROOT / path).is_file() else page_of(f"{path}/README.md")
    if page is not None and (page in OUTSIDE.values() or (ROOT / "docs" / page).exists() or page.endswith(INDEX)):
        here = posixpath.dirname(page_of(source) or "") or "."
        return f"[{text}]({posixpath.relpath(page, here)}{mark}{anchor})"
    if repository is None:
        return text
    inside = f"{path}/" if (ROOT / path).is_dir() else path
    return f"[{text}]({source_page(repository, project()['version'], inside)})"


def stage(folder: Path) -> Path:
    """Write the pages and the settings of the site below a folder, and return the file of the settings."""
    repository = home()
    pages = folder / "pages"
    for path in sorted((ROOT / "docs").rglob("*")):
        inside = path.relative_to(ROOT).as_posix()
        if path.is_file():
            target = pages / str(page_of(inside))
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                target.write_text(markdown_of(inside, repository))
            else:
                shutil.copyfile(path, target)
    for source, page in OUTSIDE.items():
        (pages / page).write_text(markdown_of(source, repository))
    nav = [{"Documentation": INDEX}, *({heading: [{t: p} for t, p in entries]} for heading, entries in navigation())]
    lines = [
        "[project]",
        'site_name = "Gantry"',
        'site_description = "RocketMQ-protocol broker clusters that keep their promises"',
        'docs_dir = "pages"',
        'site_dir = "site"',
        *([f'repo_url = "{repository}"'] if repository else []),
        f"nav = {_toml(nav)}",
        "[project.theme]",
        "font = false",  # no request to another server
        'features = ["navigation.sections", "navigation.top", "navigation.footer", "content.code.copy"]',
        '[[project.theme.palette]]\nmedia = "(prefers-color-scheme: light)"\nscheme = "default"',
        '[[project.theme.palette]]\nmedia = "(prefers-color-scheme: dark)"\nscheme = "slate"',
    ]
    settings = folder / "zensical.toml"
    settings.write_text("\n".join(lines) + "\n")
    return settings


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def build(folder: Path) -> None:
    """Build the site. Raises SiteError with each link that leads nowhere."""
    with tempfile.TemporaryDirectory() as work:
        settings = stage(Path(work))
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(settings)],
            capture_output=True, text=True, check=False, cwd=work,
        )  # fmt: skip
        if done.returncode:
            said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).partition("Traceback")[0]
            raise SiteError(said.strip())
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path(work) / "site", folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "site")
    chosen = parser.parse_args().folder
    try:
        build(chosen)
    except SiteError as error:
        sys.exit(f"error: {error}")
    print(f"{chosen}: {sum(1 for _ in chosen.rglob('*.html'))} pages")
