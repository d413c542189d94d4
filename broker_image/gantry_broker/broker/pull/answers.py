"""The header of an answer to a pull that found messages: no object and no encoder for each of them."""

from __future__ import annotations

from struct import Struct
from typing import Final

from gantry_broker.protocol.codes import FLAG_RESPONSE, MQ_VERSION, LanguageCode, ResponseCode, SerializeType
from gantry_broker.protocol.frame import Frame, encode_head
from gantry_broker.protocol.headers import Long, PullAnswer

_LENGTHS: Final = Struct(">iI")
_JSON: Final = int(SerializeType.JSON)
_FOUND: Final = int(ResponseCode.SUCCESS)
REMARK: Final = "FOUND"
_HEADER: Final = (
    f'{{"code":{_FOUND},"flag":{FLAG_RESPONSE},"language":"{LanguageCode.PYTHON.name}","opaque":%d,'
    f'"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION},"extFields":{{"suggestWhichBrokerId":"%d",'
    f'"nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"}},"remark":"{REMARK}"}}'
).encode()


def found_head(
    opaque: int, serialize: int, suggest: int, next_offset: int, min_offset: int, max_offset: int, size: int
) -> bytes:
    """Return what precedes the `size` bytes of records in the frame of the answer."""
    if serialize == _JSON:
        header = _HEADER % (opaque, suggest, next_offset, min_offset, max_offset)
        return _LENGTHS.pack(4 + len(header) + size, len(header)) + header
    fields = PullAnswer(Long(suggest), Long(next_offset), Long(min_offset), Long(max_offset))
    return encode_head(Frame(_FOUND, opaque, FLAG_RESPONSE, fields.ext(), b"", REMARK, serialize), size)
