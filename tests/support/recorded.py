"""Recorded answers of other systems, as JSON with one line a record, so that a diff shows records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any


def write(path: Path, records: Mapping[str, Any], *, by_first_word: bool = False) -> None:
    """Write the records in their order. `by_first_word`: those whose names begin alike share a line."""
    texts = [(name, f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}") for name, value in records.items()]
    groups = groupby(texts, key=lambda pair: pair[0].split()[0] if by_first_word else pair[0])
    lines = [", ".join(text for _, text in group) for _, group in groups]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
