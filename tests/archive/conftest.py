from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gantry_broker.archive import verifying
from gantry_broker.store.store import MessageStore

from tests.support.store_fixtures import quick_dir as quick_dir
from tests.support.store_fixtures import small as small


@pytest.fixture(autouse=True)
def closed_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the stores that a test leaves open: hundreds of histories would take all descriptors of a process."""
    opened: list[MessageStore] = []
    open_store = MessageStore.open

    def kept(*args: Any, **options: Any) -> MessageStore:
        opened.append(open_store(*args, **options))
        return opened[-1]

    monkeypatch.setattr(MessageStore, "open", kept)
    yield
    for store in opened:
        store.close(clean=False)


@pytest.fixture(autouse=True)
def no_wait_for_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a verification finds damaged stays damaged in these tests, so it is read again at once."""
    monkeypatch.setattr(verifying, "AGAIN_S", 0.0)
