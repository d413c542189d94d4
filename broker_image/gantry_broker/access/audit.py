"""The audit log: JSON lines of the logger `gantry.audit`, one for a refused and one for an administrative request.

A line has `time_ms`, `result` ("refused" or "allowed"), `reason`, `user`, `address`, `code`, `request` and
`resource`, never a key or a signature. Lines of refusals are limited to `REFUSED_A_SECOND`; `suppressed` says how many
were left out before a line. Administrative requests are limited more generously, for they are what an audit is for.

The last `RECENT` lines stay in memory, for `GET /v1/audit`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import orjson

from gantry_broker.access.quota import Bucket
from gantry_broker.protocol.codes import RequestCode

REFUSED_A_SECOND: Final = 20
ALLOWED_A_SECOND: Final = 200
RECENT: Final = 200
"""Lines in memory, of less than 1 KB each."""
MAX_TEXT: Final = 256
"""Characters of a name that a client sent."""

log = logging.getLogger("gantry.audit")
_NAMES: Final = {int(code): code.name for code in RequestCode}


class AuditLog:
    """Writes lines at a limited rate; times are an argument (`now`: seconds of a monotonic clock, `time_ms`: Unix)."""

    def __init__(self, now: float = 0.0) -> None:
        self._refused = Bucket(REFUSED_A_SECOND, now)
        self._allowed = Bucket(ALLOWED_A_SECOND, now)
        self.suppressed = 0
        self.recent: deque[dict[str, object]] = deque(maxlen=RECENT)
        """The last lines, oldest first."""

    def write(
        self, now: float, time_ms: int, *, reason: str, user: str | None, address: str, code: int, resource: str
    ) -> None:
        """`reason`: why the request is refused; empty: it is allowed."""
        bucket = self._refused if reason else self._allowed
        if not bucket.has_some(now):
            self.suppressed += 1
            return
        bucket.take(1)
        line: dict[str, object] = {
            "time_ms": time_ms,
            "result": "refused" if reason else "allowed",
            "user": None if user is None else user[:MAX_TEXT],
            "address": address,
            "code": code,
            "request": _NAMES.get(code, ""),
            "resource": resource[:MAX_TEXT],
        }
        if reason:
            line["reason"] = reason
        if self.suppressed:
            line["suppressed"], self.suppressed = self.suppressed, 0
        self.recent.append(line)
        log.log(logging.WARNING if reason else logging.INFO, "%s", orjson.dumps(line).decode())
