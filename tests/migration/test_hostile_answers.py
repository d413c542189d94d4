"""A source that answers with anything: what asks it says that, and ends no process."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from gantry_broker.broker.migration import source as sources
from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.migration.source import Source
from gantry_broker.protocol.codes import RequestCode as Code
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration.cutover_edge import Edge, GroupPlace, SourcePlace

ANSWERS = {
    Code.GET_BROKER_CLUSTER_INFO: '{"brokerAddrTable":{"a":{"cluster":"c","brokerName":"a","brokerAddrs":{"0":"%s"}}},'
    '"clusterAddrTable":{"c":["a"]}}',
    Code.GET_BROKER_CONFIG: "haListenPort=10912\nmappedFileSizeCommitLog=65536\nbrokerPermission=6\nbrokerId=0\n"
    "startAcceptSendRequestTimeStamp=0\nenableControllerMode=true\n",
    Code.GET_BROKER_RUNTIME_INFO: '{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"100",'
    '"brokerVersionDesc":"V5_5_0"}}',
    Code.GET_ALL_TOPIC_CONFIG: '{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"topicName":"T",'
    '"readQueueNums":4,"writeQueueNums":4,"perm":6}}}',
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: '{"dataVersion":{"counter":1},"subscriptionGroupTable":'
    '{"g":{"groupName":"g"}}}',
    Code.GET_ALL_CONSUMER_OFFSET: '{"offsetTable":{"T@g":{0:5}}}',
    Code.GET_ALL_DELAY_OFFSET: '{"offsetTable":{3:5}}',
    Code.GET_ALL_MESSAGE_REQUEST_MODE: '{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP",'
    '"popShareQueueNum":0,"topic":"T"}}}}',
    Code.GET_BROKER_HA_STATUS: '{"master":true,"masterCommitLogMaxOffset":100,"inSyncSlaveNums":0,'
    '"haConnectionInfo":[]}',
    Code.GET_TOPIC_STATS_INFO: '{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":5,'
    '"minOffset":0}}}',
    Code.GET_TIMER_CHECK_POINT: "\0" * 56,
}
ODD = (b'"x"', b"null", b"5", b"-1", b"1e999", b"[]", b"{}", b'":"', b'"a:99999"', b"99999999999999999999", b"true")


def spoilt(rng: random.Random, data: bytes) -> bytes:
    """Bytes with a few odd places."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(made) + 1)
        if rng.random() < 0.4:
            made[at : at + 1] = rng.randbytes(1)
        elif rng.random() < 0.5:
            del made[at : at + rng.randrange(1, 20)]
        else:
            made[at:at] = rng.choice(ODD)
    return bytes(made)


@asynccontextmanager
async def hostile(rng: random.Random) -> AsyncIterator[str]:
    """The address of a NameServer and broker, of which every fourth answer is spoilt."""
    address = ""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                for frame in decoder.feed(data):
                    text = ANSWERS.get(Code(frame.code), "{}")
                    body = (text % address if "%s" in text else text).encode()
                    answer = Frame.response_to(frame, 0 if rng.random() < 0.95 else rng.choice((1, 17, -5)))
                    answer.body = spoilt(rng, body) if rng.random() < 0.25 else body
                    out = encode_frame(answer)
                    writer.write(spoilt(rng, out) if rng.random() < 0.02 else out)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        address = f"{host}:{port}"
        yield address


@pytest.mark.parametrize("seed", range(4))
async def test_answers_of_any_content_are_errors_of_the_source(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(sources, "SLAVE_S", 0.2)
    monkeypatch.setattr("gantry_operator.migration.cutover_edge.ANSWER_S", 0.2)
    errors = 0
    async with hostile(random.Random(seed)) as address, httpx.AsyncClient() as http:
        for _ in range(12):
            async with Source([address], "a") as source:
                for ask in (
                    source.look, lambda: source.tables(address), lambda: source.timers_delivered_ms(address),
                    lambda: source.slave_ends(address), lambda: source.first_offsets(address, ["T"]),
                ):  # fmt: skip
                    try:
                        await ask()
                    except MigrationError:
                        errors += 1
            group = GroupPlace("a", "a", "192.0.2.1:5", tuple)
            async with Edge(SourcePlace((address,)), [group], http) as edge:
                assert (await edge.look())["a"].state is None
    assert errors, "some answers were spoilt"
