"""The operator's own HTTP server: /livez, /readyz and /metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from gantry_broker import descriptors
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.http.pages import TEXT, Page, PageServer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gantry_operator.platforms.kubernetes.api.informer_cache import SILENCE_S, InformerCache
from gantry_operator.platforms.kubernetes.monitoring import metrics

DEAF_S = 3 * SILENCE_S
"""Seconds without any data after which a watch is stuck, although it reconnects every SILENCE_S seconds."""


class HealthServer:
    """Async context manager. `names`: host names by which requests may come, besides those of every process."""

    def __init__(self, port: int, host: str = "0.0.0.0", names: Sequence[str] = ()) -> None:
        self._caches: Mapping[str, InformerCache] = {}
        pages = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
        self._server = PageServer(pages, host, port, hosts=AllowedHosts(names), most=descriptors.budget().http)

    @property
    def port(self) -> int:
        return self._server.port

    async def __aenter__(self) -> HealthServer:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def follow(self, caches: Mapping[str, InformerCache]) -> None:
        """Check from now on that these watches receive data."""
        self._caches = caches

    def _livez(self) -> Page:
        now = time.monotonic()
        deaf = [k for k, m in self._caches.items() if now - m.heard_at > DEAF_S]
        if deaf:
            problem = f"nothing was heard of {', '.join(deaf)} for {DEAF_S:.0f} s\n"
            return Page(TEXT, problem.encode(), "500 Internal Server Error")
        return Page(TEXT, b"ok\n")

    def _readyz(self) -> Page:
        """Answer that it is ready. A standby is ready, too: it can take over."""
        return Page(TEXT, b"ok\n")

    def _metrics(self) -> Page:
        now = time.monotonic()
        for kind, cache in self._caches.items():
            metrics.WATCH_AGE.labels(kind).set(now - cache.heard_at)
        return Page(CONTENT_TYPE_LATEST, generate_latest(metrics.REGISTRY))
