"""Encoding and decoding of remoting frames, without I/O.

On the wire: `int32 length | int32 (serialize type << 24 | header length) | header | body`, big endian; `length` counts
all bytes after it. Header forms: 0 JSON (fastjson's `RemotingCommand`), 1 ROCKETMQ (compact binary). Source: traffic of
4.9.7 and 5.5.0.

`FrameDecoder.feed` takes one read of a socket and returns all frames that it completes. It is the broker's hottest
code: one header parse and one object per frame, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import orjson

from gantry_broker.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, MQ_VERSION, LanguageCode, SerializeType
from gantry_broker.protocol.repeated_pulls import PULLS, Layout, Template, Texts, learn, templates

if TYPE_CHECKING:  # A client has no compiled core.
    from gantry_core import SendRules

MAX_FRAME: Final = 16 * 1024 * 1024
"""Bytes of the largest frame, without its length field."""
MAX_HEADER: Final = 2 * 1024 * 1024
"""Bytes of the largest header: the answer to a batch names every message in it, 33 bytes each."""

SMALL_FRAME: Final = 64 * 1024
"""A frame up to this size is within the body limit of every request code, so its code is not looked up."""
SMALL_HEADER: Final = 16 * 1024
"""A header up to this size is within the header limit of every request code."""
MAX_ELEMENTS: Final = 4_096
"""Names, values and brackets of a large header. Beside them it is text, which costs little to read."""
_FEW_CHUNKS: Final = 64
_CHUNK: Final = 4096
"""An unfinished frame is kept in at most `_FEW_CHUNKS` parts and one more for each `_CHUNK` bytes: a peer that sends
single bytes must not cost an object for each."""

_ALL: Final = 1 << 62
_LOOK_AFTER: Final = 16
"""Reads of a connection that end with a pull of no known template before one is learnt, which costs as much as two
pulls."""
_LATER_LOOKS: Final = 8
"""By this factor grow the reads after a change of the layout, which costs as much as some 20 pulls."""

CREDENTIALS: Final = frozenset({"AccessKey", "Signature", "SecurityToken"})
"""Fields of a signed request that say who signed it: they go to no one else, nor into a log."""

_JSON: Final = int(SerializeType.JSON)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_PYTHON: Final = int(LanguageCode.PYTHON)
_LANGUAGE_NAMES: Final = {int(code): code.name for code in LanguageCode}
_LANGUAGE_CODES: Final = {code.name: int(code) for code in LanguageCode}
_OTHER: Final = int(LanguageCode.OTHER)

_LENGTHS = Struct(">iI")
_COMPACT = Struct(">hBhiii")
_INT = Struct(">i")
_SHORT = Struct(">h")
_ROW = Struct(">II11x")
"""Size of the record and number of the queue in a row of `gantry_core.SendRules`."""
_unpack_lengths = _LENGTHS.unpack_from


class FrameError(Exception):
    """Bytes are not a frame; the connection that sent them is unusable.

    `opaque` and `serialize` identify the request for an error answer, if they could be read; `frames` are the good
    frames before it in the same read.
    """

    def __init__(self, reason: str, *, opaque: int | None = None, serialize: int = _JSON) -> None:
        super().__init__(reason)
        self.reason = reason
        self.opaque = opaque
        self.serialize = serialize
        self.frames: list[Frame] = []


class Frame:
    """One request or answer. `ext` holds the header's fields (strings), `body` may be empty."""

    __slots__ = ("body", "code", "ext", "flag", "language", "opaque", "remark", "serialize", "version")
    known_unsigned: ClassVar[bool] = False
    """Whether no request of this class has a signature."""

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
        serialize: int = _JSON,
        language: int = _PYTHON,
        version: int = MQ_VERSION,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.ext = {} if ext is None else ext
        self.body = body
        self.remark = remark
        self.serialize = serialize
        self.language = language
        self.version = version

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether this is a request without an answer."""
        return self.flag & FLAG_ONEWAY != 0

    @classmethod
    def response_to(
        cls,
        request: Frame,
        code: int,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Frame:
        """Create the answer to `request`: same opaque, same serialization."""
        return cls(code, request.opaque, FLAG_RESPONSE, ext, body, remark, request.serialize)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        ext = {name: "***" if name in CREDENTIALS or name == "secretKey" else value for name, value in self.ext.items()}
        return f"<Frame {kind} code={self.code} opaque={self.opaque} ext={ext} body={len(self.body)}B>"

    def __eq__(self, other: object) -> bool:
        """Compare every field, and the body's bytes."""
        if not isinstance(other, Frame):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Frame.__slots__)

    __hash__ = None  # type: ignore[assignment]


