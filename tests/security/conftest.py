"""The real broker groups of `broker_group.py`; the local clusters and plain connections of other folders, to import."""

from __future__ import annotations

import sys
from pathlib import Path

from broker_group import make_group

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "tests" / "local"), str(_ROOT / "benchmarks")]

__all__ = ["make_group"]
