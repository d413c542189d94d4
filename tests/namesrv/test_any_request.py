"""As `tests/broker/test_any_request.py`, for a NameServer: its ports for clients and its registration port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import orjson
import pytest
from gantry_broker.namesrv.kv import KvConfig
from gantry_broker.namesrv.routes import Entry, Group, Registration
from gantry_broker.namesrv.service import NameService
from gantry_broker.protocol.bodies import DataVersion, QueueData, RegisterBody, TopicConfig, TopicConfigs
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.protocol.requests import REQUESTS
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.handshake import Identity
from hypothesis import given, settings

from tests.broker.test_any_request import EXAMPLES, Faults, faults, never, requests, runner, served
from tests.support.remoting import encode_compressed

__all__ = ["faults", "runner"]

COMMON: Final[dict[str, Any]] = {
    "topic": "T", "cluster": "c", "namespace": "n", "key": "k", "value": "v", "brokerName": "a", "clusterName": "c",
    "brokerAddr": "h:1", "brokerId": 0, "gantryMember": 1, "gantryEpoch": 1, "compressed": "false",
    "haServerAddr": "h:2", "gantryAddresses": '{"external":"h:3"}',
    "gantrySince": orjson.dumps(DataVersion().to_json()).decode(),
}  # fmt: skip
TABLE: Final = RegisterBody(TopicConfigs({"T": TopicConfig("T", 8, 8)}))
BODIES: Final = [orjson.loads(orjson.dumps(TABLE.to_json())), {"gone": ["T"], **TABLE.to_json()}]
KNOWN: Final[dict[int, list[Any]]] = {
    int(code): BODIES for code, row in REQUESTS.items() if row.registration or row.name_server
}
CASES: Final = sorted(
    [(False, int(code)) for code, row in REQUESTS.items() if row.name_server]
    + [(True, int(code)) for code, row in REQUESTS.items() if row.registration]
    + [(False, -1), (True, 2**31 - 1)]
)


class Port:
    """A port of a NameServer that knows a broker."""

    def __init__(self, *, broker: bool) -> None:
        self.service = NameService("ns", KvConfig(None), clock=lambda: 0)
        group = Group("c", topics={"T": QueueData("a", 8, 8, 6, 0)})
        group.entries[0] = Entry(Registration("c", "a", 0, "h:1", 1), DataVersion(), 0)
        self.service.routes.groups = {"a": group}
        self._broker = broker

    def connect(self) -> Connection:
        conn = Connection(
            self.service, accepted=True, limits=RequestLimits(members=self._broker), shared=self.service.shared
        )
        conn.identity = Identity("c", "a", 1) if self._broker else None
        return conn


@pytest.fixture
def ports(runner: asyncio.Runner) -> Iterator[dict[bool, Port]]:
    async def begin() -> dict[bool, Port]:
        return {broker: Port(broker=broker) for broker in (False, True)}

    made = runner.run(begin())
    yield made
    for port in made.values():
        runner.run(port.service.close())


@pytest.mark.parametrize(("broker", "code"), CASES)
def test_each_request_has_one_answer(
    ports: dict[bool, Port], runner: asyncio.Runner, faults: Faults, broker: bool, code: int
) -> None:
    drawn = requests(code, COMMON, known=(*KNOWN.get(code, ()), encode_compressed(TABLE)))

    @settings(max_examples=EXAMPLES * 2)
    @given(request=drawn)
    def check(request: bytes) -> None:
        runner.run(served(ports[broker].connect, request, code, RequestCode.GET_KVLIST_BY_NAMESPACE, never))
        assert not faults.texts

    check()
