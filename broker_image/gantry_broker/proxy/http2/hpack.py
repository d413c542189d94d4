"""HPACK (RFC 7541): the decoder of one connection, and literals for answers.

Answers use the static table and literals only, so this end keeps no table for them. What a block may hold is limited
before it is built: the bytes of a block, the fields, and the bytes of all names and values together.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

TABLE_BYTES: Final = 4_096
"""The largest dynamic table: HTTP/2's default, which this end never changes."""
MAX_LIST: Final = 32 * 1024
"""Bytes of all fields of one block, each with 32 more, as SETTINGS_MAX_HEADER_LIST_SIZE counts them."""
MAX_FIELDS: Final = 128
MAX_RESIZES: Final = 2
"""Changes of the table's size at the beginning of a block: RFC 7541 (4.2) needs the smallest and the last one."""
MAX_REMEMBERED: Final = 256
"""Bytes of a Huffman text of which the decoded form is kept for all connections."""
_ENTRY: Final = 32

Field = tuple[str, str]


class HpackError(ValueError):
    """The block cannot be decoded; the connection's state is lost."""


class TooLarge(HpackError):
    """The block holds more than `MAX_LIST` or `MAX_FIELDS` allow."""


_STATIC_TEXT: Final = """:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https
:status 200|:status 204|:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset
accept-encoding gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age|allow
authorization|cache-control|content-disposition|content-encoding|content-language|content-length|content-location
content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match
if-range|if-unmodified-since|last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range
referer|refresh|retry-after|server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via
www-authenticate"""
STATIC: Final[tuple[Field, ...]] = tuple(
    (text.partition(" ")[0], text.partition(" ")[2]) for text in _STATIC_TEXT.replace("\n", "|").split("|")
)
"""The static table, whose first entry has the number 1."""

_STATICS: Final = len(STATIC)
_NAMES: Final[dict[bytes, str]] = {}
"""Names that were decoded: clients send the same few."""
_MOST_NAMES: Final = 512
_MOST_KEPT: Final = 1_024
_MOST_FIELDS: Final = 32
"""Bytes and fields of a block whose beginning is kept for the next ones."""
_MOST_BEGINNINGS: Final = 3
"""Beginnings of one connection."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_LENGTHS: Final = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad67777777777777777777777878djde6"
    "f56565666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmnq"
    "qkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
"""Bits of the Huffman code of each byte, then of the end mark, as base-36 digits. Codes follow from the lengths: they
are given in the order of length, and of bytes of the same length.
"""


def _huffman_steps() -> list[list[tuple[int, int, bool]]]:
    """Return, by state and next four bits: the next state (-1: no such code), the byte that ended (-1: none), and
    whether the text may end there (all bits since the last byte are ones, and fewer than eight).
    """
    lengths = [_DIGITS.index(digit) for digit in _LENGTHS]
    children: list[list[int]] = [[0, 0]]
    symbols: dict[int, int] = {}
    code, former = 0, 0
    for symbol in sorted(range(len(lengths)), key=lambda byte: (lengths[byte], byte)):
        code <<= lengths[symbol] - former
        former = lengths[symbol]
        node = 0
        for position in range(former - 1, -1, -1):
            bit = code >> position & 1
            if not children[node][bit]:
                children.append([0, 0])
                children[node][bit] = len(children) - 1
            node = children[node][bit]
        symbols[node] = symbol
        code += 1
    ends = {0}
    node = 0
    for _ in range(7):  # a padding of at most seven ones
        node = children[node][1]
        ends.add(node)
    table: list[list[tuple[int, int, bool]]] = []
    for state in range(len(children)):
        row = []
        for bits in range(16):
            node, byte = state, -1
            for position in (3, 2, 1, 0):
                node = children[node][bits >> position & 1] if node >= 0 and node not in symbols else -1
                if node <= 0:
                    node = -1
                    break
                if node in symbols:
                    if symbols[node] == 256:
                        node = -1
                        break
                    byte, node = symbols[node], 0
            row.append((node, byte, node in ends))
        table.append(row)
    return table


_STEPS: Final = _huffman_steps()


def huffman_decode(data: bytes) -> str:
    """Decode a text. Raises HpackError. Remembers short texts only: peers choose what is kept here."""
    return _remembered(data) if len(data) <= MAX_REMEMBERED else _decode(data)


def _decode(data: bytes) -> str:
    out = bytearray()
    state, may_end = 0, True
    steps = _STEPS
    for byte in data:
        state, symbol, may_end = steps[state][byte >> 4]
        if symbol >= 0:
            out.append(symbol)
        if state < 0:
            raise HpackError("a Huffman code is not one of the table")
        state, symbol, may_end = steps[state][byte & 15]
        if symbol >= 0:
            out.append(symbol)
        if state < 0:
            raise HpackError("a Huffman code is not one of the table")
    if not may_end:
        raise HpackError("a Huffman text ends with a padding that is none")
    return out.decode("latin-1")


_remembered = lru_cache(maxsize=2_048)(_decode)


class Beginning:
    """What several blocks of a connection begin with, and what was found out about it."""

    __slots__ = ("block", "fields", "kept", "names", "rest", "total")

    def __init__(self, block: bytes, fields: list[Field], total: int) -> None:
        self.block = block
        self.fields = fields
        self.total = total
        """Bytes of the fields, as `MAX_LIST` counts them."""
        self.names: tuple[str, ...] | None = None
        """Of the fields, once they were found valid as the beginning of a request."""
        self.rest: tuple[str, ...] | None = None
        """Names that were found valid behind this beginning, without content-length."""
        self.kept: tuple[dict[str, str], int] | None = None
        """The owner's: what it keeps of the fields, and its bytes."""


