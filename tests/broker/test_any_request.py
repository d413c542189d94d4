"""Whatever a request brings: one answer with its number, none to a one-way request, and the next one is served.

Headers and bodies are drawn for each request code of a broker. A value may be refused; what must not come is an
exception of the program in the log, a second answer, or the end of the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from gantry_broker.client import Credentials
from gantry_broker.protocol import headers
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import FLAG_ONEWAY, RequestCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.message import BatchItem, encode_batch
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.protocol.requests import POLLS, REQUESTS, TO_SENDER
from gantry_broker.remoting.connection import Connection
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.conftest import Bench
from tests.broker.test_loop_holds import COMMON, acks, announced, beat, checked, groups, queues, send_ext, topics
from tests.support.remoting import Socket

EXAMPLES: Final = 6
"""Of each request code."""
PASSES: Final = 2_000
"""Passes of the event loop in which an answer must come; a wait for another thread takes real time beside them."""
FIRST, NEXT = 7, 2**31 - 1
"""Numbers of the drawn request and of the one behind it."""

NAMES: Final = sorted(
    {
        kind.WIRE_NAMES.get(name, name)
        for kind in vars(headers).values()
        if isinstance(kind, type) and issubclass(kind, headers.Header) and kind is not headers.Header
        for name, *_ in kind._fields()
    }
)
ODD: Final = (
    "", "0", "1", "-1", "+1", "7", "64", "4096", "2147483647", "-2147483648", "2147483648", "9223372036854775807",
    "-9223372036854775808", "9223372036854775808", "9" * 41, "²", "1_000", " 1", "1e3", "0x1", "NaN", "true", "TRUE",
    "null", "{}", "[]", "[[", '{"T":1}', "T", "G", "H", "c", "UPPER", "%RETRY%G", "%DLQ%G", "%RETRY%", "*", "a||b",
    "SCHEDULE_TOPIC_XXXX", "rmq_sys_GANTRY_CONTROL", "TBW102", "../../x", "T@G", "T\x01G\x02", "a\0b", "\n", "é", "😀",
    "x" * 127, "x" * 256, "x" * 1_025, "0 1 60000 0 0 demo-a 0 0", "0 1 60000 0 0 demo-a 4095 9223372036854775807",
    "0 -1 -1 0 0 demo-a -1 -1", "1 2 3", "7F00000100002A9F0000000000000000", "7F00000100002A9FFFFFFFFFFFFFFFFF",
    "FFFFFFFFFFFFFFFF7FFFFFFFFFFFFFFF", "TOPIC_PUT_NUMS", "AVG", "POP", "SQL92", "TAG", "a > 1 AND (b IN ('x'))", "a >",
    "LATEST", "KEYS\x01k\x02", "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01u\x02", "DELAY\x0199\x02",
    "TIMER_DELIVER_MS\x01²\x02", "+message.type=FIFO", "+a=b,-c", "REPLY_TO_CLIENT\x01c\x02CORRELATION_ID\x01u\x02",
)  # fmt: skip
TEXTS: Final = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
VALUES: Final = TEXTS | st.integers(-(2**70), 2**70).map(str)
SCALARS: Final = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS | st.sampled_from([[], {}, [None], [[]], {"": None}, {"a": {"b": []}}])
)  # fmt: skip


def _json_bodies(code: int) -> list[Any]:
    """Bodies of the kind that the code takes."""
    if code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        return [queues(2)]
    if code == RequestCode.HEART_BEAT:
        named = {"topic": "T", "subString": "a||b", "tagsSet": ["a"], "codeSet": [97], "subVersion": 1,
                 "expressionType": "TAG", "classFilterMode": False, "filterClassSource": None}  # fmt: skip
        found = orjson.loads(beat({"G": [named, {**named, "topic": "%RETRY%G"}]})[1])
        return [{**found, "producerDataSet": [{"groupName": "PG"}], "heartbeatFingerprint": 1, "withoutSub": False}]
    return {
        RequestCode.CHECK_CLIENT_CONFIG: [orjson.loads(checked(0)[1])],
        RequestCode.BATCH_ACK_MESSAGE: [acks(2)],
        RequestCode.QUERY_ASSIGNMENT: [
            {"topic": "T", "consumerGroup": "G", "clientId": "c", "strategyName": "AVG", "messageModel": "CLUSTERING"}
        ],
        RequestCode.SET_MESSAGE_REQUEST_MODE: [
            {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 2}
        ],
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: [topics(2)],
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: [groups(2)],
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: [
            {
                "groupName": "Made",
                "retryMaxTimes": 3,
                "retryQueueNums": 1,
                "brokerId": 0,
                "attributes": {"+a": "b"},
                "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2]}},
                "subscriptionDataSet": [{"topic": "T"}],
                "consumeTimeoutMinute": 15,
            }
        ],
    }.get(code, [] if code in BODILESS else [announced(2)])  # type: ignore[call-overload, no-any-return]


BODILESS: Final = {int(code) for code in TO_SENDER}


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from _paths(inner, (*at, key))


def _put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _put(copy[path[0]], path[1:], new)
    return copy


@st.composite
def bodies(draw: st.DrawFn, code: int, others: tuple[Any, ...] = ()) -> bytes:
    known = list(others) or _json_bodies(code)
    kind = draw(
        st.sampled_from(["json"] * 5 + ["cut", "bytes", "lines", "deep", "none"] if known else ["bytes", "batch"])
    )
    if kind == "batch":
        items = [BatchItem(b"x", draw(TEXTS).encode()[:1000]) for _ in range(2)]
        data = encode_batch(items)
        at = draw(st.integers(0, len(data)))
        return data[:at] + draw(st.binary(max_size=4)) + data[at:] if draw(st.booleans()) else data
    if kind in ("json", "cut"):
        value = draw(st.sampled_from(known))
        if isinstance(value, bytes):
            at = draw(st.integers(0, len(value)))
            return value[:at] + draw(st.binary(max_size=3)) + value[at:]
        for _ in range(draw(st.integers(0, 2))):
            value = _put(value, draw(st.sampled_from(sorted(_paths(value), key=repr))), draw(SCALARS))
        data = json.dumps(value).encode()
        return data if kind == "json" else data[: draw(st.integers(0, len(data)))]
    if kind == "lines":
        name = draw(st.sampled_from(["maxMessageSize", "brokerPermission", "transactionCheckMax", "x", ""]))
        return f"{name}={draw(TEXTS)}\n{draw(TEXTS)}".encode()
    if kind == "deep":
        return draw(st.sampled_from([b"[", b'{"a":', b'{"mqSet":['])) * draw(st.integers(1, 400))
    return draw(st.binary(max_size=40)) if kind == "bytes" else b""


@st.composite
def requests(draw: st.DrawFn, code: int, common: dict[str, Any] = COMMON, known: tuple[Any, ...] = ()) -> bytes:
    """The frame of a request, valid as a frame; everything else may be wrong. `known`: bodies of its kind."""
    fields: dict[str, Any] = {name: str(value) for name, value in common.items()}
    if code in TO_SENDER:
        fields |= {name: str(value) for name, value in send_ext("UNIQ_KEY\x01u").items()}
        fields |= {name: str(value) for name, value in headers.SendHeader.from_short(fields).ext().items()}
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        fields.pop(name, None)
    for name in draw(st.lists(st.sampled_from(sorted({*fields, *NAMES})), max_size=4)):
        fields[name] = draw(VALUES)
    body = draw(bodies(code, known))
    flag = draw(st.sampled_from([0, 0, 0, FLAG_ONEWAY]))
    if -0x8000 <= code <= 0x7FFF and draw(st.integers(0, 3)) == 0:
        return encode_frame(Frame(code, FIRST, flag, fields, body, serialize=1))
    if draw(st.booleans()):  # As fastjson, which takes other types, too.
        for name in draw(st.lists(st.sampled_from(sorted(fields) or ["x"]), max_size=2)):
            fields[name] = draw(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(0, 1e300))
    head = {
        "code": code, "opaque": FIRST, "flag": flag, "extFields": fields,
        "version": draw(st.sampled_from([0, 399, -1])),
        "language": draw(st.sampled_from(["JAVA", "JAVA", "x", None, 5, []])),
        "remark": draw(st.sampled_from([None, None, "r", 5, True])), "serializeTypeCurrentRPC": draw(SCALARS),
    }  # fmt: skip
    header = orjson.dumps(head)
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


AFTER: Final = RequestCode.GET_MAX_OFFSET
"""The request behind the drawn one."""


def never() -> bool:
    return False


class Client(Socket):
    """Keeps the answers, and what the peer asks."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self._decoder = FrameDecoder()

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.frames += self._decoder.feed(bytes(data))

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data))

    def answers_to(self, opaque: int) -> int:
        return sum(frame.is_response and frame.opaque == opaque for frame in self.frames)


