"""Each numeric field of each request, with each odd number: an error that names the field, or the documented meaning.

The fields are those of the headers that the handler of a row of `REQUESTS` parses, so a new code is covered by itself.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson
import pytest
from gantry_broker.protocol import headers
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.protocol.headers import Header
from gantry_broker.protocol.message import BatchItem, encode_batch
from gantry_broker.protocol.requests import REQUESTS, SENDS, TO_SENDER
from gantry_broker.remoting.connection import Connection

from tests.broker.test_any_request import CODES, FIRST, Client, Faults, Port, _begun, _json_bodies, faults, runner
from tests.broker.test_loop_holds import COMMON, send_ext
from tests.namesrv import test_any_request as namesrv
from tests.namesrv.test_any_request import ports

__all__ = ["faults", "ports", "runner"]

ODD: Final = ("²", "-1", str(2**31), str(2**63), str(10**30), "", " 1", "1_0", "0x1", "+1")
IN_RANGE: Final = {"int": ("-1", "+1"), "long": ("-1", "+1", str(2**31))}
"""Those that Java reads as well. Whether they mean something is the field's own matter."""
SHORT: Final = {long: short for short, long in headers.SHORT_SEND_NAMES.items()}
WITHOUT: Final = {int(code) for code, row in REQUESTS.items() if row.users}
"""Requests about users are refused before they are read: this broker has no authentication."""


class Parsed:
    """The headers that are parsed while a request is carried out."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.kinds: dict[type[Header], None] = {}
        whole = Header.from_ext.__func__  # type: ignore[attr-defined]

        def from_ext(kind: type[Header], ext: dict[str, str]) -> Header:
            self.kinds[kind] = None
            return whole(kind, ext)  # type: ignore[no-any-return]

        patch.setattr(Header, "from_ext", classmethod(from_ext))

    def numbers(self) -> dict[str, str]:
        """Return the wire name and the kind of each number."""
        return {
            kind.WIRE_NAMES.get(name, name): sort
            for kind in self.kinds
            for name, sort, *_ in kind._fields()
            if sort in IN_RANGE
        }


async def _answer(connect: Callable[[], Connection], request: bytes, held: Callable[[], object]) -> Frame | None:
    """Return the answer to a request; None: it waits for messages."""
    conn, client = connect(), Client()
    conn.connection_made(client)
    try:
        conn.data_received(request)
        async with asyncio.timeout(10):
            while not client.answers_to(FIRST) and not held():  # noqa: ASYNC110
                await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)  # A second answer would come now, and what is noted behind the first one.
        assert client.answers_to(FIRST) == 1 or held(), f"{client.answers_to(FIRST)} answers"
        return next((frame for frame in client.frames if frame.opaque == FIRST), None)
    finally:
        conn.connection_lost(None)


def _fields(code: int) -> dict[str, str]:
    fields: dict[str, Any] = dict(COMMON)
    if code in SENDS:
        fields |= send_ext("UNIQ_KEY\x01u", batch=code == RequestCode.SEND_BATCH_MESSAGE)
        fields |= headers.SendHeader.from_short({name: str(value) for name, value in fields.items()}).ext()
    return {name: str(value) for name, value in fields.items()}


def _body(code: int) -> bytes:
    if code == RequestCode.SEND_BATCH_MESSAGE:
        return encode_batch([BatchItem(b"x", b"")])
    if code in TO_SENDER:
        return b"x"
    known = _json_bodies(code)[0]
    return known if isinstance(known, bytes) else orjson.dumps(known)


def _request(code: int, fields: dict[str, str], body: bytes, changes: dict[str, str]) -> bytes:
    """Sends have a field under its short name, too."""
    short = {SHORT[name]: value for name, value in changes.items() if code in SENDS and name in SHORT}
    return encode_frame(Frame(code, FIRST, ext={**fields, **changes, **short}, body=body))


def _check(answer: Frame | None, name: str, kind: str, value: str) -> None:
    if value in IN_RANGE[kind]:
        return
    assert answer is not None
    assert answer.code != 0, f"{name}={value!r} was taken"
    assert f"field {name}" in (answer.remark or ""), f"{name}={value!r}: {answer.remark}"


@pytest.fixture(scope="module")
def port(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    """A broker whose clock stands still: nothing becomes due, and so is stored, while another code is tested."""
    bench = runner.run(_begun(tmp_path_factory.mktemp("numbers")))
    now = bench.broker.clock.unix_ms()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.broker.clock, "unix_ms", lambda: now)
        yield Port(bench)
        runner.run(bench.close())


@pytest.mark.parametrize("code", [code for code in CODES if code not in WITHOUT])
def test_a_broker_names_the_field_of_an_odd_number(
    port: Port, runner: asyncio.Runner, faults: Faults, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    meta, store = port.bench.broker.meta, port.bench.store
    for name in ("T", "H"):
        meta.working.topics[name] = TopicConfig(name, 8, 8)
        meta.working.groups[name.replace("T", "G")] = SubscriptionGroup(name.replace("T", "G"))
    fields, body = _fields(code), _body(code)
    parsed = Parsed(monkeypatch)
    runner.run(_answer(port.connect, _request(code, fields, body, {}), port.held))
    for name, kind in parsed.numbers().items():
        for value in ODD:
            meta.working.topics.setdefault("T", TopicConfig("T", 8, 8))
            before = store.log.end, meta.working.copy()
            answer = runner.run(_answer(port.connect, _request(code, fields, body, {name: value}), port.held))
            _check(answer, name, kind, value)
            assert not faults.texts, f"{name}={value!r}"
            if answer is not None and answer.code != 0 and value not in IN_RANGE[kind]:
                assert (store.log.end, meta.working) == before, f"{name}={value!r} has stored something"


@pytest.mark.parametrize(("broker", "code"), [case for case in namesrv.CASES if case[1] in REQUESTS])
def test_a_name_server_names_the_field_of_an_odd_number(
    ports: dict[bool, namesrv.Port],
    runner: asyncio.Runner,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
    broker: bool,
    code: int,
) -> None:
    fields = {name: str(value) for name, value in namesrv.COMMON.items()}
    body = orjson.dumps(namesrv.BODIES[0]) if broker else b""
    port, parsed = ports[broker], Parsed(monkeypatch)
    runner.run(_answer(port.connect, _request(code, fields, body, {}), namesrv.never))
    for name, kind in parsed.numbers().items():
        for value in ODD:
            before = copy.deepcopy(port.service.routes.groups)
            answer = runner.run(_answer(port.connect, _request(code, fields, body, {name: value}), namesrv.never))
            _check(answer, name, kind, value)
            assert not faults.texts, f"{name}={value!r}"
            if answer is not None and answer.code != 0:
                assert port.service.routes.groups == before, f"{name}={value!r} has stored something"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (RequestCode.PULL_MESSAGE, {"queueId", "queueOffset", "commitOffset", "maxMsgBytes"}),
        (RequestCode.SEND_MESSAGE_V2, {"reconsumeTimes", "maxReconsumeTimes", "bornTimestamp"}),
        (RequestCode.POP_MESSAGE, {"invisibleTime", "pollTime", "initMode"}),
    ],
)
def test_numbers_are_found(
    port: Port, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, code: int, expected: set[str]
) -> None:
    parsed = Parsed(monkeypatch)
    changes = {"bornTimestamp": "x"} if code == RequestCode.SEND_MESSAGE_V2 else {}
    runner.run(_answer(port.connect, _request(code, _fields(code), b"x", changes), port.held))
    assert expected <= set(parsed.numbers())
