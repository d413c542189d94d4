"""The page of a compaction report as a Secret of the cluster keeps it: written by the driver, read by the console."""

from __future__ import annotations

import gzip
import zlib
from typing import Final

KEY: Final = "report.html.gz"
"""The key of the Secret."""
MAX_PACKED: Final = 786_432
"""Bytes of a packed page. Kubernetes accepts 1 MiB in one Secret, and the operator has it in memory."""
MAX_PAGE: Final = 16_777_216
"""Bytes of a page."""


def pack(page: bytes) -> bytes | None:
    """Return the packed page; None: it is too large for a Secret."""
    packed = gzip.compress(page, 9, mtime=0)
    return packed if len(page) <= MAX_PAGE and len(packed) <= MAX_PACKED else None


def unpack(packed: bytes, most: int = MAX_PAGE) -> bytes | None:
    """Return the page; None: these bytes are none, or more than `most`."""
    reader = zlib.decompressobj(wbits=31)
    try:
        page = reader.decompress(packed, most + 1)
    except zlib.error:
        return None
    return page if reader.eof and len(page) <= most else None
