"""Plain sends that the broker takes as one value give the same log, queues, index, answers and counts as frames."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.access import gate as access_gate
from gantry_broker.access.decide import Policy
from gantry_broker.access.table import AccessTable
from gantry_broker.broker import clock
from gantry_broker.broker.send import sender as sending
from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.headers import SendHeader
from gantry_broker.protocol.message import BatchItem, encode_batch
from gantry_broker.store import append

from tests.broker.conftest import Bench
from tests.core.bodies import BODIES, body_of

NOW = 1_795_240_234_099
TOPICS = ("T", "U", "x" * 127)


@pytest.fixture(params=BODIES)
def body(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let brokers that are made now take plain sends, with this body of the core."""
    found = body_of(request.param)
    monkeypatch.setattr(sending, "NAME", "rust")
    monkeypatch.setattr(sending, "SendRules", found.SendRules)
    monkeypatch.setattr(sending, "plain_answers", found.send_answers)
    monkeypatch.setattr(append, "place_sends", found.place_sends)
    monkeypatch.setattr(access_gate, "SignatureKeys", found.SignatureKeys)
    monkeypatch.setattr(sending, "AT_ONCE_S", float("inf"))
    monkeypatch.setattr(clock.Clock, "unix_ms", lambda self: NOW)
    return found


def batches(rng: random.Random, bench: Bench, number: int) -> list[Frame]:
    """One read of a producer: mostly plain batches, some with something unusual."""
    made = []
    for at in range(rng.choice((1, 2, 4, 9))):
        items = []
        for item in range(rng.choice((1, 2, 30, 130))):
            text = rng.choice(("UNIQ_KEY\x01{}\x02TAGS\x01A", "KEYS\x01a b {}\x02", "", "ä\x01{}", "WAIT\x01true\x02x"))
            text = text.format(f"B{number:04X}{at:04X}{item:04X}")
            if rng.random() < 0.002:
                text += rng.choice(("\x02DELAY\x011", "\x02REAL_TOPIC\x01X", "\x02a\x01\0"))
            items.append(BatchItem(rng.randbytes(rng.choice((0, 10, 100, 1_100))), text.encode(), rng.randrange(3)))
        header = SendHeader(
            "PG", rng.choice(("T", "T", *TOPICS)), "TBW102", 4, rng.randrange(rng.choice((4, 4, 4, 4, 5))), 0, NOW - 5,
            0, rng.choice(("", "", "WAIT\x01true\x02", "WAIT\x01false")), 0, False, None, rng.choice((True, False)),
        )  # fmt: skip
        serialize = rng.choice((0, 0, 1))
        frame = bench.frame(RequestCode.SEND_BATCH_MESSAGE, header.short_ext(), encode_batch(items), serialize)
        if rng.random() < 0.02:
            frame.flag = 2
        made.append(frame)
    return made


def sends(rng: random.Random, bench: Bench, number: int) -> list[Frame]:
    """One read of a producer: mostly plain sends, some with something unusual."""
    if rng.random() < 0.3:
        return batches(rng, bench, number)
    made = []
    for at in range(rng.choice((1, 3, 8, 30))):
        properties = rng.choice(
            ("UNIQ_KEY\x01{}\x02WAIT\x01true\x02TAGS\x01A", "KEYS\x01a b {}\x02", "a\x01b\x02WAIT\x01true", "ä\x01{}")
        ).format(f"U{number:04X}{at:04X}")
        if rng.random() < 0.04:
            properties += rng.choice(
                ("\x02DELAY\x011", "\x02WAIT\x01false", "\x02REAL_TOPIC\x01X", "\x02x", "\x02a\x01\0")
            )
        header = SendHeader(
            "PG", rng.choice(("T", "T", *TOPICS)), "TBW102", 4, rng.randrange(rng.choice((4, 4, 4, 4, 5))),
            rng.choice((0, 0, 0, 1)), NOW - 5, 0, properties, rng.choice((0,) * 30 + (1,)), False, None, False,
        )  # fmt: skip
        code = rng.choice((RequestCode.SEND_MESSAGE_V2,) * 12 + (RequestCode.SEND_MESSAGE,))
        ext = header.short_ext() if code == RequestCode.SEND_MESSAGE_V2 else header.ext()
        frame = bench.frame(code, ext, rng.randbytes(rng.choice((0, 10, 100, 3_000))), rng.choice((0, 0, 0, 1)))
        if rng.random() < 0.02:
            frame.flag = 2
        made.append(frame)
    if rng.random() < 0.2:
        made.insert(rng.randrange(len(made) + 1), bench.frame(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0}))
    return made


