from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.cluster import Cluster, running
from tests.support.selection import leave_out


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two NameServers and one group of three, for the tests of one file."""
    with running(Cluster(tmp_path_factory.mktemp("local"))) as made:
        yield made


LONG = frozenset({"test_compaction", "test_rebalance"})
"""Modules that only run with LOCAL=full: they take half a minute."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of `LONG`."""
    if os.environ.get("LOCAL") != "full":
        leave_out(config, items, lambda item: item.path.parent == Path(__file__).parent and item.path.stem in LONG)
