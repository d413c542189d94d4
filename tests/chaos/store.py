"""The object store of a run's archive: a real S3 server behind a proxy that fails on demand."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from gantry_broker.archive.chain import Archive
from gantry_broker.archive.opening import open_archive
from gantry_broker.config import ArchivePlace

from benchmarks.rig import golang
from tests.archive.faulty_proxy import FaultyProxy
from tests.archive.s3 import S3Server, build, s3_server

BUCKET = "chaos"


@cache
def can_archive() -> bool:
    """Whether the S3 server is there, or can be built."""
    try:
        build()
    except golang.GoMissing:
        return False
    return True


class Store:
    """Use as an async context manager, in the event loop that plays the faults."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: S3Server | None = None
        self._proxy = FaultyProxy(0)
        self._threads = ExitStack()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Store:
        self._server = await asyncio.to_thread(self._threads.enter_context, s3_server(self._folder))
        try:
            self._server.bucket(BUCKET)
            self._proxy = FaultyProxy(self._server.port)
            await self._stack.enter_async_context(self._proxy.running())
        except BaseException:
            self._threads.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()
        self.kill()

    def kill(self) -> None:
        """End the server, without the event loop."""
        self._threads.close()

    @property
    def spec(self) -> dict[str, Any]:
        """`spec.archive` of the cluster."""
        return {"url": f"s3://{BUCKET}/archive", "endpoint": f"http://127.0.0.1:{self._proxy.port}", "interval": "1s"}

    @property
    def environment(self) -> dict[str, str]:
        """What the brokers need to reach it."""
        assert self._server is not None
        return {"AWS_ACCESS_KEY_ID": self._server.access_key, "AWS_SECRET_ACCESS_KEY": self._server.secret_key}

    def open(self) -> Archive:
        """Open the archive past the proxy."""
        assert self._server is not None
        os.environ.update(self.environment)
        return open_archive(ArchivePlace(url=f"s3://{BUCKET}/archive", endpoint=self._server.endpoint))

    # ---- faults

    def fail(self, how: str, delay_s: float = 0.0) -> None:
        """Let each request fail: "cut", "slow" or "read-only"."""
        self._proxy.always, self._proxy.delay_s = how, delay_s

    def lie(self) -> None:
        """Answer the next write with success, and forget it."""
        self._proxy.plan(["lie"])

    @property
    def lies(self) -> int:
        """How often it has lied."""
        return self._proxy.done["lie"]

    def heal(self) -> None:
        self._proxy.always = "pass"
        self._proxy.plan([])