def files(root: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and name.parts[0] in ("commitlog", "consumequeue", "index"):
            found[name.parts[0] if name.parts[0] == "index" else str(name)] = path.read_bytes()
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_the_same_files_answers_and_counts_as_by_frames(body: Any, tmp_path: Path, seed: int) -> None:
    pair = [Bench(tmp_path / name) for name in ("together", "frames")]
    for bench in pair:
        await bench.lead()
    pair[1].dispatcher._send_rules = None
    answers: list[list[Frame]] = []
    for bench in pair:
        for topic in TOPICS:
            assert (await bench.send(b"", topic, bornTimestamp=NOW)).code == 0
        rng = random.Random(seed)
        asked = [frame for number in range(40) for frame in [sends(rng, bench, number)]]
        for frames in asked:
            bench.give(*frames)
        wanted = [frame.opaque for frames in asked for frame in frames if not frame.is_oneway]
        answers.append([await bench.answer(opaque) for opaque in wanted])
    assert pair[0].together > 30
    assert pair[1].together == 0
    assert answers[0] == answers[1]
    counts = [
        (
            bench.broker.counts.put_count,
            {key: (counter.value, counter.times) for key, counter in bench.broker.stats.counters()},
            {topic: (histogram.counts, histogram.sum) for topic, histogram in bench.broker.stats.sizes.items()},
            bench.broker.stats.refused,
        )
        for bench in pair
    ]
    assert counts[0] == counts[1]
    rpc = []
    for bench in pair:
        bench.broker.latencies.sends.settle()
        rpc.append({tuple(labels.values()): histogram.count for labels, histogram in bench.broker.latencies.rpc.rows()})
        rpc[-1]["append"] = bench.broker.latencies.append.count
        rpc[-1]["send"] = bench.broker.latencies.send.count
        rpc[-1]["replication"] = bench.broker.latencies.replication.count
    assert rpc[0] == rpc[1]
    assert pair[0].store.log.end == pair[1].store.log.end > 100_000
    for bench in pair:
        bench.store.indexer.confirm(bench.store.log.end)
        await bench.close()
    found = [files(bench.store.config.path) for bench in pair]
    assert found[0].keys() == found[1].keys()
    for name, content in found[0].items():
        other = found[1][name]
        if name.startswith("commitlog"):  # The record of the epoch has the system's time.
            first = int.from_bytes(content[:4])
            content, other = content[first:], other[first:]
        assert content == other, name


def read(bench: Bench, *frames: Frame) -> tuple[int, list[Frame]]:
    """The plain sends that a read begins with, and the frames behind them."""
    decoder = FrameDecoder()
    rest = decoder.feed(b"".join(map(encode_frame, frames)), rules=bench.dispatcher.send_rules(), host=bytes(8))
    return 0 if decoder.sends is None else decoder.sends.messages, rest


async def test_what_ends_the_plain_sends_of_a_read(body: Any, bench: Any) -> None:
    good = bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x")

    def other(**fields: Any) -> Frame:
        return bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(**fields), b"x")

    unusual = [
        other(properties="DELAY\x011\x02"),
        other(properties="TRAN_MSG\x01true\x02"),
        other(properties="WAIT\x01false\x02"),
        other(properties="TIMER_DELAY_SEC\x011"),
        other(properties="a\x01\0"),
        other(properties="a"),
        other(properties="\x01a"),
        other(properties=""),
        other(properties="KEYS\x01" + "k " * 1_001),
        other(properties="a\x01" + "b" * 32_000),
        other(queueId=-1),
        other(sysFlag=4),
        other(sysFlag=8),
        other(reconsumeTimes=1),
        other(maxReconsumeTimes=3),
        other(batch=True),
        other(bornTimestamp=-1),
        other(topic=""),
        other(producerGroup="g" * 1_025),
        bench.frame(RequestCode.SEND_MESSAGE_V2, {**bench.send_ext(), "AccessKey": "u"}, b"x"),
        bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x" * 70_000),
        bench.frame(RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(), b"x"),
        bench.frame(RequestCode.HEART_BEAT, {}, b"{}"),
    ]
    for frame in unusual:
        assert read(bench, good, good, frame, good) == (2, [frame, good]), frame
    assert read(bench, good, good) == (2, [])


