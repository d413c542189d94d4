"""Compacted topics keep the newest record of each key, whatever happens in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compaction.history import History

COUNT = int(os.environ.get("COMPACTION_HISTORIES", "40"))
BLOCKS = 4


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_history_loses_a_key_or_shows_an_old_record_again(quick_dir: Path, block: int) -> None:
    copied = removed = failovers = cut = 0
    for seed in range(block, COUNT, BLOCKS):
        history = History(quick_dir / str(seed), seed)
        try:
            history.run(60)
        except BaseException:
            print(f"seed {seed}, steps {history.steps}")
            raise
        finally:
            history.close()
        copied += history.copied
        removed += history.removed
        failovers += history.failovers
        cut += history.cut
    assert copied > 10
    assert removed > 2
    assert failovers > 10
    assert cut > 0
