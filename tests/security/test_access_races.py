"""Requests that name a place of the log: the place may get its record between the check of access and the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.access.signature import sign
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame

from tests.broker.conftest import Bench, Wire

KEY = "a-secret-key"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, authentication="Enabled")
    everything = [{"type": kind, "pattern": "Any", "actions": ["Any"]} for kind in ("Topic", "Group")]
    denied = {"type": "Topic", "name": "secret", "actions": ["Any"], "decision": "Deny"}
    users = [
        {"name": "admin", "keys": [KEY], "super": True},
        {"name": "reader", "keys": [KEY], "rules": [*everything, denied]},
    ]
    await made.lead()
    await made.broker.access.put(json.dumps({"version": 1, "mode": "Enabled", "users": users}).encode())
    yield made
    await made.close()


def signed(bench: Bench, user: str, code: int, ext: dict[str, Any], body: bytes = b"") -> Frame:
    frame = bench.frame(code, {**ext, "AccessKey": user}, body)
    frame.ext["Signature"] = sign(frame.ext, body, KEY)
    return frame


async def done(bench: Bench, frame: Frame) -> Frame:
    bench.give(frame)
    return await bench.answer(frame.opaque)


async def test_a_change_at_a_member_that_lost_its_volume_is_not_taken_for_an_old_one(bench: Bench) -> None:
    """The table has four changes of this member, which the member does not know."""
    access, name = bench.broker.access, bench.config.name
    table = {"version": 2, "mode": "Enabled", "merged": {name: 4}}
    users = [{"name": "admin", "keys": [KEY], "super": True}, {"name": "reader", "keys": [KEY]}]
    await access.put(json.dumps({**table, "users": users}).encode())
    gone = await done(bench, signed(bench, "admin", RequestCode.AUTH_DELETE_USER, {"username": "reader"}))
    assert gone.code == ResponseCode.SUCCESS
    assert [change.number for change in access.waiting().changes] == [5]
    await access.put(json.dumps({**table, "version": 3, "users": users}).encode())
    assert list(access.users) == ["admin"], "no table has the change yet"


async def test_the_place_of_the_next_record_is_nobodys(bench: Bench) -> None:
    for topic in ("mine", "secret"):
        sent = await done(bench, signed(bench, "admin", RequestCode.SEND_MESSAGE_V2, bench.send_ext(topic), b"first"))
        assert sent.code == ResponseCode.SUCCESS
    at = bench.store.log.end
    slow = [signed(bench, "reader", RequestCode.GET_TOPIC_CONFIG, {"topic": "mine"}) for _ in range(2_000)]
    view = signed(bench, "reader", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": at})
    other = Wire(40_001)
    bench.give(*slow, view)
    bench.give(signed(bench, "admin", RequestCode.SEND_MESSAGE_V2, bench.send_ext("secret"), b"private"), wire=other)
    answer = await bench.answer(view.opaque)
    assert answer.code != ResponseCode.SUCCESS
    assert b"private" not in answer.body
    assert bench.store.reader.record(at).body == b"private"