async def test_what_ends_the_plain_batches_of_a_read(body: Any, bench: Any) -> None:

    def other(*items: BatchItem, **fields: Any) -> Frame:
        content = encode_batch(items or (BatchItem(b"a", b"KEYS\x01k"), BatchItem(b"b", b"x\x01y\x02")))
        fields = {"properties": "WAIT\x01true\x02", "batch": True, **fields}
        return bench.frame(RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(**fields), content)

    good = other()
    cut = other()
    cut.body = cut.body[:-1]
    empty = other()
    empty.body = b""
    oneway = other()
    oneway.flag = 2
    unusual = [
        cut,
        empty,
        oneway,
        other(BatchItem(b"a", b"DELAY\x011")),
        other(BatchItem(b"a", b"TRAN_MSG\x01true")),
        other(BatchItem(b"a", b"a\x01\0")),
        other(BatchItem(b"a", b"\xff\x01a")),
        other(BatchItem(b"a", b"KEYS\x01" + b"k " * 1_001)),
        other(BatchItem(b"a", b"a\x01" + b"b" * 32_000)),
        other(*[BatchItem(b"", b"")] * 1_001),
        other(*[BatchItem(b"", b"KEYS\x01" + b"k " * 900)] * 6),
        other(BatchItem(b"x" * (1 << 20), b"")),
        other(properties="WAIT\x01false"),
        other(properties="a\x01b"),
        other(queueId=-1),
        other(sysFlag=4),
        other(reconsumeTimes=1),
        other(maxReconsumeTimes=3),
        bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x"),
    ]
    for frame in unusual:
        assert read(bench, good, good, frame, good) == (4, [frame, good]), frame
    assert read(bench, other(*[BatchItem(b"x" * 1_000, b"")] * 200), good) == (202, [])
    assert read(bench, *[other(*[BatchItem(b"", b"UNIQ_KEY\x01u")] * 1_000)] * 5)[0] == 4_000, "keys of a read"


