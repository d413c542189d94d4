"""The files of the key index."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from gantry_broker.store.index.key_index import KeyIndex


def test_names_rise_after_the_clock_went_back_by_years(quick_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for a higher name must not take time that grows with the clock's error."""
    made = KeyIndex(quick_dir, 10, 20, known=True)
    asked = 0
    real = time.strftime

    def strftime(form: str, at: time.struct_time) -> str:
        nonlocal asked
        asked += 1
        assert asked <= 5
        return real(form, at)

    monkeypatch.setattr(time, "strftime", strftime)
    for clock in (2_000_000_000.0, 1_600_000_000.0, 1_600_000_000.0, 1_999_999_999.0, 2_000_000_001.0):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        made.pending = [(n, n, 1_000) for n in range(19)]
        assert made.drain()
    made.close()
    names = sorted(os.listdir(quick_dir))
    assert len(names) == asked == 5
    assert names[-1].startswith(real("%Y%m%d%H%M%S", time.localtime(2_000_000_001)))
    again = KeyIndex(quick_dir, 10, 20, known=True)
    assert again.find(7, 0, 10_000, 10) == [7] * 5
    again.close()
