"""The slave's end of RocketMQ's HA protocol: however the bytes are cut, the records arrive or the reason is said."""

from __future__ import annotations

import random
import struct

import pytest
from gantry_broker.broker.migration import ha
from gantry_broker.broker.migration.errors import MigrationError, SourceBroken
from gantry_broker.broker.migration.ha import Slaves
from gantry_broker.protocol.message import MAGIC_BLANK, MAGIC_V1, encode_record
from gantry_broker.store.log.record_reader import MAX_RECORD, filler

SEGMENT = 4096


def log_of(rng: random.Random, size: int) -> bytes:
    """A log from offset 0 with fillers at the ends of its segments."""
    data = bytearray()
    number = 0
    while len(data) < size:
        record = encode_record(
            topic=b"T", body=rng.randbytes(rng.randrange(300)), properties=b"", queue_id=0, flag=0,
            queue_offset=number, phys_offset=len(data), sys_flag=0, born_ms=1, born_host=bytes(8), store_ms=1,
            store_host=bytes(8), reconsume_times=0, prepared_offset=0,
        )  # fmt: skip
        room = SEGMENT - len(data) % SEGMENT
        if len(record) + 8 > room:
            data += filler(room) + bytes(room - len(filler(room)))
            continue
        data += record
        number += 1
    return bytes(data)


def frames(rng: random.Random, log: bytes, at: int) -> bytes:
    """The log from `at` on as a master sends it, with heartbeats in between."""
    out = b""
    while at < len(log):
        size = min(rng.choice((1, 7, 100, 3000, 32768)), len(log) - at)
        if rng.random() < 0.2:
            out += struct.pack(">qi", at, 0)
        out += struct.pack(">qi", at, size) + log[at : at + size]
        at += size
    return out


def stream(start: int, end: int, log: bytes) -> ha.Stream:
    return ha.Stream(start, end, log[ha.first_offset(start, end) : end], SEGMENT)


@pytest.mark.parametrize("seed", range(200))
def test_records_arrive_however_frames_and_reads_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    log = log_of(rng, rng.choice((0, 500, 20_000)))
    borders = [0]
    while borders[-1] < len(log):
        borders.append(borders[-1] + struct.unpack_from(">i", log, borders[-1])[0])
    end = rng.choice(borders)
    made = stream(0, end, log)
    sent = frames(rng, log, made.asked)
    got = log[:end]
    while sent:
        size = rng.choice((1, 12, 500, 70_000))
        made.feed(sent[:size])
        sent = sent[size:]
        while whole := made.take():
            got += whole
            assert made.end == len(got)
            assert len(got) in borders
    assert got == log
    assert made.received == max(len(log), 1)


def test_a_log_is_asked_for_from_offset_1_because_0_means_the_last_segment() -> None:
    assert ha.first_offset(0, 0) == 1
    assert ha.first_offset(SEGMENT, SEGMENT) == SEGMENT
    assert ha.first_offset(0, 100_000) == 100_000 - ha.OVERLAP


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (struct.pack(">qi", 0, 10), "went back: 0 came where 1 follows"),
        (struct.pack(">qi", 2, 10), "went ahead: 2 came where 1 follows"),
        (struct.pack(">qi", -1, 10), "went back"),
        (struct.pack(">qi", 5, 0), "went ahead"),
        (struct.pack(">qi", 1, -1), "a frame of -1 bytes"),
        (struct.pack(">qi", 1, ha.MAX_FRAME + 1), "0 to 67108864 can be"),
    ],
)
def test_a_frame_that_no_master_sends_stops_the_migration(frame: bytes, said: str) -> None:
    with pytest.raises(SourceBroken, match=said):
        stream(0, 0, b"").feed(frame + bytes(20))


def test_a_master_that_was_emptied_and_grew_again_is_found_by_the_bytes_before_the_end() -> None:
    log = log_of(random.Random(1), 20_000)
    other = log_of(random.Random(2), 40_000)
    end = 0
    while end < 12_000:
        end += struct.unpack_from(">i", log, end)[0]
    made = stream(0, end, log)
    with pytest.raises(SourceBroken, match="differs from what it sent"):
        made.feed(struct.pack(">qi", made.asked, 5000) + other[made.asked : made.asked + 5000])


@pytest.mark.parametrize("junk", [bytes(100), b"\0\0\0\x05" + bytes(100), b"\x7f" * 100])
def test_bytes_that_begin_no_record_are_not_taken(junk: bytes) -> None:
    made = stream(0, 0, b"")
    made.feed(struct.pack(">qi", 1, len(junk)) + junk)
    with pytest.raises(SourceBroken, match="no record begins at offset 0"):
        made.take()


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_BLANK])
def test_a_record_that_would_fill_the_memory_is_not_waited_for(magic: int) -> None:
    made = ha.Stream(SEGMENT, SEGMENT, b"", 1 << 30)
    made.feed(struct.pack(">qi", SEGMENT, 100) + struct.pack(">iI", MAX_RECORD + 1, magic) + bytes(92))
    with pytest.raises(SourceBroken, match="a record of 67108865 bytes begins at offset 4096"):
        made.take()