class Faults(logging.Handler):
    """What was logged as an error: an exception that no one expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter().format(record))


async def served(
    connect: Callable[[], Connection],
    request: bytes,
    code: int,
    after: int,
    held: Callable[[], object],
    signed: Callable[[bytes], bytes] = lambda request: request,
) -> None:
    """Send a request, and one of the code `after` behind it; check what comes.

    `held`: whether the request waits for messages, as it asked to.
    """
    conn, client = connect(), Client()
    conn.connection_made(client)
    try:
        conn.data_received(request)
        conn.data_received(
            signed(encode_frame(Frame(after, NEXT, ext={"topic": "T", "namespace": "n", "queueId": "0"})))
        )
        oneway = bool(FrameDecoder().feed(request)[0].is_oneway)
        ends = asyncio.get_running_loop().time() + 10
        passes = 0
        while True:
            done = client.answers_to(NEXT) and (oneway or client.answers_to(FIRST) or held())
            if done or client.closed or asyncio.get_running_loop().time() > ends:
                break
            passes += 1
            await asyncio.sleep(0 if passes < PASSES else 0.005)
        for _ in range(3):
            await asyncio.sleep(0)  # A second answer would come now.
        assert not client.closed, f"request {code} ended the connection"
        assert client.answers_to(NEXT) == 1, (
            f"the request behind one of code {code} got {client.answers_to(NEXT)} answers"
        )
        expected = 0 if oneway else 1
        assert client.answers_to(FIRST) == expected or held(), f"request {code} got {client.answers_to(FIRST)} answers"
        assert client.answers_to(FIRST) <= expected
    finally:
        conn.connection_lost(None)


@pytest.fixture
def faults() -> Iterator[Faults]:
    found = Faults()
    logging.getLogger().addHandler(found)
    yield found
    logging.getLogger().removeHandler(found)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


RULES: Final = [
    {"type": "Topic", "name": "T", "actions": ["Pub", "Sub"]},
    {"type": "Group", "name": "G", "actions": ["Sub"]},
]
USERS: Final = {
    "mode": "Enabled",
    "version": 1,
    "users": [{"name": "admin", "keys": ["admin-secret"], "super": True},
              {"name": "some", "keys": ["some-secret"], "rules": RULES}],
}  # fmt: skip
CODES: Final = sorted(int(code) for code, row in REQUESTS.items() if row.broker)


async def _begun(path: Path, *, leads: bool = True, authentication: str = "Disabled") -> Bench:
    made = Bench(
        path,
        settings={"mappedFileSizeCommitLog": 16 << 20, "enablePropertyFilter": True},
        authentication=authentication,
    )
    if not leads:
        await made.broker.replication.start()
    else:
        await made.lead()
        for name in ("T", "H"):
            made.broker.meta.working.topics[name] = TopicConfig(name, 8, 8)
    if authentication != "Disabled":
        await made.broker.access.put(orjson.dumps(USERS))
    return made


class Port:
    """A broker's port for clients."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def connect(self) -> Connection:
        bench = self.bench
        limits = RequestLimits(lambda: 4 << 20)
        return Connection(bench.dispatcher, accepted=True, limits=limits, shared=bench.broker.shared)

    def held(self) -> object:
        """Polls that wait."""
        return self.bench.parts.processor._polls or len(self.bench.broker.pulls._held)


