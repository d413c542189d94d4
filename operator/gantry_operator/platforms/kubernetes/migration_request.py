"""Requests of `gantry migrate cutover` and `abort` in an annotation of the cluster, their record and answer. Pure."""

from __future__ import annotations

import json
import uuid
from typing import Final, NamedTuple

from gantry_broker.protocol.digits import whole_number

from gantry_operator.api.annotations import GROUP
from gantry_operator.migration.progress import ASK
from gantry_operator.migration.steps import Limits, Record, Refused

MIGRATE: Final = ASK
"""Annotation `cutover` or `abort`, then words `lag=MIB`, `settle=SECONDS`, `timeout=SECONDS`. An optional ` #id`
distinguishes equal requests.
"""
MIGRATE_RESULT: Final = f"{GROUP}/migrate-result"
"""Annotation with the request, then "done: ..." or "failed: ..."."""
MIGRATION: Final = f"{GROUP}/migration"
"""Annotation with the record of the cutover, as JSON: written before each step. A person must not change it."""
LONGEST_S: Final = 3_600
MOST_MIB: Final = 1 << 20


class MigrationRequest(NamedTuple):
    """What a user asks for."""

    op: str
    limits: Limits = Limits()
    timeout_s: float = 120.0


def new_request(op: str, *, lag_mib: int = 64, settle_s: float = 6.0, timeout_s: float = 120.0) -> str:
    words = [op]
    if op == "cutover":
        words += [f"lag={lag_mib}", f"settle={int(settle_s)}"]
    return f"{' '.join(words)} timeout={max(int(timeout_s), 1)} #{uuid.uuid4().hex[:8]}"


def parse_request(text: str) -> MigrationRequest:
    """Read a request. Raises ValueError, which says what to write."""
    op, *words = text.split(" #")[0].split() or [""]
    if op not in ("cutover", "abort"):
        raise ValueError(f"{text[:100]!r}: write cutover or abort")
    lag, settle, timeout = 64, 6, 120
    for word in words:
        name, _, value = word.partition("=")
        if name == "lag" and (found := whole_number(value, 0, MOST_MIB)) is not None:
            lag = found
        elif name == "settle" and (found := whole_number(value, 0, LONGEST_S)) is not None:
            settle = found
        elif name == "timeout" and (found := whole_number(value, 1, LONGEST_S)) is not None:
            timeout = found
        else:
            raise ValueError(
                f"{word[:100]!r}: write lag=MIB (0 to {MOST_MIB}), settle=SECONDS (0 to {LONGEST_S}) or "
                f"timeout=SECONDS (1 to {LONGEST_S})"
            )
    if op == "cutover" and settle >= timeout:
        raise ValueError(f"settle={settle} leaves no time of timeout={timeout}: after that a cutover goes back")
    # No member of a pod passes clients on: the group's Service leads to a leader only.
    return MigrationRequest(op, Limits(lag=lag << 20, settle=float(settle), routes=0.0), float(timeout))


def read_record(text: str | None) -> Record:
    """Read the annotation; None: no cutover has begun. Raises Refused for another content."""
    if text is None:
        return Record()
    try:
        return Record.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(
            f"the annotation {MIGRATION} is no record of a cutover ({error!r}): write the former content, or remove it "
            "when no cutover has begun"
        ) from None


def written(record: Record) -> str:
    """Return the content of the annotation."""
    return json.dumps(record.to_json())
