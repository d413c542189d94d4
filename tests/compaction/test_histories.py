"""Compacted topics keep the newest record of each key, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compaction.history import History


@pytest.mark.parametrize("block", range(4))
def test_no_history_loses_a_key_or_shows_an_old_record_again(quick_dir: Path, block: int) -> None:
    copied = removed = failovers = 0
    for seed in range(block * 10, block * 10 + 10):
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
    assert copied > 10
    assert removed > 2
    assert failovers > 10
