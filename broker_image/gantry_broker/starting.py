"""The imports of a process that serves, without looks of the collector of reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Imports happen in the block. They make objects that stay and almost no cycles, so looks at them free nothing.

    Without this, the looks take about an eighth of a broker's CPU time until it answers. What exists at the end of the block
    is frozen: no later look visits it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
