"""Fixtures with a real broker, for the tests of applications. pytest loads this by its entry point.

`gantry_broker`: one broker for the whole run. `fresh_gantry_broker`: a new one for each test. Both are a `LocalBroker`
of `gantry_broker.testing`. With `--gantry-grpc`, or `gantry_grpc = true` in pytest's ini file, they serve gRPC, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gantry_broker.testing import LocalBroker


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "the brokers of the fixtures gantry_broker and fresh_gantry_broker serve gRPC clients, too"
    parser.getgroup("gantry").addoption("--gantry-grpc", action="store_true", default=False, help=text)
    parser.addini("gantry_grpc", text, type="bool", default=False)


def _running(config: pytest.Config) -> Iterator[LocalBroker]:
    from gantry_broker.testing import broker  # Only where a test asks for it: the import takes a part of a second.

    with broker(grpc=bool(config.getoption("--gantry-grpc") or config.getini("gantry_grpc"))) as running:
        yield running


@pytest.fixture(scope="session")
def gantry_broker(pytestconfig: pytest.Config) -> Iterator[LocalBroker]:
    """Return a real broker for all tests of the run: take new names from `create_topic()` and `new_group()`."""
    yield from _running(pytestconfig)


@pytest.fixture
def fresh_gantry_broker(pytestconfig: pytest.Config) -> Iterator[LocalBroker]:
    """Return a real broker for this test alone."""
    yield from _running(pytestconfig)
