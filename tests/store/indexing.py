"""The key index of a store in tests."""

from __future__ import annotations

from gantry_broker.store.store import MessageStore


def index_all(store: MessageStore) -> None:
    """Let the key index read what it has not read yet, as the periodic tasks do: a slow machine needs several."""
    while store.indexer.catch_up():
        pass
