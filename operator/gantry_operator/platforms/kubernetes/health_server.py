"""The operator's own HTTP: /livez, /readyz and /metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gantry_operator.platforms.kubernetes import metrics
from gantry_operator.platforms.kubernetes.informer_cache import SILENCE_S, InformerCache

DEAF_S = 3 * SILENCE_S
"""A watch that brought nothing for this long, though it is made anew each SILENCE_S, will not come back by itself."""


class HealthServer:
    """Async context manager."""

    def __init__(self, port: int, host: str = "0.0.0.0") -> None:
        self.port = port
        self._host = host
        self._caches: Mapping[str, InformerCache] = {}
        app = web.Application()
        app.add_routes(
            [web.get("/livez", self._livez), web.get("/readyz", self._readyz), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> HealthServer:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def follow(self, caches: Mapping[str, InformerCache]) -> None:
        """From now on these watches must bring something now and then."""
        self._caches = caches

    async def _livez(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        deaf = [k for k, m in self._caches.items() if now - m.heard_at > DEAF_S]
        if deaf:
            return web.Response(status=500, text=f"nothing was heard of {', '.join(deaf)} for {DEAF_S:.0f} s\n")
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        """One that stands by is ready too: it would take over."""
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        for kind, cache in self._caches.items():
            metrics.WATCH_AGE.labels(kind).set(now - cache.heard_at)
        body = generate_latest(metrics.REGISTRY)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
