"""Limits of a NameServer: topics, groups and keys; registrations are read in steps."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import pytest
from gantry_broker.namesrv import kv, registration, routes
from gantry_broker.namesrv.registration import AT_ONCE, registration_steps
from gantry_broker.namesrv.routes import Registration, RouteTable, WrongGroup
from gantry_broker.namesrv.service import fastjson_body
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import RegisterBody, TopicConfig, TopicConfigs
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.fields import BodyError, parse
from gantry_broker.protocol.frame import Frame

from tests.support.remoting import encode_compressed


def body(topics: int) -> RegisterBody:
    return RegisterBody(TopicConfigs({f"t{n}": TopicConfig(f"t{n}", 8, 8) for n in range(topics)}))


@pytest.mark.parametrize("compressed", [True, False])
def test_a_registration_is_read_in_steps(compressed: bool) -> None:
    wanted = body(AT_ONCE * 5 + 1)
    data = encode_compressed(wanted) if compressed else fastjson.dumps(wanted.to_json())
    steps = list(registration_steps(data, compressed=compressed))
    assert steps[:-1] == [None] * 6
    assert steps[-1] is not None
    assert steps[-1].configs.topics == wanted.configs.topics


@pytest.mark.parametrize("compressed", [True, False])
def test_topics_of_a_registration_are_bounded(compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "MAX_TOPICS", 100)
    data = encode_compressed(body(101)) if compressed else fastjson.dumps(body(101).to_json())
    with pytest.raises(BodyError, match="has 101 topics, the limit is 100"):
        list(registration_steps(data, compressed=compressed))


IN_DIALECT = b"{0:" + b"[" + b"1," * (1 << 20) + b"1]}"
"""2 MiB that only the parser in Python reads, in some 0.2 s."""


@pytest.mark.parametrize("compressed", [True, False])
def test_a_large_body_in_fastjsons_dialect_is_refused_before_it_is_read(compressed: bool) -> None:
    """Neither brokers nor clients write large ones, and the parser would hold the event loop."""
    data = IN_DIALECT
    if compressed:
        data = zlib.compress(len(IN_DIALECT).to_bytes(4, "big") + IN_DIALECT)
    begun = time.thread_time()
    with pytest.raises(BodyError, match="is not JSON"):
        list(registration_steps(data, compressed=compressed))
    with pytest.raises(BodyError, match="is not JSON"):
        fastjson_body(Frame(RequestCode.QUERY_DATA_VERSION, body=IN_DIALECT))
    with pytest.raises(BodyError, match="is not JSON"):
        parse(IN_DIALECT, "checkClient", fastjson.MAX_REQUEST_DIALECT)
    assert time.thread_time() - begun < 0.15


def registration_of(group: str, broker_id: int = 0) -> Registration:
    return Registration("c", group, broker_id, f"h:{broker_id}", 1)


def test_groups_brokers_and_topics_of_all_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_GROUPS", 2)
    monkeypatch.setattr(routes, "MAX_BROKERS", 2)
    monkeypatch.setattr(routes, "MAX_TOPICS", 15)
    table = RouteTable()
    table.register(registration_of("a"), body(10).configs, 0)
    with pytest.raises(WrongGroup, match="would make it 20 topics of all groups, the limit is 15"):
        table.register(registration_of("b"), body(10).configs, 0)
    assert list(table.groups) == ["a"]
    table.register(registration_of("b"), body(5).configs, 0)
    table.register(registration_of("a"), body(10).configs, 0)
    with pytest.raises(WrongGroup, match="2 broker groups"):
        table.register(registration_of("c"), None, 0)
    table.register(registration_of("a", 1), None, 0)
    with pytest.raises(WrongGroup, match="has 2 brokers"):
        table.register(registration_of("a", 2), None, 0)


async def test_keys_and_values_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "MAX_CHARACTERS", 100)
    table = kv.KvConfig(tmp_path / "kv.json")
    await table.put("n", "k", "x" * 90)
    await table.put("n", "k", "y" * 99)
    with pytest.raises(kv.KvFull, match="would have 102 characters, the limit is 100"):
        await table.put("n", "l", "z")
    assert table.get("n", "l") is None


async def test_no_address_takes_all_of_the_key_value_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "MAX_ENTRIES", 40)
    monkeypatch.setattr(kv, "MAX_CHARACTERS", 1_000)
    table, flood = kv.KvConfig(None), "address 192.0.2.9"
    for number in range(20):
        await table.put(f"n{number}", "k", "v", flood)
    with pytest.raises(kv.KvFull, match=r"address 192\.0\.2\.9 has written 20 entries, and 20 are free"):
        await table.put("n20", "k", "v", flood)
    await table.put("n0", "k", "w", flood)
    await table.put("ORDER_TOPIC_CONFIG", "T", "a:4", "address 192.0.2.1")
    await table.put("own", "a", "true")
    for number in range(20):
        await table.delete(f"n{number}", "k")
    assert table.table("n0") is None, "a namespace without entries is none"
    await table.put("n", "long", "v" * 400, flood)
    with pytest.raises(kv.KvFull, match="would have 809 characters"):
        await table.put("n", "other", "v" * 400, flood)
    await table.put("n", "other", "v" * 400, "address 192.0.2.1")
