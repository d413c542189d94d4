"""`python -m distributions.client_reference [--check]`: write docs/client-reference.md from the client's docstrings."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any, Final

from gantry_broker import client

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "client-reference.md"
WIDTH: Final = 118
HEAD: Final = """# Reference of the client

Every class and function of `gantry_broker.client`. [client.md](client.md) explains how to use them. Methods marked
*async* are coroutines; the class of the same name in `gantry_broker.client.sync` has them as methods that wait.

`python -m distributions.client_reference` writes this page from the docstrings.
"""


def page() -> str:
    parts = [HEAD]
    for name in sorted(client.__all__):
        made = getattr(client, name)
        parts.append(f"## {name}\n")
        if inspect.isclass(made):
            parts += _class(made)
        else:
            parts.append(_entry(name, made, "") if inspect.isfunction(made) else _wrapped(_doc(made)))
    text = "\n".join(part.rstrip("\n") + "\n" for part in parts)
    return re.sub(r"\n{3,}", "\n\n", text)


def _class(kind: type) -> list[str]:
    base = next((b.__name__ for b in kind.__bases__ if b.__name__ in client.__all__), "")
    parts = [_wrapped(_doc(kind) + (f" A `{base}`, with its methods." if base else ""))]
    if issubclass(kind, Enum):
        return [*parts, _wrapped("Values: " + ", ".join(f"`{member.name}`" for member in kind) + ".")]
    if not issubclass(kind, BaseException) or "__init__" in vars(kind):
        parts.append(_wrapped(f"`{kind.__name__}{_signature(kind)}`"))
    entries = []
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            entries.append(_bullet(f"`{name}`", _doc(member)))
        elif inspect.isfunction(member):
            entries.append(_entry(name, member, "async " if inspect.iscoroutinefunction(member) else ""))
    return [*parts, "\n".join(entries)] if entries else parts


def _entry(name: str, function: Any, mark: str) -> str:
    return _bullet(f"{'*async* ' if mark else ''}`{name}{_signature(function)}`", _doc(function))


def _signature(function: Any) -> str:
    try:
        found = inspect.signature(function)
    except ValueError:
        return "()"
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values() if p.name != "self"]
    text = str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    text = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text)
    return re.sub(r"<(\w+\.\w+): [^>]+>", r"\1", re.sub(r"<factory>", "...", text))


def _doc(made: Any) -> str:
    text = inspect.getdoc(made) or ""
    return " ".join(text.split("\n\n>>>")[0].split("\n\n")[0].split())


def _bullet(head: str, text: str) -> str:
    said = f"- {head}: {text}" if text else f"- {head}"
    return textwrap.fill(said, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE.name} is stale: python -m distributions.client_reference")
    PAGE.write_text(page())
