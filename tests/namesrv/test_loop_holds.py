"""The longest time for which one peer holds a NameServer's event loop: each request code, at the most topics."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson
import pytest
from gantry_broker.namesrv.kv import MAX_ENTRIES, KvConfig
from gantry_broker.namesrv.registration import MAX_TOPICS as MAX_REGISTERED
from gantry_broker.namesrv.routes import MAX_TOPICS, Entry, Group, Registration
from gantry_broker.namesrv.service import NameService
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import DataVersion, QueueData, RegisterBody, TopicConfig, TopicConfigs
from gantry_broker.protocol.codes import GantryCode, RequestCode
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.protocol.limits import MAX_ACCESS
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.protocol.requests import REQUESTS
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.handshake import Identity

from tests.broker.test_loop_holds import MOST_S, Peer, best, longest_hold
from tests.support.remoting import encode_compressed

COMMON: Final[dict[str, Any]] = {
    "topic": "a1", "cluster": "c", "namespace": "n", "key": "k1", "value": "v", "brokerName": "a", "clusterName": "c",
    "brokerAddr": "h:1", "brokerId": 0, "gantryMember": 1, "gantryEpoch": 1,
}  # fmt: skip
TABLE: Final = TopicConfigs({f"a{n}": TopicConfig(f"a{n}", 8, 8) for n in range(MAX_REGISTERED - 10)})


class Case(NamedTuple):
    """A request of a client, or with `broker` of a registered broker."""

    body: bytes = b""
    answers: tuple[int, ...] = (0,)
    fields: Mapping[str, Any] = MappingProxyType({})
    most: int = 2_000
    """Requests that come together, at most."""


def changed() -> bytes:
    return fastjson.dumps(RegisterBody(TopicConfigs({n: TABLE.topics[n] for n in list(TABLE.topics)[:350]})).to_json())


CLIENTS: Final[dict[int, Case]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Case(),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Case(fields={"topic": "b1"}),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Case(most=3),
    RequestCode.GET_TOPICS_BY_CLUSTER: Case(most=3),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Case(),
    RequestCode.GET_UNIT_TOPIC_LIST: Case(most=3),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: Case(most=3),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Case(most=3),
    RequestCode.GET_BROKER_CLUSTER_INFO: Case(),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Case(most=20),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Case(most=20),
    RequestCode.PUT_KV_CONFIG: Case(fields={"value": "v" * 100_000}, most=20),
    RequestCode.DELETE_KV_CONFIG: Case(most=20),
    RequestCode.GET_KV_CONFIG: Case(),
    RequestCode.GET_KVLIST_BY_NAMESPACE: Case(most=20),
    RequestCode.UPDATE_NAMESRV_CONFIG: Case(b"orderMessageEnable=true\n" * 2_700),
    RequestCode.GET_NAMESRV_CONFIG: Case(),
}
BROKERS: Final[dict[int, Case]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Case(),
    RequestCode.REGISTER_BROKER: Case(encode_compressed(RegisterBody(TABLE)), fields={"compressed": True}, most=2),
    RequestCode.UNREGISTER_BROKER: Case(most=2),
    RequestCode.QUERY_DATA_VERSION: Case(orjson.dumps(DataVersion().to_json())),
    GantryCode.UPDATE_ACCESS: Case(b"[" + b"1," * (MAX_ACCESS // 2 - 2) + b"1]", answers=(1,), most=2),
    GantryCode.REGISTER_CHANGES: Case(
        changed(), answers=(0, 1, 22), fields={"gantrySince": orjson.dumps(DataVersion().to_json()).decode()}
    ),
}


@pytest.fixture(scope="module")
def groups() -> dict[str, Group]:
    made = {}
    for number, name in enumerate("abcd"):
        data = QueueData(name, 8, 8, 6, number)
        own = MAX_TOPICS // 4 - 10
        made[name] = Group("c", topics={f"{name}{n}": data for n in range(own)})
        made[name].entries[0] = Entry(Registration("c", name, 0, f"h:{number}", 1), DataVersion(), 0)
    return made


def service(groups: dict[str, Group]) -> NameService:
    kv = KvConfig(None)
    kv._tables = {"n": {f"k{n}": "v" * 180 for n in range(MAX_ENTRIES - 10)}}
    made = NameService("ns", kv, clock=lambda: 0)
    made.routes.groups = {
        name: Group(group.cluster, dict(group.entries), dict(group.topics)) for name, group in groups.items()
    }
    return made


def test_each_code_of_a_name_server_has_a_case() -> None:
    assert {int(code) for code, row in REQUESTS.items() if row.name_server} == {int(code) for code in CLIENTS}
    assert {int(code) for code, row in REQUESTS.items() if row.registration} == {int(code) for code in BROKERS}


CASES: Final = [(False, code) for code in sorted(CLIENTS)] + [(True, code) for code in sorted(BROKERS)]


@pytest.mark.parametrize(("broker", "code"), CASES)
async def test_no_request_holds_the_loop(
    groups: dict[str, Group], caplog: pytest.LogCaptureFixture, broker: bool, code: int
) -> None:
    caplog.set_level(logging.CRITICAL)
    case = (BROKERS if broker else CLIENTS)[code]
    fields = {name: str(value) for name, value in {**COMMON, **case.fields}.items()}
    one = encode_frame(Frame(code, 1, ext=fields, body=case.body))
    first: list[int] = []

    async def measure() -> float:
        served = service(groups)
        conn = Connection(served, accepted=True, limits=RequestLimits(members=broker), shared=served.shared)
        conn.identity = Identity("c", "a", 1) if broker else None
        made = Peer(conn, one * min(max((1 << 20) // len(one), 2), case.most))
        try:
            longest = await longest_hold([made], 0.25)
        finally:
            conn.connection_lost(None)
            await served.close()
        first.append(made.socket.first_code())
        return longest

    assert await best(measure) <= MOST_S
    assert first[0] in case.answers


def test_the_largest_registration_is_a_legal_one() -> None:
    body = BROKERS[RequestCode.REGISTER_BROKER].body
    assert len(zlib.decompress(body)) > 1 << 20
    assert len(body) <= REQUESTS[RequestCode.REGISTER_BROKER].body
