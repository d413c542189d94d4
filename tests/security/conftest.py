"""Makes the local clusters and the plain connections of other folders importable."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "tests" / "local"), str(_ROOT / "benchmarks")]