def test_a_follower_never_acknowledges_in_the_place_of_a_slave() -> None:
    sync = {"brokerRole": "SYNC_MASTER", "syncFlushTimeout": "5000"}
    follow, none, lost = Slaves.FOLLOW, Slaves.NONE, Slaves.LOST
    assert ha.reports_for(ha.Promise.of(sync, follow)) is ha.Reports.NEUTRAL
    assert ha.reports_for(ha.Promise.of(sync, none)) is ha.Reports.DURABLE
    # A connection counts as a slave: senders would wait, who get SLAVE_NOT_AVAILABLE at once without it.
    assert ha.reports_for(ha.Promise.of(sync, lost)) is ha.Reports.AWAY
    # At the end of a cutover nobody sends, and the end of the log is to arrive.
    assert ha.reports_for(ha.Promise.of(sync | {"brokerPermission": "0"}, lost)) is ha.Reports.NEUTRAL
    for state in Slaves:
        assert ha.reports_for(ha.Promise.of({"brokerRole": "ASYNC_MASTER"}, state)) is ha.Reports.DURABLE
    # The first offset is a report, too: nobody may still wait for a record below it.
    assert ha.pause_before(ha.Promise.of(sync, follow)) > 5.0
    assert ha.pause_before(ha.Promise.of(sync | {"syncFlushTimeout": "-3"}, follow)) > 5.0


def test_senders_of_5_wait_for_more_replicas_than_the_master_alone() -> None:
    assert ha.is_sync({"brokerRole": "SYNC_MASTER"})  # 4.9
    for numbers, waits in (("11", False), ("21", True), ("12", True), ("x1", True)):
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": numbers[0], "minInSyncReplicas": numbers[1]}
        assert ha.is_sync(settings) is waits
        assert not ha.is_sync(settings | {"brokerRole": "ASYNC_MASTER"})


def states(*looks: tuple[float, int, dict[str, int | None]]) -> list[Slaves]:
    """What a watch says after each look: time, the master's end, the slaves' ends."""
    watch = ha.SlaveWatch()
    found = []
    for look in looks:
        watch.look(*look)
        found.append(watch.state)
    return found


def test_a_slave_that_comes_counts_once_it_follows() -> None:
    # It registers before it connects: until it has what the master had, nobody waits for it.
    joining = [
        (0.0, 900, {}),
        (0.5, 910, {"s": 0}),
        (1.0, 920, {"s": 0}),
        (1.5, 930, {"s": 500}),
        (2.0, 940, {"s": 935}),
    ]
    assert states(*joining) == [Slaves.NONE] * 4 + [Slaves.FOLLOW]


def test_a_slave_that_was_there_before_is_waited_for() -> None:
    assert states((0.0, 900, {"s": 100}), (0.5, 910, {"s": 500}), (1.0, 920, {"s": 905})) == [
        Slaves.LOST, Slaves.LOST, Slaves.FOLLOW,
    ]  # fmt: skip
    assert states((0.0, 900, {"s": 900})) == [Slaves.FOLLOW]
    assert states((0.0, 900, {"s": None})) == [Slaves.LOST]


def test_a_slave_that_stays_behind_while_it_grows_is_not_lost() -> None:
    slow: list[tuple[float, int, dict[str, int | None]]] = [
        (n / 2, 1_000 * n, {"s": 1_000 * n - min(n * n, 400 * n)}) for n in range(20)
    ]
    assert states(*slow) == [Slaves.FOLLOW] * 20


def test_a_slave_that_stands_is_lost_and_one_that_is_gone_counts_no_more() -> None:
    begin = (0.0, 900, {"s": 900})
    assert states(begin, (0.5, 910, {"s": 900}), (1.0, 920, {"s": 900}), (1.5, 930, {"s": 900}))[-1] is Slaves.LOST
    assert states(begin, (0.5, 910, {"s": None}))[-1] is Slaves.LOST
    assert states(begin, (0.5, 910, {}))[-1] is Slaves.NONE
    # Another one that follows is enough, as it is for the master.
    assert states(begin, (0.5, 910, {"s": None, "t": 910}))[-1] is Slaves.FOLLOW
    # Lost ones that come back have to follow first.
    away: list[tuple[float, int, dict[str, int | None]]] = [(n / 2, 1_000 * n, {"s": None}) for n in range(1, 5)]
    back = states(begin, *away, (2.5, 4_100, {"s": 950}), (3.0, 4_200, {"s": 1_500}), (3.5, 4_300, {"s": 4_200}))
    assert back[1:] == [Slaves.LOST] * 6 + [Slaves.FOLLOW]


def answer(*epochs: tuple[int, int], end: int = 0) -> bytes:
    """A master's answer to the handshake, with its epochs and their first offsets."""
    body = b"".join(struct.pack(">iq", *epoch) for epoch in epochs)
    return struct.pack(">iiqi", 1, len(body), end, len(epochs)) + body


