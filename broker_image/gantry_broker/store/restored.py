"""The mark of a store whose log came from an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import orjson

from gantry_broker.protocol import plausible
from gantry_broker.store.errors import StoreError
from gantry_broker.store.sealed import unseal

RESTORED: Final = "config/restored.json"
"""In the store's folder once its restore is done: what was restored, and where it ends."""


class Restored(NamedTuple):
    """What is known of a restored log; zeros: the store was not restored."""

    end: int = 0
    epoch: int = 0
    """The first leadership of the group is above this epoch and those in the log."""


def restored(store: Path) -> Restored:
    """Read the mark. Raises StoreError for an invalid file."""
    path = store / RESTORED
    try:
        value = orjson.loads(unseal(path.read_bytes()))
        return Restored(plausible.offset("end", value["end"]), plausible.epoch("epoch", value.get("epoch", 0)))
    except FileNotFoundError:
        return Restored()
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: {error!r}; empty the member's disk") from error
