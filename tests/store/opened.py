"""A store for the length of a test, and its checkpoints."""

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


def make_checkpoint(store: MessageStore) -> None:
    """Flush all, and make a checkpoint of it: retention may remove what lies before."""
    store.mark_flushed(store.flush())
    checkpoint = store.checkpointer.checkpoint()
    checkpoint.run()
    store.checkpointer.checkpointed(checkpoint)
