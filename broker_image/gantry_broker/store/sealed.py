"""JSON files with a checksum in themselves: a changed bit must not become another offset, epoch or member.

The checksum is the last field of the object (`crc`), or the last item of the array. RocketMQ ignores fields that it
does not know. Content without a checksum is valid: RocketMQ and people write it.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

_SEAL: Final = re.compile(rb',\s*(\{)?"crc":([0-9]{1,10})(\})?([}\]])\s*$')


def seal(data: bytes) -> bytes:
    """Add the checksum to a JSON object or array; an empty one stays as it is."""
    data = data.rstrip()
    content, end = data[:-1].rstrip(), data[-1:]
    if content[-1:] in (b"{", b"[", b""):
        return data
    if end == b"]":
        return b'%b,{"crc":%d}]' % (content, crc32(content))
    return b'%b,"crc":%d}' % (content, crc32(content))


def fault_of(error: Exception) -> str:
    """Return in words what is wrong with a file's content, for an exception that its reader met."""
    if isinstance(error, KeyError):
        return f"the field {error.args[0]} is missing"
    return "it is not what the broker writes" if isinstance(error, (TypeError, AttributeError)) else str(error)


def unseal(data: bytes) -> bytes:
    """Return the JSON without its checksum. Raises ValueError when the checksum is not that of the content."""
    data = data.rstrip()  # A file may have room behind its content (`files.ReservedFile`).
    seal = _SEAL.search(data[-200:])
    if seal is None:
        return data
    content = data[: len(data) - len(seal.group(0))]
    if crc32(content) != int(seal.group(2)):
        raise ValueError("its checksum does not match: the file was changed or damaged")
    return content + seal.group(4)
