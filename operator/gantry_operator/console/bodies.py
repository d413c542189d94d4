"""The body of a message for a page: JSON, text or bytes, cut at a limit. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from gantry_broker.protocol.printable import printable

MAX_SHOWN: Final = 16_384
"""Bytes of a body that a page shows."""
Kind = Literal["json", "text", "hex"]


@dataclass(frozen=True, slots=True)
class BodyView:
    kind: Kind
    text: str
    size: int
    shown: int
    """Bytes of the body that `text` shows."""

    @property
    def cut(self) -> bool:
        return self.shown < self.size


def body_view(body: bytes, kind: Kind | None = None, limit: int = MAX_SHOWN) -> BodyView:
    """Show a body as `kind`; None: as JSON or text if it is that, else as bytes. A long body is cut, also JSON, which
    is then not indented.
    """
    part = body[:limit]
    if kind in (None, "json") and len(body) <= limit:
        try:
            text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
        else:
            # Indented it may be longer than the limit.
            if len(text) <= 4 * limit and (kind == "json" or text[:1] in "{["):
                return BodyView("json", printable(text, keep="\n"), len(body), len(body))
    if kind in (None, "json", "text"):
        text = part.decode("utf-8", "replace")
        odd = sum(c == "\ufffd" or (c < " " and c not in "\n\r\t") for c in text)
        if kind == "text" or odd <= (1 if len(body) > limit else 0):
            return BodyView("text", printable(text, keep="\n\r\t"), len(body), len(part))
    part = part[: limit // 4]
    return BodyView("hex", hex_dump(part), len(body), len(part))


def hex_dump(data: bytes) -> str:
    """Lines of sixteen bytes: offset, bytes, characters."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        shown = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
        lines.append(f"{at:06x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {shown}")
    return "\n".join(lines)


def preview(body: bytes, limit: int = 120) -> str:
    """The beginning of a body in one line."""
    text = body[:limit].decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in text)
    return f"{shown}…" if len(body) > limit else shown
