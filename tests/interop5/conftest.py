"""Official gRPC clients against two systems: a test with the fixture `world` runs for each (system, client).

`@pytest.mark.needs("push")` leaves out the clients that cannot do it, `@pytest.mark.nightly` the test itself unless
INTEROP=full. Without that switch Python runs the others and Java those with `@pytest.mark.main`, both only against
Gantry: Apache RocketMQ does not change with this project. A missing tool skips the tests of its client and says what to
install.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.rig.driver import Result, Running
from benchmarks.rig.processes import NamespaceUnavailable
from tests.interop5 import systems
from tests.interop5.clients import CLIENTS, Client, Driven, ToolMissing, able
from tests.interop5.systems import System
from tests.support.selection import leave_out

FULL = os.environ.get("INTEROP") == "full"
EACH_TIME = ("python-5.1.2",)
MAIN = ("python-5.1.2", "java-5.2.0")
SYSTEMS = {"gantry": systems.ours, "rocketmq": systems.apache}
_NUMBERS = itertools.count(1)
_RUN = f"{time.time_ns() // 1_000_000 % 10_000_000:07d}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*features): what a client must be able to do: see Client.cannot")
    config.addinivalue_line("markers", "main: runs each time with Java, too")
    config.addinivalue_line("markers", "nightly: runs with INTEROP=full only")
    config.addinivalue_line("markers", "gantry_only(*clients): not with Apache's system; with clients: not with these")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" not in metafunc.fixturenames:
        return
    needs = [name for mark in metafunc.definition.iter_markers("needs") for name in mark.args]
    each_time = EACH_TIME if metafunc.definition.get_closest_marker("main") is None else MAIN
    names = able(needs, tuple(CLIENTS) if FULL else each_time)
    pairs = [(system, name) for system in (SYSTEMS if FULL else ["gantry"]) for name in names]
    only = metafunc.definition.get_closest_marker("gantry_only")
    if only is not None:
        pairs = [pair for pair in pairs if pair[0] == "gantry" or (only.args and pair[1] not in only.args)]
    metafunc.parametrize("world", pairs, indirect=True, ids="-".join, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of the night."""
    if not FULL:
        leave_out(config, items, lambda item: item.get_closest_marker("nightly") is not None)


@dataclass
class World:
    """One system and one client, as a session of its driver."""

    system: System
    client: Client
    driven: Driven

    def fresh(self, name: str) -> str:
        return f"{name}_{self.client.name.replace('.', '')}_{_RUN}_{next(_NUMBERS)}"

    def topic(self, kind: str = "NORMAL", queues: int = systems.QUEUES) -> str:
        return self.system.topic(self.fresh(kind.lower()), kind, queues)

    def group(self, orderly: bool = False, attempts: int = 16) -> str:
        return self.system.group(self.fresh("group"), orderly, attempts)

    def start(self, do: str, **fields: Any) -> Running:
        return self.driven.start(do, **fields)

    def run(self, do: str, **fields: Any) -> Result:
        return self.driven.run(do, **fields)

    def produce(self, topic: str, count: int, kind: str = "normal", **fields: Any) -> Result:
        """Sends messages, all of which must be taken."""
        result = self.run("produce", topic=topic, count=count, kind=kind, **fields)
        assert not result.errors, result.errors
        assert len(result.of("sent")) == count
        return result

    def receive(self, topic: str, group: str, count: int, **fields: Any) -> Result:
        """Receives and acknowledges messages with a simple consumer, until there are `count` different ones."""
        result = self.run("simple", topic=topic, group=group, count=count, **fields)
        # Both proxies refuse a receive that overtakes the client's settings; the client tries again.
        early = ("Cannot invoke", "cannot find client settings")
        errors = [error for error in result.errors if not any(text in error["text"] for text in early)]
        assert not errors, errors
        return result


@pytest.fixture(scope="session")
def _systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], System]]:
    started: dict[str, System] = {}
    with ExitStack() as stack:

        def get(name: str) -> System:
            if name not in started:
                try:
                    started[name] = stack.enter_context(SYSTEMS[name](tmp_path_factory.mktemp(name)))
                except (NamespaceUnavailable, ToolMissing) as e:
                    pytest.skip(f"{name} is not tested with clients of RocketMQ 5 here: {e}")
            return started[name]

        yield get


@pytest.fixture(scope="session")
def world(
    request: pytest.FixtureRequest, _systems: Callable[[str], System], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """The system and the client of this test. A driver ends before the next one starts."""
    system_name, client_name = request.param
    client, system = CLIENTS[client_name], _systems(system_name)
    folder = tmp_path_factory.mktemp(f"{system_name}-{client_name}")
    try:
        driven = client.session(folder, system.target.prefix, system.endpoints)
    except ToolMissing as e:
        pytest.skip(f"{client_name} is not tested here: {e}")
    yield World(system, client, driven)
    driven.close()


@pytest.fixture(scope="session")
def gantry_system(_systems: Callable[[str], System]) -> System:
    return _systems("gantry")
