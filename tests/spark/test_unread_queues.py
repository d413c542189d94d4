"""Queues that a group has not begun to read count from their first record, where offsets are known."""

from __future__ import annotations

from gantry_spark.summary import GroupOffset, with_unread_queues
from pyspark.sql import Row


def span(log: str, queue: int, first: int) -> Row:
    return Row(log=log, topic="Orders", queue_id=queue, min_qo=first, max_qo=99)


def test_a_log_whose_offsets_are_not_known_adds_no_lag() -> None:
    known = [GroupOffset("billing", "a", "Orders", 0, 50)]
    spans = [span("a", 0, 0), span("a", 1, 10), span("b", 0, 20)]
    assert with_unread_queues(known, spans) == [
        *known,
        GroupOffset("billing", "a", "Orders", 1, 10),
        GroupOffset("billing", "b", "Orders", 0, 20),
    ]
    assert with_unread_queues(known, spans, {"b"}) == [*known, GroupOffset("billing", "a", "Orders", 1, 10)]
