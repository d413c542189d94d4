"""Log lines as JSON, one object a line, with the name of their cluster if there is one."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
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
        return json.dumps(out, ensure_ascii=False)


def configure(level: str) -> None:
    """Log to standard error. Verbose libraries are limited to warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore", "aiohttp.access", "kopf", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