class Decoder:
    """Decodes the blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._table: list[Field] = []
        """The dynamic table, the newest entry first."""
        self._size = 0
        self._most = TABLE_BYTES
        self._beginnings: list[Beginning] = []
        """Those of the last blocks, the newest first: a client repeats a few requests, and of each some fields at the
        end change. They hold while the table stays as it is.
        """
        self._recent: list[bytes] = []
        """The last blocks that began with none of them."""
        self.begun: Beginning | None = None
        """With this the last block began; None: with none that is known."""

    def decode(self, block: bytes) -> list[Field]:
        """Decode a block of headers. Raises HpackError, and TooLarge."""
        end = len(block)
        marks: list[tuple[int, int]] | None
        beginnings = self._beginnings
        begun = beginnings[0] if beginnings else None
        if begun is not None and not block.startswith(begun.block):
            begun = self._other(block)
        if begun is not None:
            fields, at, total, resizes, marks = begun.fields[:], len(begun.block), begun.total, 0, None
        else:
            fields, at, total, resizes = [], 0, 0, MAX_RESIZES
            marks = []
        """Where each field ends, and the bytes of all fields until there; None: nothing more is learnt."""
        self.begun = begun
        changed = False
        table, names = self._table, _NAMES
        while at < end:
            first = block[at]
            if first & 0x80:
                if first < 0xFF and (number := first & 0x7F):
                    at += 1
                    if number <= _STATICS:
                        field = STATIC[number - 1]
                    elif number - _STATICS <= len(table):
                        field = table[number - _STATICS - 1]
                    else:
                        field = self._entry(number)
                else:
                    number, at = _integer(block, at, 7)
                    field = self._entry(number)
            elif not first & 0xEF and at + 2 < end and (size := block[at + 1]) < 0x7F and at + 2 + size < end:
                # A short name and a value without a table, as most clients send what changes with each request.
                stop = at + 2 + size
                raw = block[at + 2 : stop]
                name = names.get(raw)
                if name is None:
                    name = _name(raw)
                length = block[stop]
                at = stop + 1
                stop = at + (length & 0x7F)
                if length & 0x7F < 0x7F and stop <= end:
                    raw = block[at:stop]
                    field = name, huffman_decode(raw) if length & 0x80 else raw.decode("latin-1")
                    at = stop
                else:
                    value, at = _string(block, at - 1)
                    field = name, value
            elif first & 0xC0 == 0x40:
                field, at = self._literal(block, at, 6)
                self._insert(field)
                changed, marks = True, None
            elif first & 0xE0 == 0x20:
                if not resizes:
                    raise HpackError("the table's size changes too often, or in the middle of a block")
                resizes -= 1
                self._most, at = _integer(block, at, 5)
                if self._most > TABLE_BYTES:
                    raise HpackError(f"the table's size of {self._most} is over {TABLE_BYTES}")
                self._evict(self._most)
                changed, marks = True, None
                continue
            else:
                field, at = self._literal(block, at, 4)
            resizes = 0
            fields.append(field)
            total += len(field[0]) + len(field[1]) + _ENTRY
            if total > MAX_LIST or len(fields) > MAX_FIELDS:
                raise TooLarge(f"a header has over {MAX_FIELDS} fields or {MAX_LIST} bytes")
            if marks is not None:
                marks.append((at, total))
        if changed:
            beginnings.clear()
            self._recent.clear()
        elif marks:
            self._learn(block, fields, marks)
        return fields

    def _other(self, block: bytes) -> Beginning | None:
        """Return the beginning of a block, not the newest one, which becomes the newest; None: it is not known."""
        beginnings = self._beginnings
        for at in range(1, len(beginnings)):
            if block.startswith(beginnings[at].block):
                begun = beginnings.pop(at)
                beginnings.insert(0, begun)
                return begun
        return None

    def _learn(self, block: bytes, fields: list[Field], marks: list[tuple[int, int]]) -> None:
        """Keep what this block and a recent one have in common at their beginning, if it is half of the fields."""
        if len(block) > _MOST_KEPT or len(fields) > _MOST_FIELDS:
            return
        count = 0
        for recent in self._recent:
            same = len(marks)
            while same > count and not recent.startswith(block[: marks[same - 1][0]]):
                same -= 1
            count = max(count, same)
        self._recent.insert(0, block)
        del self._recent[_MOST_BEGINNINGS:]
        if count * 2 < len(fields):
            return
        stop, total = marks[count - 1]
        start = block[:stop]
        beginnings = self._beginnings
        beginnings[:] = [other for other in beginnings if not other.block.startswith(start)][: _MOST_BEGINNINGS - 1]
        beginnings.insert(0, Beginning(start, fields[:count], total))

    def _entry(self, number: int) -> Field:
        if 0 < number <= len(STATIC):
            return STATIC[number - 1]
        at = number - len(STATIC) - 1
        if number == 0 or at >= len(self._table):
            raise HpackError(f"the tables have no entry {number}")
        return self._table[at]

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Field, int]:
        number, at = _integer(block, at, bits)
        if number:
            name = self._entry(number)[0]
        else:
            name, at = _string(block, at)
        first = block[at] if at < len(block) else 0xFF
        if first & 0x7F < 0x7F and at + 1 + (first & 0x7F) <= len(block):  # the usual case, without two calls
            stop = at + 1 + (first & 0x7F)
            raw = block[at + 1 : stop]
            return (name, huffman_decode(raw) if first & 0x80 else raw.decode("latin-1")), stop
        value, at = _string(block, at)
        return (name, value), at

    def _insert(self, field: Field) -> None:
        size = len(field[0]) + len(field[1]) + _ENTRY
        self._evict(self._most - size)
        if size <= self._most:
            self._table.insert(0, field)
            self._size += size

    def _evict(self, most: int) -> None:
        table = self._table
        while table and self._size > most:
            name, value = table.pop()
            self._size -= len(name) + len(value) + _ENTRY


def _name(raw: bytes) -> str:
    name = raw.decode("latin-1")
    if len(_NAMES) < _MOST_NAMES:
        _NAMES[raw] = name
    return name


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 28, 7):
        if at >= len(block):
            raise HpackError("the block ends within a number")
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HpackError("a number is too large")


def _string(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise HpackError("the block ends before a text")
    huffman = block[at] & 0x80
    length, at = _integer(block, at, 7)
    stop = at + length
    if stop > len(block):
        raise HpackError("the block ends within a text")
    raw = block[at:stop]
    return (huffman_decode(raw) if huffman else raw.decode("latin-1")), stop


def literal(name: str, value: str) -> bytes:
    """Encode a field that no table has, for an answer."""
    return b"".join((b"\0", _sized(name.encode("latin-1")), _sized(value.encode("latin-1", "replace"))))


def status(code: int) -> bytes:
    """Encode the pseudo field `:status`."""
    number = next((at for at, field in enumerate(STATIC, 1) if field == (":status", str(code))), None)
    if number is not None:
        return bytes((0x80 | number,))
    return b"\x08" + _sized(str(code).encode())


def _sized(data: bytes) -> bytes:
    length = len(data)
    if length < 127:
        return bytes((length,)) + data
    head = bytearray((127,))
    length -= 127
    while length >= 128:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data
