"""Requests of `gantry migrate cutover`, `abort` and `rollback` in an annotation of the cluster, their records and
answer. Pure.
"""

from __future__ import annotations

import json
import uuid
from typing import Final, NamedTuple

from gantry_broker.protocol.digits import whole_number

from gantry_operator.api.annotations import GROUP
from gantry_operator.migration import rollback_steps
from gantry_operator.migration.cutover_steps import Limits, Record, Refused
from gantry_operator.migration.progress import ASK

MIGRATE: Final = ASK
"""Annotation `cutover`, `abort` or `rollback`, then words `lag=`, `settle=SECONDS`, `routes=SECONDS`,
`timeout=SECONDS`. `lag` is MiB for a cutover, and messages for a rollback. An optional ` #id` distinguishes equal
requests.
"""
MIGRATE_RESULT: Final = f"{GROUP}/migrate-result"
"""Annotation with the request, then "done: ..." or "failed: ..."."""
MIGRATION: Final = f"{GROUP}/migration"
"""Annotation with the record of the cutover, as JSON: written before each step. A person must not change it."""
ROLLBACK: Final = f"{GROUP}/migration-rollback"
"""The same of a rollback."""
LONGEST_S: Final = 3_600
MOST_MIB: Final = 1 << 20
MOST_MESSAGES: Final = 1_000_000
OPS: Final = ("cutover", "abort", "rollback")


class MigrationRequest(NamedTuple):
    """What a user asks for."""

    op: str
    limits: Limits = Limits()
    timeout_s: float = 120.0
    back: rollback_steps.Limits = rollback_steps.Limits()
    """How patient a rollback is."""


def new_request(
    op: str, *, lag: int | None = None, settle_s: float = 6.0, routes_s: float = 32.0, timeout_s: float = 120.0
) -> str:
    """Write a request. `lag`: MiB for a cutover, messages for a rollback."""
    words = [op]
    if op != "abort":
        words += [] if lag is None else [f"lag={lag}"]
        words.append(f"settle={int(settle_s)}")
    if op == "cutover":
        words.append(f"routes={int(routes_s)}")
    return f"{' '.join(words)} timeout={max(int(timeout_s), 1)} #{uuid.uuid4().hex[:8]}"


def parse_request(text: str) -> MigrationRequest:
    """Read a request. Raises ValueError, which says what to write."""
    op, *words = text.split(" #")[0].split() or [""]
    if op not in OPS:
        raise ValueError(f"{text[:100]!r}: write cutover, abort or rollback")
    unit, most = ("MESSAGES", MOST_MESSAGES) if op == "rollback" else ("MIB", MOST_MIB)
    bounds = {"lag": (0, most), "settle": (0, LONGEST_S), "routes": (0, LONGEST_S), "timeout": (1, LONGEST_S)}
    if op == "rollback":
        del bounds["routes"]
    numbers = {"lag": 1_000 if op == "rollback" else 64, "settle": 6, "routes": 32, "timeout": 120}
    for word in words:
        name, _, value = word.partition("=")
        number = whole_number(value, *bounds[name]) if name in bounds else None
        if number is None:
            units = [f"{n}={unit if n == 'lag' else 'SECONDS'} ({low} to {high})" for n, (low, high) in bounds.items()]
            raise ValueError(f"{word[:100]!r}: write {', '.join(units[:-1])} or {units[-1]}")
        numbers[name] = number
    lag, settle, routes, timeout = (numbers[name] for name in ("lag", "settle", "routes", "timeout"))
    if op == "cutover" and settle + routes >= timeout:
        raise ValueError(
            f"settle={settle} and routes={routes} leave no time of timeout={timeout}: after that a cutover goes back"
        )
    if op == "rollback":
        return MigrationRequest(op, Limits(), float(timeout), rollback_steps.Limits(lag=lag, settle=float(settle)))
    return MigrationRequest(op, Limits(lag=lag << 20, settle=float(settle), routes=float(routes)), float(timeout))


def read_record(text: str | None) -> Record:
    """Read the annotation; None: no cutover has begun. Raises Refused for another content."""
    if text is None:
        return Record()
    try:
        return Record.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(MIGRATION, "cutover", error) from None


def read_rollback(text: str | None) -> rollback_steps.Record:
    """Read the annotation; None: no rollback has begun. Raises Refused for another content."""
    if text is None:
        return rollback_steps.Record()
    try:
        return rollback_steps.Record.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(ROLLBACK, "rollback", error) from None


def _unreadable(annotation: str, what: str, error: Exception) -> Refused:
    return Refused(
        f"the annotation {annotation} is no record of a {what} ({error!r}): write the former content, or remove it "
        f"when no {what} has begun"
    )


def written(record: Record | rollback_steps.Record) -> str:
    """Return the content of the annotation."""
    return json.dumps(record.to_json())
