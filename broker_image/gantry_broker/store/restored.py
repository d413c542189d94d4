"""The mark of a store whose log came from an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import orjson

from gantry_broker.protocol import plausible
from gantry_broker.store.errors import StoreError

RESTORED: Final = "config/restored.json"
"""In the store's folder once its restore is done: what was restored, and where it ends."""


def restored_end(store: Path) -> int:
    """Return the end of the restored log; 0: the store was not restored. Raises StoreError for an invalid file."""
    path = store / RESTORED
    try:
        return plausible.offset("end", orjson.loads(path.read_bytes())["end"])
    except FileNotFoundError:
        return 0
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: {error!r}; empty the member's disk") from error