@pytest.fixture(scope="module")
def leader(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    bench = runner.run(_begun(tmp_path_factory.mktemp("any")))
    yield Port(bench)
    runner.run(bench.close())


@pytest.mark.parametrize("code", [*CODES, -1, 0, 2**31 - 1])
def test_each_request_has_one_answer(leader: Port, runner: asyncio.Runner, faults: Faults, code: int) -> None:
    @settings(max_examples=EXAMPLES)
    @given(request=requests(code))
    def check(request: bytes) -> None:
        runner.run(served(leader.connect, request, code, AFTER, leader.held if code in POLLS else never))
        assert not faults.texts

    check()


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_a_one_way_pull_has_no_answer(leader: Port, runner: asyncio.Runner, code: int) -> None:
    """The first one is checked in full, the second one as one that repeats it; both bring progress."""
    fields = {name: str(value) for name, value in COMMON.items()} | {"sysFlag": "5", "subscription": "*"}
    for progress in ("1", "2"):
        fields["commitOffset"] = progress
        pull = encode_frame(Frame(code, FIRST, FLAG_ONEWAY, fields))
        runner.run(served(leader.connect, pull, code, AFTER, never))
        assert leader.bench.broker.meta.working.offsets["T@G"][0] == int(progress)


ANY: Final = st.sampled_from(CODES).flatmap(lambda code: st.tuples(st.just(code), requests(code)))


def test_a_member_that_does_not_lead_answers_too(tmp_path: Path, runner: asyncio.Runner, faults: Faults) -> None:
    port = Port(runner.run(_begun(tmp_path, leads=False)))

    @settings(max_examples=EXAMPLES * 15)
    @given(asked=ANY)
    def check(asked: tuple[int, bytes]) -> None:
        code, request = asked
        runner.run(served(port.connect, request, code, AFTER, port.held if code in POLLS else never))
        assert not faults.texts

    try:
        check()
    finally:
        runner.run(port.bench.close())


@pytest.mark.parametrize("user", ["admin", "some"])
def test_signed_requests_have_one_answer(tmp_path: Path, runner: asyncio.Runner, faults: Faults, user: str) -> None:
    port = Port(runner.run(_begun(tmp_path, authentication="Enabled")))
    credentials = Credentials(user, f"{user}-secret")

    def signed(request: bytes) -> bytes:
        [frame] = FrameDecoder().feed(request)
        credentials.sign(frame)
        return encode_frame(frame)

    @settings(max_examples=EXAMPLES * 15)
    @given(asked=ANY)
    def check(asked: tuple[int, bytes]) -> None:
        code, request = asked
        held = port.held if code in POLLS else never
        runner.run(served(port.connect, signed(request), code, AFTER, held, signed))
        assert not faults.texts

    try:
        check()
    finally:
        runner.run(port.bench.close())
