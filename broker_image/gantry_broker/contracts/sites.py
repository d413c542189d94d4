"""What broker and operator must agree on about a cluster at two sites."""

from __future__ import annotations

import zlib
from typing import Final

LEAP: Final = 100
SPREAD: Final = 900


def first_epoch(last_epoch: int, origin: str) -> int:
    """Return the first leader epoch of a site that was promoted under the name `origin`.

    The former site may come back and go on: its next epochs follow the same last one, some of them at the same offset.
    Two leaderships with one epoch and one start would count as one (rule 7), so this one keeps its distance.
    """
    return last_epoch + LEAP + zlib.crc32(origin.encode()) % SPREAD
