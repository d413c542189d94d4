"""Spark's Python daemon that has what its workers need before it forks them (`spark.python.daemon.module`).

Spark's own imports it after the fork: each worker then pays 0.6 s of CPU time once more, one for each core, and again
for those that were idle for a minute and ended. Spark does so since some packages start threads, which a fork leaves
behind: so the thread pool of numpy's linear algebra is not made here, and Arrow makes its own when they are first used
(the allocator's background thread may be left behind).
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Final

OURS: Final = ("gantry_spark.source", "gantry_spark.figures")


def prepare(worker: str | None) -> None:
    """Import a worker's module (None: the one that runs tasks) and ours."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in (worker or "pyspark.worker", *OURS):
        importlib.import_module(name)
    # Workers collect garbage after each task: what is here now is none, and looking through it takes 16 ms.
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    prepare(sys.argv[1] if len(sys.argv) > 1 else None)
    manager()
