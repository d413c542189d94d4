"""Hypothesis strategies for logs with every kind of record and of damage."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.spark.reference_log import SEGMENT, LogWriter, Message

# Shrinking logs of whole records takes minutes, so the failing example is printed unshrunk.
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)

text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x01\x02"), max_size=12)
messages = st.builds(
    Message,
    topic=st.sampled_from(["Orders", "a", "T" * 127, "L" * 200, "täglich", "%RETRY%group", "SCHEDULE_TOPIC_XXXX"]),
    queue_id=st.integers(0, 3),
    body=st.binary(max_size=60) | st.just(b"") | st.just(b"z" * 20_000),
    key=st.none() | st.sampled_from(["a", "b", "a b", "", "schlüssel"]),
    props=st.dictionaries(
        st.sampled_from(["TAGS", "UNIQ_KEY", "DELAY", "num", "REAL_TOPIC"]) | text.filter(bool), text, max_size=4
    ),
    store_ms=st.integers(1_700_000_000_000, 1_700_000_100_000),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12]),
    reconsume=st.integers(0, 16),
    prepared_offset=st.integers(0, 2**40),
    flag=st.integers(-(2**31), 2**31 - 1),
    v6=st.tuples(st.booleans(), st.booleans()),
)

damages = st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=60)), max_size=3)
"""Positions of damage in a log, and the bytes written there."""


def damaged_log(root: Path, written: list[Message], affected: list[tuple[int, bytes]], torn: int) -> None:
    """Write a store directory with expired first segments, overwritten bytes, and a tail without its last `torn`
    bytes.
    """
    begin = 3 * SEGMENT
    writer = LogWriter(root, start=begin)
    writer.extend(written)
    for place, junk in affected:
        at = begin + place % (writer.end - begin)
        writer.write(at, junk[: SEGMENT - at % SEGMENT])
    if torn and writer.end % SEGMENT > torn:
        writer.write(writer.end - torn, bytes(torn))