class RepeatedPull(Frame):
    """A pull with a known template. It parses its header when another field is wanted than its code and flag."""

    __slots__ = ("groups", "template")
    known_unsigned: ClassVar[bool] = True

    def __init__(self, template: Template, groups: Texts) -> None:
        self.code = template.code
        self.flag = 0
        self.template = template
        self.groups = groups
        """Texts and numbers of the header, in turn."""

    def __getattr__(self, name: str) -> Any:
        if name not in Frame.__slots__:
            raise AttributeError(name)
        header = b"".join(self.groups)
        [full] = FrameDecoder().feed(_LENGTHS.pack(4 + len(header), len(header)) + header)
        for slot in Frame.__slots__:
            if slot not in ("code", "flag"):
                setattr(self, slot, getattr(full, slot))
        return getattr(full, name)


class Sends(NamedTuple):
    """The plain sends that a read began with: `gantry_core.SendRules` has found nothing unusual about them."""

    data: bytes
    """The read; the first `end` bytes of it are the sends."""
    end: int
    messages: int
    requests: int
    """As many as messages, unless they are batches."""
    code: int
    user: str | None
    """The access key of all of them; "" for another credential without one."""
    topics: list[tuple[str, int, int, int, int, int]]
    """Name, its largest queue, messages, bytes of their records, of the smallest and of the largest one."""
    topic_of: list[int]
    """The topic of each of `queues`."""
    queues: list[int]
    """The queues, each of them once, in the order of their first messages."""
    most_body: int
    """Bytes of the largest body."""
    first: bytes
    """Properties of the first message; b"": they are batches."""
    records: bytearray
    rows: bytes
    hashes: bytes
    signed: bytes
    """For `gantry_core.SignatureKeys`; b"": not all are signed, or another look has to decide."""

    def sizes(self, topic: str) -> list[int]:
        """Return the bytes of the records of a topic, one by one."""
        of_topic = {group for group, at in enumerate(self.topic_of) if self.topics[at][0] == topic}
        return [size for size, group in _ROW.iter_unpack(self.rows) if group in of_topic]

    def frames(self) -> list[Frame]:
        """Return the requests one by one."""
        return FrameDecoder().feed(self.data[: self.end])


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame with its length field. Raises FrameError when a field does not fit its form."""
    header, body = _encode_header(frame), frame.body
    size = len(header)
    return b"".join((_LENGTHS.pack(4 + size + len(body), frame.serialize << 24 | size), header, body))


def encode_head(frame: Frame, body_size: int) -> bytes:
    """Encode what precedes a body of `body_size` bytes, which the caller sends itself. Raises as `encode_frame`."""
    header = _encode_header(frame)
    size = len(header)
    return _LENGTHS.pack(4 + size + body_size, frame.serialize << 24 | size) + header


def _encode_header(frame: Frame) -> bytes:
    try:
        if frame.serialize == _ROCKETMQ:
            header = _encode_compact(frame)
        else:
            fields: dict[str, Any] = {
                "code": frame.code,
                "flag": frame.flag,
                "language": _LANGUAGE_NAMES.get(frame.language, "OTHER"),
                "opaque": frame.opaque,
                "serializeTypeCurrentRPC": "JSON",
                "version": frame.version,
            }
            if frame.ext:
                fields["extFields"] = frame.ext
            if frame.remark is not None:
                fields["remark"] = frame.remark
            header = orjson.dumps(fields)
    except (struct_error, orjson.JSONEncodeError, UnicodeEncodeError) as error:
        raise FrameError(
            f"frame of code {frame.code} cannot be written: {error}", opaque=frame.opaque, serialize=frame.serialize
        ) from error
    size = len(header)
    if size > MAX_HEADER:
        raise FrameError(
            f"header of {size} bytes is over the limit of {MAX_HEADER}", opaque=frame.opaque, serialize=frame.serialize
        )
    return header


def _encode_compact(frame: Frame) -> bytes:
    remark = b"" if frame.remark is None else frame.remark.encode()
    parts = [
        _COMPACT.pack(frame.code, frame.language, frame.version, frame.opaque, frame.flag, len(remark)),
        remark,
        b"",
    ]
    total = 0
    for key, value in frame.ext.items():
        name, text = key.encode(), value.encode()
        parts += (_SHORT.pack(len(name)), name, _INT.pack(len(text)), text)
        total += 6 + len(name) + len(text)
    parts[2] = _INT.pack(total)
    return b"".join(parts)


class Refusal(NamedTuple):
    """A request over its limit: the request without its body, and the code and remark of the answer."""

    request: Frame
    code: int
    remark: str


class FrameLimits(Protocol):
    """The size limits of requests (`gantry_broker.protocol.limits.RequestLimits`)."""

    def refusal(self, frame: Frame, header: int, body: int) -> Refusal | None:
        """Why a request with a header and a body of these sizes (bytes) is refused; None accepts it."""
        ...


class FrameDecoder:
    """Splits a byte stream into frames. After a FrameError it accepts no more data."""

    __slots__ = (
        "_chunks",
        "_layout",
        "_limits",
        "_look_after",
        "_max_frame",
        "_needed",
        "_skip",
        "_small",
        "_small_header",
        "_unlike",
        "held",
        "more",
        "refused",
        "sends",
    )

    def __init__(self, max_frame: int = MAX_FRAME, limits: FrameLimits | None = None) -> None:
        """`max_frame`: bytes of the largest frame that is accepted, without the length field.

        `limits`: the size limits of each request code; None accepts any frame up to `max_frame`. A request over its
        limit goes to `refused` as soon as its header is complete. The decoder drops its body and goes on.
        """
        self._max_frame = max_frame
        self._limits = limits
        self._small = max_frame if limits is None else min(max_frame, SMALL_FRAME)
        self._small_header = MAX_HEADER if limits is None else SMALL_HEADER
        self._chunks: list[bytes] = []
        self.held = 0
        """Bytes of an unfinished frame in memory."""
        self._needed = 0
        self._skip = 0
        self._layout: Layout | None = None
        """Of the pulls of this connection."""
        self._unlike = 0
        """Reads since the last look for a template that ended with a pull without one."""
        self._look_after = _LOOK_AFTER
        self.more = False
        """Whether `feed` has left bytes because it had returned enough frames."""
        self.refused: list[Refusal] = []
        """Requests over their limit, in order; the caller answers and clears them."""
        self.sends: Sends | None = None
        """The plain sends that came before the frames of the last `feed`, if it was called with rules."""

    @property
    def unfinished(self) -> bool:
        """Whether a frame has begun and not ended, kept or dropped."""
        return self.held > 0 or self._skip > 0

    def clear(self) -> None:
        """Drop what it holds: the connection has ended."""
        self._chunks.clear()
        self.held = 0
        self.more = False

    def feed(
        self, data: bytes, most: int = _ALL, rules: SendRules | None = None, host: bytes = bytes(8)
    ) -> list[Frame]:
        """Return the frames that `data` completes, in order. After `most` of them `more` is true: the next call, with
        b"" or further bytes, goes on with the rest. With `rules` the plain sends before the first other frame go to
        `sends` instead; `host`: the packed address of the peer.

        Raises FrameError at the first bad one; the good ones before it are in `error.frames`, and in `sends`.
        """
        self.sends = None
        if self._skip:
            if len(data) <= self._skip:
                self._skip -= len(data)
                return []
            data = data[self._skip :]
            self._skip = 0
        if self._chunks:
            if data:
                self._chunks.append(data)
            self.held += len(data)
            if self.held < self._needed and not self.more:
                if len(self._chunks) > _FEW_CHUNKS + self.held // _CHUNK:
                    self._chunks = [b"".join(self._chunks)]
                return []  # joined once, so that a large frame in small reads causes no quadratic copying
            data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            self._chunks.clear()
            self.held = 0
            self.more = False
        frames: list[Frame] = []
        append = frames.append
        loads = orjson.loads
        position = 0
        end = len(data)
        small = self._small
        small_header = self._small_header
        languages = _LANGUAGE_CODES
        layout = self._layout
        if rules is not None and (split := rules.split(data, most, host)) is not None:
            self.sends = Sends(data, *split)
            position = self.sends.end
            most -= self.sends.requests
        try:
            for _ in range(most):
                if end - position < 8:
                    break
                length, mark = _unpack_lengths(data, position)
                stop = position + 4 + length
                size = mark & 0xFFFFFF
                if length > small or size > length - 4 or size > small_header:
                    header_read, keep = self._admit(data, position, length, mark)
                    if not header_read:
                        break
                    if not keep:
                        self._skip = max(stop - end, 0)
                        position = min(stop, end)
                        continue
                if stop > end:
                    self._needed = stop - position
                    break
                start = position + 8
                body_start = start + size
                if mark >> 24 == _JSON:
                    if layout is not None and body_start == stop and (match := layout.match(data, start, stop)):
                        groups = match.groups()
                        template = templates.get(groups[::2])
                        if template is not None:
                            append(RepeatedPull(template, groups))
                            position = stop
                            continue
                    try:
                        head = loads(data[start:body_start])
                        ext = head.get("extFields")
                        if ext:
                            "".join(ext.values())  # one C call checks that every value is a string
                        else:
                            ext = {}
                        code = head["code"]
                        opaque = head["opaque"]
                        flag = head["flag"]
                        version = head["version"]
                        remark = head.get("remark")
                        code | flag | version  # strings, fractions and lists raise TypeError
                        if -0x80000000 <= opaque | 0 <= 0x7FFFFFFF and (remark is None or type(remark) is str):
                            append(
                                Frame(
                                    code,
                                    opaque,
                                    flag,
                                    ext,
                                    data[body_start:stop],
                                    remark,
                                    _JSON,
                                    languages[head["language"]],
                                    version,
                                )
                            )
                            position = stop
                            continue
                    except orjson.JSONDecodeError as error:
                        raise FrameError(f"header is not JSON: {error}") from None
                    except (KeyError, TypeError, AttributeError):
                        pass  # the slow path reads unusual headers
                    append(_decode_unusual_json(data[start:body_start], data[body_start:stop]))
                elif mark >> 24 == _ROCKETMQ:
                    append(_decode_compact(data, start, body_start, stop))
                else:
                    raise FrameError(f"serialize type {mark >> 24} is unknown; 0 (JSON) and 1 (ROCKETMQ) are known")
                position = stop
            else:
                self.more = position < end
        except FrameError as error:
            error.frames = frames
            raise
        if frames and frames[-1].code in PULLS:
            self._learn(frames[-1], data[start:body_start])
        if position < end:
            rest = data[position:] if position else data
            self._chunks.append(rest)
            self.held = len(rest)
            if self.held < 8:
                self._needed = 8
        return frames

    def _learn(self, pull: Frame, header: bytes) -> None:
        """Learns the template of the last pull of a read, from time to time."""
        if type(pull) is RepeatedPull:
            return
        self._unlike += 1
        if self._unlike < self._look_after:
            return
        self._unlike = 0
        # The check of a signature reads all fields, so a signed pull is parsed anyway.
        if pull.serialize == _JSON and not pull.body and not CREDENTIALS & pull.ext.keys():
            layout = learn(header)
            if layout is not None and layout is not self._layout:
                if self._layout is not None:
                    self._look_after *= _LATER_LOOKS
                self._layout = layout

    def _admit(self, data: bytes, position: int, length: int, mark: int) -> tuple[bool, bool]:
        """(whether enough of a large frame is there to judge it, whether it is wanted). Raises FrameError."""
        size = mark & 0xFFFFFF
        if length > self._max_frame or size > length - 4 or size > MAX_HEADER:
            return self._refuse(data, position, length, mark), False
        limits = self._limits
        if limits is None:
            return True, True
        start = position + 8
        if len(data) < start + size:
            self._needed = 8 + size
            return False, False
        head = data[start : start + size]
        serialize = mark >> 24
        if size > SMALL_HEADER:
            _check_elements(head, serialize)
        frame = _decode_unusual_json(head, b"") if serialize == _JSON else _decode_compact(head, 0, size, size)
        refusal = limits.refusal(frame, size, length - 4 - size)
        if refusal is None:
            return True, True
        self.refused.append(refusal)
        return True, False

    def _refuse(self, data: bytes, position: int, length: int, mark: int) -> bool:
        """Raise FrameError for impossible lengths; False: the header with the opaque for the answer is incomplete."""
        size = mark & 0xFFFFFF
        serialize = mark >> 24
        if length < 4 or size > length - 4 or serialize not in (_JSON, _ROCKETMQ):
            raise FrameError(f"frame length {length} and header length {size} contradict each other")
        if size > 65_536:
            raise FrameError(f"frame of {length} bytes with a header of {size} bytes is over the limit")
        start = position + 8
        if len(data) < start + size:
            self._needed = 8 + size
            return False
        head = data[start : start + size]
        frame = _decode_unusual_json(head, b"") if serialize == _JSON else _decode_compact(head, 0, size, size)
        raise FrameError(
            f"frame of {length} bytes is over the limit of {self._max_frame}", opaque=frame.opaque, serialize=serialize
        )


def _check_elements(head: bytes, serialize: int) -> None:
    """Raise FrameError for a header whose parts cost much to read, before they are read."""
    if serialize == _JSON:
        plain = head.replace(b"\\\\", b"").replace(b'\\"', b"")
        elements = plain.count(b'"') // 2
        if elements <= MAX_ELEMENTS:
            between = b"".join(plain.split(b'"')[::2])
            elements = max(elements, between.count(b",") + between.count(b"[") + between.count(b"{"))
    elif serialize == _ROCKETMQ:
        elements = _compact_fields(head)
    else:
        return
    if elements > MAX_ELEMENTS:
        raise FrameError(
            f"header of {len(head)} bytes has over {MAX_ELEMENTS} names and values, which is the limit",
            serialize=serialize,
        )


def _compact_fields(head: bytes) -> int:
    """Count the fields of a compact header, one more than the limit at most; 0: it is not such a header."""
    try:
        position = 21 + _INT.unpack_from(head, 13)[0]  # The remark, and the length of all fields.
        for count in range(MAX_ELEMENTS + 2):
            if position >= len(head):
                return count
            name = _SHORT.unpack_from(head, position)[0]
            value = _INT.unpack_from(head, position + 2 + name)[0]
            if name < 0 or value < 0:
                return 0
            position += 6 + name + value
    except struct_error:
        return 0
    return MAX_ELEMENTS + 1


def decode_header(header: bytes, serialize: int) -> Frame:
    """Decode the header of a frame whose body the caller reads by itself. Raises FrameError."""
    if serialize == _JSON:
        return _decode_unusual_json(header, b"")
    if serialize == _ROCKETMQ:
        return _decode_compact(header, 0, len(header), len(header))
    raise FrameError(f"serialize type {serialize} is unknown; 0 (JSON) and 1 (ROCKETMQ) are known")


def _decode_unusual_json(header: bytes, body: bytes) -> Frame:
    """Read an unusual JSON header as fastjson does: numbers for strings, nulls and gaps allowed."""
    try:
        head = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"header is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise FrameError(f"header is a JSON {type(head).__name__}; an object is expected")
    opaque = _int32(head, "opaque", 0, None)
    code = _int32(head, "code", 0, opaque)
    flag = _int32(head, "flag", 0, opaque)
    version = _int32(head, "version", 0, opaque)
    language = head.get("language")
    remark = head.get("remark")
    ext = head.get("extFields") or {}
    if not isinstance(ext, dict):
        raise FrameError(f"header field extFields is a JSON {type(ext).__name__}; an object is expected", opaque=opaque)
    return Frame(
        code,
        opaque,
        flag,
        {key: _text(value, key, opaque) for key, value in ext.items() if value is not None},
        body,
        None if remark is None else _text(remark, "remark", opaque),
        _JSON,
        _LANGUAGE_CODES.get(language, _OTHER) if isinstance(language, str) else int(LanguageCode.JAVA),
        version,
    )


def _int32(head: Mapping[str, Any], name: str, default: int, opaque: int | None) -> int:
    value = head.get(name)
    if value is None:
        return default
    if type(value) is not int or not -0x80000000 <= value <= 0x7FFFFFFF:
        raise FrameError(f"header field {name} is {str(value)[:60]!r}; a 32-bit integer is expected", opaque=opaque)
    return value


def _text(value: object, name: str, opaque: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise FrameError(
        f"header field {name[:60]!r} is a JSON {type(value).__name__}; a string is expected", opaque=opaque
    )


def _decode_compact(data: bytes, start: int, body_start: int, stop: int) -> Frame:
    opaque: int | None = None
    try:
        if body_start - start < 21:
            raise FrameError("ROCKETMQ header is shorter than its 21 fixed bytes", serialize=_ROCKETMQ)
        code, language, version, opaque, flag, size = _COMPACT.unpack_from(data, start)
        position = start + 17
        if size < 0 or position + size + 4 > body_start:
            raise FrameError(f"remark of {size} bytes does not fit the header")
        remark = data[position : position + size].decode() if size else None
        position += size
        (size,) = _INT.unpack_from(data, position)
        position += 4
        if size < 0 or position + size != body_start:
            raise FrameError(f"extension fields of {size} bytes do not fill the header")
        ext: dict[str, str] = {}
        while position < body_start:
            if body_start - position < 6:
                raise FrameError("extension fields end within a field")
            (size,) = _SHORT.unpack_from(data, position)
            position += 2
            if size < 0 or position + size + 4 > body_start:
                raise FrameError(f"field name of {size} bytes does not fit the header")
            name = data[position : position + size].decode()
            position += size
            (size,) = _INT.unpack_from(data, position)
            position += 4
            if size < 0 or position + size > body_start:
                raise FrameError(f"value of field {name[:60]!r} of {size} bytes does not fit the header")
            ext[name] = data[position : position + size].decode()
            position += size
    except UnicodeDecodeError as error:
        raise FrameError(f"header text is not UTF-8: {error}", opaque=opaque, serialize=_ROCKETMQ) from None
    except FrameError as error:
        error.opaque = opaque
        error.serialize = _ROCKETMQ
        raise
    return Frame(code, opaque, flag, ext, data[body_start:stop], remark, _ROCKETMQ, language, version)
