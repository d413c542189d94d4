"""The log of every process, on standard error: an object of JSON for each line in a pod, text elsewhere.

GANTRY_LOG_FORMAT (json or text) overrides the choice.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

NOISY: Final = ("httpx", "httpcore", "aiohttp.access", "kopf", "asyncio")
"""Libraries that are limited to warnings."""


_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What would begin another line, or command the terminal that shows it."""


def _escaped(match: re.Match[str]) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(match[0], f"\\u{ord(match[0]):04x}")


class JsonLines(logging.Formatter):
    """time, level, logger, message; cluster and exception if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        out = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        cluster = getattr(record, "cluster", None)
        if cluster is not None:
            out["cluster"] = cluster
        if record.exc_info:
            out["exception"] = self.formatException(record.exc_info)
        line = json.dumps(out, ensure_ascii=False)
        return line if line.isprintable() else _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


class TextLines(logging.Formatter):
    """One line an event: time (UTC), level, where, what."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ level=%(levelname)s logger=%(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return line if line.isprintable() else _CONTROL.sub(_escaped, line)


def formatter(environ: Mapping[str, str]) -> logging.Formatter:
    """Kubernetes sets its variables in every pod."""
    kind = environ.get("GANTRY_LOG_FORMAT") or ("json" if "KUBERNETES_SERVICE_HOST" in environ else "text")
    return JsonLines() if kind == "json" else TextLines()


def configure(level: str) -> None:
    """Log to standard error from this level on."""
    logging.getLogger("uvicorn").setLevel("ERROR")  # Any client can make it warn, any number of times.
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(os.environ))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
