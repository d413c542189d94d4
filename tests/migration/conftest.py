"""Real RocketMQ for the tests of migrations.

Java brokers are slow. Without INTEROP=full, which `make nightly` sets, one cutover from 4.9.7 runs.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from benchmarks.rig import java
from benchmarks.rig.processes import NamespaceUnavailable
from tests.support.selection import leave_out

ALWAYS = "test_clients_go_on_through_a_cutover[server49-49]"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests with a real RocketMQ, except one."""

    def is_of_the_night(item: pytest.Item) -> bool:
        mine = item.path.parent == Path(__file__).parent
        return mine and "java_side" in getattr(item, "fixturenames", ()) and item.name != ALWAYS

    if os.environ.get("INTEROP") != "full":
        leave_out(config, items, is_of_the_night)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """A RocketMQ runs in a network namespace of its own: without one a test is skipped, and says why."""
    try:
        return (yield)
    except NamespaceUnavailable as error:
        pytest.skip(f"the migration from Apache RocketMQ is not tested here: {error}")


@pytest.fixture(scope="session")
def java_side() -> Path:
    try:
        return java.build()
    except java.JavaMissing as error:
        pytest.skip(f"the migration from Apache RocketMQ is not tested here: {error}")
