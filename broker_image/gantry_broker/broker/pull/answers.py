"""The answer to a pull that found messages, as bytes: no object and no encoder for each of them."""

from __future__ import annotations

from struct import Struct
from typing import Final

from gantry_broker.protocol.codes import FLAG_RESPONSE, MQ_VERSION, LanguageCode, ResponseCode, SerializeType
from gantry_broker.protocol.frame import Frame, encode_frame
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


def found_answer(
    opaque: int, serialize: int, suggest: int, next_offset: int, min_offset: int, max_offset: int, records: bytes
) -> bytes:
    """Return the frame of the answer with `records`."""
    if serialize == _JSON:
        header = _HEADER % (opaque, suggest, next_offset, min_offset, max_offset)
        size = len(header)
        return b"".join((_LENGTHS.pack(4 + size + len(records), size), header, records))
    fields = PullAnswer(Long(suggest), Long(next_offset), Long(min_offset), Long(max_offset))
    return encode_frame(Frame(_FOUND, opaque, FLAG_RESPONSE, fields.ext(), records, REMARK, serialize))
