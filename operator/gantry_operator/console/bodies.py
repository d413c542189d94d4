"""The body of a message for a page: by its content type, or by what it looks like; cut at a limit. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message as Headers
from typing import Final, Literal
from urllib.parse import parse_qsl

from gantry_broker.protocol.printable import printable

MAX_SHOWN: Final = 16_384
"""Bytes of a body that a page shows."""
Kind = Literal["json", "text", "hex", "form", "protobuf"]
KINDS: Final[Mapping[str, str]] = {"json": "JSON", "text": "Text", "hex": "Hex"}
"""What a person may choose for every body."""
CHARSETS: Final = frozenset(
    {"utf-8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "windows-1252", "utf-16", "gbk", "gb18030", "big5",
     "shift_jis", "euc-jp", "euc-kr"}
)  # fmt: skip
"""Encodings of text that a content type may name."""
MAX_FIELDS: Final = 512
MAX_DEPTH: Final = 16


@dataclass(frozen=True, slots=True)
class Content:
    """What properties say about a body: its media type in lower case, character set and compression."""

    type: str = ""
    charset: str = "utf-8"
    encoding: str = ""


@dataclass(frozen=True, slots=True)
class BodyView:
    kind: Kind
    text: str
    size: int
    shown: int
    """Bytes of the body that `text` shows."""
    note: str = ""
    """What a reader must know about `text`, like a compression that was undone."""

    @property
    def cut(self) -> bool:
        return self.shown < self.size


def content_of(properties: Mapping[str, str]) -> Content:
    """By properties such as `content-type`, `contentType` and CloudEvents' `datacontenttype`, in any case."""
    plain = {name.lower().replace("-", "").replace("_", ""): value for name, value in properties.items()}
    written = plain.get("contenttype") or plain.get("datacontenttype") or plain.get("cedatacontenttype") or ""
    headers = Headers()
    headers["content-type"] = "".join(c for c in written[:200] if c.isprintable())
    charset = str(headers.get_param("charset", "utf-8")).lower()
    media = headers.get_content_type() if written else ""
    encoding = plain.get("contentencoding", "").strip().lower()
    return Content(media, charset if charset in CHARSETS else "utf-8", encoding)


def body_view(
    body: bytes, kind: Kind | None = None, limit: int = MAX_SHOWN, content: Content | None = None
) -> BodyView:
    """Show a body as `kind`; None: by its content type, else as JSON or text if it is that, else as bytes. A long body
    is cut, also JSON, which is then not indented.
    """
    content = content or Content()
    size = len(body)
    note = ""
    if content.encoding in ("gzip", "deflate", "x-gzip") and kind != "hex":
        plain = _inflated(body, 4 * limit)
        if plain is not None:
            body, note = plain, f"{content.encoding} undone"
    view = _view(body, kind or _kind_of(content), limit, content.charset)
    if not note:
        return view
    return BodyView(view.kind, view.text, size, size if view.shown == len(body) else view.shown, note)


def _kind_of(content: Content) -> Kind | None:
    media = content.type
    if media.endswith(("/json", "+json")):
        return "json"
    if media == "application/x-www-form-urlencoded":
        return "form"
    if media.endswith(("/protobuf", "/x-protobuf", "/vnd.google.protobuf", "/grpc", "+proto")):
        return "protobuf"
    if media.startswith("text/") or media.endswith(("/xml", "+xml", "/yaml", "/x-yaml", "/javascript")):
        return "text"
    return None


def _view(body: bytes, kind: Kind | None, limit: int, charset: str) -> BodyView:
    part = body[:limit]
    if kind == "form" and len(body) <= limit:
        try:
            pairs = parse_qsl(
                body.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS
            )
            return BodyView("form", "\n".join(printable(f"{k} = {v}") for k, v in pairs), len(body), len(body))
        except ValueError:
            kind = None
    if kind == "protobuf":
        lines = _protobuf(part) if len(body) <= limit else None
        if lines is not None:
            return BodyView("protobuf", "\n".join(lines), len(body), len(body))
        kind = None
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
        text = part.decode(charset, "replace")
        odd = sum(c == "\ufffd" or (c < " " and c not in "\n\r\t") for c in text)
        if kind == "text" or odd <= (1 if len(body) > limit else 0):
            return BodyView("text", printable(text, keep="\n\r\t"), len(body), len(part))
    part = part[: limit // 4]
    return BodyView("hex", hex_dump(part), len(body), len(part))


def _inflated(body: bytes, limit: int) -> bytes | None:
    """Return a gzip or zlib body, at most `limit` bytes of it; None: it is neither."""
    try:
        return zlib.decompressobj(47).decompress(body, limit)
    except zlib.error:
        return None


def _protobuf(data: bytes, depth: int = 0) -> list[str] | None:
    """Return the fields of a message in protobuf's wire format, as `protoc --decode_raw` does; None: it is none."""
    lines: list[str] = []
    at = 0
    while at < len(data):
        decoded = _varint(data, at)
        if decoded is None or len(lines) > MAX_FIELDS:
            return None
        tag, at = decoded
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            return None
        if wire == 0:
            decoded = _varint(data, at)
            if decoded is None:
                return None
            value, at = decoded
            lines.append(f"{number}: {value}")
        elif wire in (1, 5):
            width = 8 if wire == 1 else 4
            if at + width > len(data):
                return None
            lines.append(f"{number}: 0x{int.from_bytes(data[at : at + width], 'little'):0{2 * width}x}")
            at += width
        elif wire == 2:
            decoded = _varint(data, at)
            if decoded is None or decoded[1] + decoded[0] > len(data):
                return None
            inside, at = data[decoded[1] : decoded[1] + decoded[0]], decoded[1] + decoded[0]
            lines += _protobuf_bytes(number, inside, depth)
        else:
            return None
    return lines


def _protobuf_bytes(number: int, inside: bytes, depth: int) -> Iterator[str]:
    text = inside.decode("utf-8", "replace")
    if text.isprintable() and "\ufffd" not in text:
        yield f"{number}: {json.dumps(text, ensure_ascii=False)}"
        return
    nested = _protobuf(inside, depth + 1) if depth < MAX_DEPTH else None
    if nested is None:
        yield f"{number}: {printable(repr(inside)[1:])}"
        return
    yield f"{number} {{"
    for line in nested:
        yield f"  {line}"
    yield "}"


def _varint(data: bytes, at: int) -> tuple[int, int] | None:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return None
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value & (1 << 64) - 1, at
    return None


def hex_dump(data: bytes) -> str:
    """Lines of sixteen bytes: offset, bytes, characters."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        shown = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
        lines.append(f"{at:06x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {shown}")
    return "\n".join(lines)


def preview(body: bytes, limit: int = 120) -> str:
    """Return the beginning of a body in one line."""
    text = body[:limit].decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in text)
    return f"{shown}…" if len(body) > limit else shown