async def test_a_batch_to_dead_letters_comes_as_a_frame(body: Any, bench: Any) -> None:
    topic = {"topic": "%DLQ%G", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
             "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    assert (await bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    assert (await bench.send(b"x", "%DLQ%G")).code == 0
    content = encode_batch([BatchItem(b"a", b"")])
    ext = bench.send_ext("%DLQ%G", properties="", batch=True)
    answer = await bench.ask(RequestCode.SEND_BATCH_MESSAGE, ext, content)
    assert (answer.code, bench.together) == (ResponseCode.MESSAGE_ILLEGAL, 0)


@pytest.mark.parametrize("why", ["queue", "body", "topic", "right"])
async def test_what_a_table_or_a_setting_forbids_is_refused_by_frames(body: Any, bench: Any, why: str) -> None:
    assert (await bench.send(b"x")).code == 0
    assert (await bench.send(b"x")).code == 0
    assert bench.together == 1
    wanted = {"queue": ResponseCode.SYSTEM_ERROR, "body": ResponseCode.MESSAGE_ILLEGAL, "topic": 17, "right": 16}[why]
    if why == "body":
        bench.store.config.settings.maxMessageSize = 2_000
    if why == "right":
        topic = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 4,
                 "topicFilterType": "SINGLE_TAG"}  # fmt: skip
        assert (await bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    fields = {"queue": {"queueId": 4}, "topic": {"topic": "none", "defaultTopic": "none"}}.get(why, {})
    answer = await bench.send(b"x" * 2_001, **fields)
    assert answer.code == wanted, answer.remark
    assert bench.together == 1
    assert bench.store.reader.max_offset("T", 0) == 2


async def test_records_that_have_no_room_in_their_segment_begin_the_next(body: Any, make_bench: Any) -> None:
    bench = make_bench(settings={"mappedFileSizeCommitLog": 65_536})
    await bench.lead()
    for _ in range(8):
        frames = [bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x" * 2_000) for _ in range(10)]
        bench.give(*frames)
        for frame in frames:
            assert (await bench.answer(frame.opaque)).code == 0
    assert bench.together > 40
    assert bench.store.log.end > 2 * 65_536
    assert bench.store.reader.max_offset("T", 0) == 80


def access(mode: str, rules: bool = True, **quota: Any) -> Policy:
    """A table with one user, who may publish to T."""
    may = [{"type": "Topic", "name": "T", "actions": ["Pub"]}] if rules else []
    user = {"name": "u", "keys": ["new-secret", "old-secret"], "rules": may, **quota}
    return Policy.of(AccessTable.model_validate({"version": 1, "mode": mode, "users": [user]}).model_dump())


def signed(bench: Bench, secret: str = "new-secret", user: str = "u", topic: str = "T") -> Frame:
    frame = bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(topic), b"x")
    Credentials(user, secret).sign(frame)
    return frame


async def answers(bench: Bench, *frames: Frame) -> list[int]:
    bench.give(*frames)
    return [(await bench.answer(frame.opaque)).code for frame in frames]


async def test_signed_sends_pass_together_and_a_wrong_one_is_refused_by_itself(body: Any, bench: Any) -> None:
    assert (await bench.send(b"x")).code == 0
    assert (await bench.send(b"x", "U")).code == 0
    before = bench.together
    gate = bench.broker.access.gate
    gate.set_policy(access("Enabled"))
    no = ResponseCode.NO_PERMISSION
    assert await answers(bench, signed(bench)) == [0], "a user's first request is looked at by itself"
    assert bench.together == before
    assert await answers(bench, signed(bench), signed(bench), signed(bench)) == [0] * 3
    assert bench.together == before + 3
    assert await answers(bench, signed(bench, "old-secret"), signed(bench, "old-secret")) == [0] * 2
    assert bench.together == before + 5, "an older key counts"
    assert await answers(bench, signed(bench), signed(bench, "wrong"), signed(bench)) == [0, no, 0]
    assert await answers(bench, signed(bench), signed(bench, topic="U"), signed(bench)) == [0, no, 0]
    unsigned = bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x")
    assert await answers(bench, unsigned) == [no]
    assert await answers(bench, signed(bench, user="other")) == [no]
    changed = signed(bench)  # and then changed on its way
    changed.body = b"y"
    assert await answers(bench, changed) == [no]
    assert gate.refused == {"signature": 3, "permission": 1, "anonymous": 1}
    taken = bench.together
    gate.set_policy(access("Enabled", rules=False))
    assert await answers(bench, signed(bench), signed(bench)) == [no] * 2, "what was remembered is void"
    gate.set_policy(access("Enabled", messagesPerSecond=1))
    assert sorted(await answers(bench, *[signed(bench) for _ in range(9)]))[-1] == ResponseCode.SYSTEM_BUSY
    assert bench.together == taken
    gate.set_policy(access("Permissive"))
    gate.anonymous = 0
    unsigned = [bench.frame(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x") for _ in range(3)]
    assert await answers(bench, *unsigned) == [0] * 3
    assert (bench.together, gate.anonymous) == (taken + 3, 3)
