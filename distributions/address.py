"""The public address of the project: one setting of a release, `PROJECT_URL`, such as https://example.org/gantry.

It names the repository. Pages below it have the paths that GitHub, GitLab and Forgejo understand. Everything published
gets its links from here: packages, chart, images (docker-bake.json reads the same variable), the plug-in for kubectl,
the bundle for OLM and the site. Without it nothing has links, and `python -m distributions.release` refuses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

VARIABLE: Final = "PROJECT_URL"
_LINK: Final = re.compile(r'(?P<opening>!?\]\(|\bsrc="|\bhref=")(?P<target>[^)\s"]+)')
_PICTURES: Final = (".svg", ".png", ".gif", ".jpg", ".webp")
_CODE: Final = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


class AddressError(Exception):
    """The address is missing or no address; the text says what to set."""


def home() -> str | None:
    """The address as it was set, without a slash at its end. Raises AddressError for what is no address."""
    given = os.environ.get(VARIABLE, "").strip().rstrip("/")
    if not given:
        return None
    parts = urlsplit(given)
    if parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment or re.search(r"[\s\"'<>]", given):
        raise AddressError(f"{VARIABLE}={given!r} is no address: write one such as https://example.org/gantry")
    return given


def required() -> str:
    """The address. Raises AddressError where none was set."""
    found = home()
    if found is None:
        raise AddressError(f"{VARIABLE} is not set: it names the public repository, such as https://example.org/gantry")
    return found


def page(base: str, version: str, path: str) -> str:
    """The page of a file of the project, as it is in this version. Pictures are named as they are, not as a page."""
    plain = path.partition("#")[0]
    kind = "raw" if plain.endswith(_PICTURES) else "tree" if plain.endswith("/") else "blob"
    return f"{base}/{kind}/v{version}/{path}"


def urls(version: str) -> dict[str, str]:
    """The links of packages, by the labels that indexes know; none without an address."""
    base = home()
    if base is None:
        return {}
    return {
        "Homepage": base,
        "Source": base,
        "Documentation": page(base, version, "docs/README.md"),
        "Changelog": page(base, version, "CHANGELOG.md"),
        "Issues": f"{base}/issues",
    }


def release_files(version: str) -> str:
    """Where the files of a release are. Raises AddressError."""
    return f"{required()}/releases/download/v{version}"


def absolute_links(text: str, version: str, source: str = "README.md") -> str:
    """A page for a place outside the repository: its links lead into the repository, code stays as it is."""
    base = home()
    if base is None:
        return text

    def absolute(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        return found["opening"] + page(base, version, f"{source}{target}" if target.startswith("#") else target)

    return _outside_code(text, lambda piece: _LINK.sub(absolute, piece))


def relative_links(text: str) -> list[str]:
    """Targets of a page that lead nowhere outside the repository."""
    found: list[str] = []

    def note(piece: str) -> str:
        found.extend(m["target"] for m in _LINK.finditer(piece) if not re.match(r"https?://|mailto:", m["target"]))
        return piece

    _outside_code(text, note)
    return found


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    return "".join(piece if piece.startswith("```") else change(piece) for piece in _CODE.split(text))
