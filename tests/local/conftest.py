from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local.cluster import Cluster, take_down


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two NameServers and one group of three, for the tests of one file."""
    made = Cluster(tmp_path_factory.mktemp("local"))
    try:
        made.up()
        yield made
    finally:
        take_down(made)
