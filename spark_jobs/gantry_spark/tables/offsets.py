"""What a table says about the offsets that it covers, and the rule that a commit continues the last one. Pure.

Each snapshot of ours has the ends of all queues in its summary, so the newest snapshot alone tells where to continue. A
table that was set back to an older snapshot continues from that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import orjson

from gantry_spark.errors import GantrySparkError, SourceError
from gantry_spark.topics.queues import Offsets, QueueRange, from_table, to_table

ENDS: Final = "gantry.offsets"
"""Property of a snapshot: the offset after the last message of each queue, as JSON by topic and queue."""
STARTS: Final = "gantry.offsets-from"
"""Property of a snapshot: where its own messages begin, in the queues that it has messages of."""
TIMES: Final = "gantry.store-times"
"""Property of a snapshot: the store time (Unix ms) of the newest message of each queue, as JSON by topic and queue. It
tells messages that took the offsets of others, which their broker has lost, or which were of a topic before.
"""
LOST: Final = "gantry.lost"
"""Property of a snapshot: messages that no longer existed when it was made."""

LOSSES: Final = "gantry.losses"
"""Property of a table: the last losses of all commits, each with its time, as a JSON list. Snapshots expire."""
MAX_LOSSES: Final = 100


class NotContinued(GantrySparkError):
    """Another commit came first, or the table cannot say where it ends."""


def summary(
    last: Offsets, ranges: Iterable[QueueRange], ends: Offsets, losses: Iterable[str], times: Offsets
) -> dict[str, str]:
    """Return the properties of a snapshot that continues `last`. `times`: store times of the newest messages."""
    found = {
        ENDS: orjson.dumps(to_table({**last, **ends})).decode(),
        STARTS: orjson.dumps(to_table({r.queue: r.start for r in ranges})).decode(),
        TIMES: orjson.dumps(to_table(times)).decode(),
    }
    if text := "; ".join(losses):
        found[LOST] = text[:4_000]
    return found


def covered(summaries: Iterable[Mapping[str, str]], name: str) -> Offsets:
    """Return the ends of a table's queues from the summaries of its snapshots, the newest first.

    Snapshots of other writers, such as a compaction, say nothing. Raises NotContinued if none says it and there are
    snapshots.
    """
    any_found = False
    for one in summaries:
        any_found = True
        text = one.get(ENDS)
        if text is None:
            continue
        try:
            return from_table(orjson.loads(text), "offsets")
        except (ValueError, SourceError) as error:
            raise NotContinued(f"table {name}: property {ENDS} of a snapshot cannot be read: {error}") from None
    if any_found:
        raise NotContinued(
            f"table {name} has snapshots, and none says which messages it holds: it is another table, or its snapshots "
            f"expired; rebuild it, or name another table"
        )
    return {}


def store_times(summaries: Iterable[Mapping[str, str]]) -> Offsets:
    """Return the store times in the newest of these summaries that says where a table ends; empty: it has none."""
    text = next((one.get(TIMES) for one in summaries if ENDS in one), None)
    try:
        return {} if text is None else from_table(orjson.loads(text), "store times")
    except (ValueError, SourceError):
        return {}


def losses_of(properties: Mapping[str, str]) -> list[str]:
    """Return the losses in the properties of a table."""
    try:
        found = orjson.loads(properties.get(LOSSES, "[]"))
    except ValueError:
        return []
    return [str(one) for one in found] if isinstance(found, list) else []


def with_losses(properties: Mapping[str, str], losses: Iterable[str], now_ms: int) -> dict[str, str]:
    """Return the property of a table with the losses of one more commit; empty: there are none."""
    at = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    more = [f"{at}: {text[:500]}" for text in losses]
    return {LOSSES: orjson.dumps([*losses_of(properties), *more][-MAX_LOSSES:]).decode()} if more else {}


def check_continues(expected: Offsets, found: Offsets, name: str) -> None:
    """Raise NotContinued unless a table still ends where a commit begins."""
    if expected != found:
        queue = next(q for q in sorted({*expected, *found}) if expected.get(q) != found.get(q))
        raise NotContinued(
            f"table {name}: another commit came first; {queue} ends at {found.get(queue)}, not at {expected.get(queue)}"
        )
