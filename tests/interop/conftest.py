"""Two systems behind one fixture: Gantry, and Apache RocketMQ 4.9.7 from its published jars.

A test with the fixture `target` runs against both, so it expects RocketMQ's own behaviour. Apache RocketMQ does not
change with this project: without INTEROP=full, which `make nightly` sets, only the modules of `COMPARED` run against
it. Without Java 17, Maven or (for Apache RocketMQ, which listens on all addresses) a network namespace, pytest skips
the tests and names the missing package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.rig import gantry, golang, java, rocketmq
from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import NamespaceUnavailable
from benchmarks.rig.target import Target
from tests.support.selection import leave_out

LONG = frozenset({"test_drain"})
"""Modules that take minutes: only with INTEROP=full."""
COMPARED = frozenset({"test_send"})
"""Modules that run against Apache RocketMQ each time."""

# Short delays, because the defaults take minutes.
SETTINGS = {
    "messageDelayLevel": "1s 2s 3s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 3,
}
# Apache's broker refuses a send that has waited for 200 ms, or for a second in its store, and its client does not retry
# such a send. On a busy machine messages would be missing.
PATIENCE = {"waitTimeMillsInSendQueue": "10000", "osPageCacheBusyTimeOutMills": "10000"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "apache: runs against Apache RocketMQ only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of `LONG`, and those against Apache RocketMQ, except those of `COMPARED`."""
    if os.environ.get("INTEROP") != "full":
        leave_out(config, items, lambda item: item.path.parent == Path(__file__).parent and _is_of_the_night(item))


def _is_of_the_night(item: pytest.Item) -> bool:
    return item.path.stem in LONG or (item.path.stem not in COMPARED and _is_of_apache(item))


def _is_of_apache(item: pytest.Item) -> bool:
    if item.get_closest_marker("apache") is not None:
        return True
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(value == "rocketmq" or (isinstance(value, tuple) and value[:1] == ("rocketmq",)) for value in values)


@pytest.fixture(scope="session")
def java_side() -> Path:
    try:
        return java.build()
    except java.JavaMissing as e:
        pytest.skip(f"interoperability with the official client is not tested here: {e}")


@pytest.fixture(scope="session")
def go_side() -> Path:
    try:
        return golang.build()
    except golang.GoMissing as e:
        pytest.skip(f"interoperability with the Go client is not tested here: {e}")


@pytest.fixture(scope="session")
def _targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Target]]:
    started: dict[str, Target] = {}
    with ExitStack() as stack:

        def get(name: str) -> Target:
            if name not in started:
                folder = tmp_path_factory.mktemp(name)
                if name == "gantry":
                    started[name] = stack.enter_context(gantry.single(folder, dict(SETTINGS)))
                else:
                    texts = {key: str(value) for key, value in SETTINGS.items()}
                    try:
                        started[name] = stack.enter_context(rocketmq.rocketmq(folder, texts | PATIENCE))
                    except NamespaceUnavailable as e:
                        pytest.skip(f"Apache RocketMQ is not compared with here: {e}")
            return started[name]

        yield get


@pytest.fixture(scope="session")
def _drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Target, str, str], Driver]]:
    folder = tmp_path_factory.mktemp("drivers")
    started: dict[tuple[str, str, str], Driver] = {}

    def get(target: Target, version: str, serialize: str) -> Driver:
        key = (target.name, version, serialize)
        if key not in started:
            log = folder / f"{'-'.join(key)}.log"
            started[key] = Driver(target, version, serialize, log)
        return started[key]

    yield get
    for driver in started.values():
        driver.close()


@pytest.fixture(scope="session", params=["gantry", "rocketmq"])
def system(request: pytest.FixtureRequest, java_side: Path, _targets: Callable[[str], Target]) -> Target:
    """Gantry's broker, then Apache RocketMQ's."""
    return _targets(request.param)


@pytest.fixture(scope="session", params=[("gantry", "49"), ("gantry", "55"), ("rocketmq", "49")], ids="-".join)
def pair(request: pytest.FixtureRequest, java_side: Path) -> tuple[str, str]:
    """A system and the version of the official client; 4.9.7 servers lack some requests of a 5.5.0 client."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="session")
def target(pair: tuple[str, str], _targets: Callable[[str], Target]) -> Target:
    """The system of this test."""
    return _targets(pair[0])


@pytest.fixture(scope="session")
def ours(java_side: Path, _targets: Callable[[str], Target]) -> Target:
    return _targets("gantry")


@pytest.fixture(scope="session")
def driver(pair: tuple[str, str], target: Target, _drivers: Callable[[Target, str, str], Driver]) -> Driver:
    """The official client, with JSON headers."""
    return _drivers(target, pair[1], "JSON")


@pytest.fixture(scope="session")
def drivers(_drivers: Callable[[Target, str, str], Driver]) -> Callable[[Target, str, str], Driver]:
    return _drivers


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> str:
    """A unique name for a topic or group."""
    _COUNT[0] += 1
    return f"{request.node.originalname.removeprefix('test_')[:40]}_{_COUNT[0]}"


_COUNT = [0]
