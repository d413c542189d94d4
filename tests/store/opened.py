"""A store for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig


@contextmanager
def opened(config: StoreConfig) -> Iterator[MessageStore]:
    """Open a store; it ends as a killed process leaves it."""
    store = MessageStore.open(config)
    try:
        yield store
    finally:
        store.close(clean=False)