def transfer(offset: int, data: bytes, confirmed: int) -> bytes:
    return struct.pack(">iiqiqq", 2, len(data), offset, 1, 0, confirmed) + data


def learner(in_sync: int | None, end: int = 0, log: bytes = b"") -> ha.LearnerStream:
    return ha.LearnerStream(0, end, log[ha.first_offset(0, end) : end], SEGMENT, lambda: in_sync)


@pytest.mark.parametrize("seed", range(100))
def test_a_learner_takes_what_is_confirmed_and_what_each_broker_of_the_set_has(seed: int) -> None:
    rng = random.Random(seed)
    log = log_of(rng, rng.choice((500, 20_000)))
    borders = [0]
    while borders[-1] < len(log):
        borders.append(borders[-1] + struct.unpack_from(">i", log, borders[-1])[0])
    end, in_sync = rng.choice(borders), 0
    made = ha.LearnerStream(0, end, log[ha.first_offset(0, end) : end], SEGMENT, lambda: in_sync)
    assert made.greeting() == struct.pack(">ihhq", 1, 0, 1, -1), "a learner with a number that no broker has"
    sent, at = answer((1, 0), (3, 400), end=len(log)), made.asked
    confirmed = at
    while at < len(log):
        size = min(rng.choice((1, 100, 3000)), len(log) - at)
        confirmed = max(confirmed, min(at + size, rng.choice(borders)))
        sent += transfer(at, log[at : at + size], confirmed)
        at += size
        if rng.random() < 0.2:
            sent += transfer(at, b"", confirmed)
    got, said = log[:end], b""
    while sent:
        size = rng.choice((1, 36, 500, 70_000))
        said += made.feed(sent[:size])
        sent = sent[size:]
        in_sync = max(in_sync, rng.choice(borders)) if rng.random() < 0.5 else in_sync
        while whole := made.take():
            got += whole
            assert len(got) <= in_sync
    assert said == struct.pack(">iq", 2, made.asked), "the first report follows the master's answer"
    assert len(got) <= max(confirmed, end)
    in_sync = len(log)
    made.feed(transfer(len(log), b"", len(log)))
    while whole := made.take():
        got += whole
    assert got == log


def test_a_learner_takes_nothing_while_it_is_not_known_what_a_failover_keeps() -> None:
    log = log_of(random.Random(1), 500)
    made = learner(None)
    made.feed(answer((1, 0)) + transfer(1, log[1:], len(log)))
    assert made.take() == b""


def test_a_master_that_has_nothing_to_send_yet_is_no_reason_to_stop() -> None:
    assert learner(0).feed(answer((1, 0)) + transfer(-1, b"", -1)) == struct.pack(">iq", 2, 1)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (struct.pack(">iiqi", 2, 0, 0, 1), "handshake with state 2"),
        (struct.pack(">iiqi", 1, 13, 0, 1), "state 1 and 13 bytes"),
        (struct.pack(">iiqi", 1, -12, 0, 1), "state 1 and -12 bytes"),
        (struct.pack(">iiqi", 1, 12 * (ha.MAX_EPOCHS + 1), 0, 1), "only the controller mode"),
        (answer((1, 0)) + transfer(0, bytes(10), 0), "went back"),
        (answer((1, 0)) + transfer(2, bytes(10), 0), "went ahead"),
        (answer((1, 0)) + transfer(-1, bytes(10), 0), "went back"),
        (answer((1, 0)) + struct.pack(">iiqiqq", 1, 0, 1, 1, 0, 0), "a frame of state 1"),
        (answer((1, 0)) + struct.pack(">iiqiqq", 2, ha.MAX_FRAME + 1, 1, 1, 0, 0), "0 to 67108864 can be"),
    ],
)
def test_what_no_master_under_a_controller_sends_stops_the_migration(frame: bytes, said: str) -> None:
    with pytest.raises(SourceBroken, match=said):
        learner(0).feed(frame)


@pytest.mark.parametrize("epochs", [[], [(4, 5_000)]])
def test_a_master_whose_epochs_begin_later_is_named(epochs: list[tuple[int, int]]) -> None:
    with pytest.raises(MigrationError, match="epochs begin at") as failed:
        learner(0).feed(answer(*epochs))
    assert not isinstance(failed.value, SourceBroken)


def test_what_waits_for_the_sources_own_slaves_has_a_limit() -> None:
    made = learner(0)
    made.feed(answer((1, 0)))
    at, piece = 1, bytes(8 << 20)
    for _ in range(9):
        assert at > ha.MAX_HELD or not made.full
        made.feed(transfer(at, piece, 0))
        at += len(piece)
    assert made.full


def test_a_learner_never_acknowledges() -> None:
    controlled = {"brokerRole": "SYNC_MASTER", "enableControllerMode": "true"}
    for slaves in Slaves:
        assert ha.reports_for(ha.Promise.of(controlled, slaves)) is ha.Reports.NEUTRAL
    assert ha.pause_before(ha.Promise.of(controlled, Slaves.FOLLOW)) == 1.0
