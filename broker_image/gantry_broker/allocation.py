"""What the C library does with freed memory."""

from __future__ import annotations

import ctypes
import os
from typing import Final

KEPT: Final = 16 << 20
"""Bytes of freed memory at the end of the heap that a process keeps."""
VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Environment variables by which a person sets glibc's limits."""
OWN_MAPPING: Final = 1 << 20
"""Bytes from which on an allocation is a mapping of its own, and goes back to the system when it is freed."""
ARENAS: Final = "MALLOC_ARENA_MAX"
"""Environment variable by which a person sets how many heaps glibc has."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def keep_freed_memory(kept: int = KEPT, own_mapping: int = OWN_MAPPING) -> bool:
    """Let glibc keep freed memory for the next request; return whether the C library takes the settings (mallopt(3)).

    A read of a socket and a batch are larger than glibc's limits. Each of them was taken from the system and given
    back, page by page: that costs more than copying their bytes. Nothing is set where a variable sets it. `kept`,
    `own_mapping`: in bytes, as `KEPT` and `OWN_MAPPING`; glibc takes at most 32 MiB for the second.
    """
    if any(name in os.environ for name in VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # macOS, or another C library.
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, kept)) and bool(mallopt(_M_MMAP_THRESHOLD, own_mapping))


def share_one_heap() -> bool:
    """Let all threads share glibc's first heap, and return whether the C library takes the setting.

    Otherwise each thread takes memory from a heap of its own: blocks of the archive that one thread compresses and
    another one sends leave holes in several heaps. Nothing is set where a variable sets it.
    """
    if ARENAS in os.environ or "GLIBC_TUNABLES" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))
