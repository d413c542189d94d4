"""Recognises pulls whose header repeats an earlier one but for its numbers, without a JSON parser. Pure.

A `Layout` says where a client's library writes the numbers. It splits a header into the numbers and the text around
them; together they are the whole header. The text of a `Template` is that of a header that the full parser has read. So
a header with this text gives the same request with other numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from gantry_broker.protocol.codes import EXPRESSION_TAG, RequestCode

PULLS: Final = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})
MAX_TEMPLATES: Final = 4_096
"""Of all connections."""
MAX_SAMPLE: Final = 1_024
"""Bytes of the header of a template."""
MAX_LAYOUTS: Final = 256
"""Of all connections. Further ones are not recognised."""
_NUMBERS: Final = {
    "opaque": b"([1-9][0-9]{0,8}+)",
    "queueId": b"([0-9]{1,9}+)",
    "queueOffset": b"([0-9]{1,18}+)",
    "commitOffset": b"([0-9]{1,18}+)",
}
"""What differs between the pulls of one consumer of one topic, within the ranges of Java's types."""

Texts = tuple[bytes, ...]
"""The bytes before, between and behind the numbers."""


class Layout:
    """Where the numbers stand, and the lengths of the names before them."""

    __slots__ = ("__weakref__", "match", "numbers")

    def __init__(self, pattern: bytes, names: list[str]) -> None:
        """`names`: of the numbers, in their order."""
        self.match: Callable[[bytes, int, int], re.Match[bytes] | None] = re.compile(pattern, re.DOTALL).fullmatch
        """Split the header between two places of some bytes: its groups are texts and numbers in turn."""
        self.numbers: Callable[[Texts], tuple[bytes, bytes, bytes, bytes]] = itemgetter(
            *[1 + 2 * names.index(name) for name in _NUMBERS]
        )
        """Opaque, queue, queue offset and committed offset out of the groups."""


class Template:
    """The texts that pulls have in common."""

    __slots__ = ("code", "numbers")

    def __init__(self, code: int, layout: Layout) -> None:
        self.code = code
        self.numbers = layout.numbers


templates: Final[dict[Texts, Template]] = {}
"""The templates of all connections. Only unsigned requests that were read get here."""
_layouts: Final[WeakValueDictionary[bytes, Layout]] = WeakValueDictionary()
"""By pattern, while a connection has pulls of this layout: there is one for each library of clients."""


def learn(header: bytes) -> Layout | None:
    """Keep the template of a request's JSON header that the full parser has read, and return its layout; None: this
    is no pull, or one with an SQL92 filter, has another form than orjson would write, or there are too many layouts.
    """
    if len(header) > MAX_SAMPLE:
        return None
    head = orjson.loads(header)
    ext = head.get("extFields")
    if (
        head.get("code") not in PULLS
        or type(head.get("flag")) is not int
        or head["flag"] != 0
        or type(head.get("opaque")) is not int
        or not isinstance(ext, dict)
        or not all(isinstance(value, str) for value in ext.values())
        or not _NUMBERS.keys() - {"opaque"} <= ext.keys()
        or ext.get("expressionType", EXPRESSION_TAG) != EXPRESSION_TAG  # Each such pull is checked in full.
        or any(isinstance(value, (dict, list)) for name, value in head.items() if name != "extFields")
        or orjson.dumps(head) != header  # A name comes twice, or there are spaces.
    ):
        return None
    parts = list(_parts(head))
    names = [name for name, _, _ in parts if name]
    pattern = b"".join([b"(" + span + b")" + _NUMBERS.get(name, b"") for name, _, span in parts])
    layout = _layouts.get(pattern)
    if layout is None:
        if len(_layouts) >= MAX_LAYOUTS:
            return None
        layout = _layouts[pattern] = Layout(pattern, names)
    texts = tuple([text for _, text, _ in parts])
    match = layout.match(header, 0, len(header))
    if match is not None and match.groups()[::2] == texts:
        if len(templates) >= MAX_TEMPLATES:
            templates.clear()
        templates[texts] = Template(head["code"], layout)
    return layout


def _parts(head: dict[str, Any]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields each number's name, the text before it and a pattern for such texts; last the text behind all numbers,
    with an empty name.
    """
    text, pattern = b"", b""

    def add(fixed: bytes) -> None:
        nonlocal text, pattern
        text += fixed
        pattern += b".{%d}" % len(fixed)

    for place, (name, value) in enumerate(head.items()):
        add((b"," if place else b"{") + orjson.dumps(name) + b":")
        if name == "opaque":
            yield name, text, pattern
            text, pattern = b"", b""
        elif name != "extFields":
            add(orjson.dumps(value))
        else:
            for number, (field, content) in enumerate(value.items()):
                add((b"," if number else b"{") + orjson.dumps(field) + b':"')
                if field in _NUMBERS and field != "opaque":
                    yield field, text, pattern
                    text, pattern = b"", b""
                else:
                    text += orjson.dumps(content)[1:-1]
                    pattern += b'[^"]*+'
                add(b'"')
            add(b"}")
    add(b"}")
    yield "", text, pattern
