"""uvicorn as the processes use it: without its own signals, with limits for each connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import uvicorn

from gantry_broker.http.connection import LimitedConnection
from gantry_broker.http.limits import Connections

if TYPE_CHECKING:
    from gantry_broker.remoting.tls_gate import TlsGate


def accept(gate: TlsGate | None, table: Connections, **given: Any) -> asyncio.Protocol:
    """Return the protocol of a new connection; `given` is what uvicorn gives to each."""
    if gate is None:
        return LimitedConnection(table, **given)
    return gate.accept(lambda: LimitedConnection(table, **given))


class Server(uvicorn.Server):
    """uvicorn without its own signals."""

    _task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Return once it serves. Raises OSError when the port is taken."""
        self._task = asyncio.create_task(self._serve_port())
        while not self.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"HTTP port {self.config.port} cannot be served")
            await asyncio.sleep(0.005)

    async def end(self) -> None:
        self.should_exit = True
        if self._task is not None:
            with contextlib.suppress(OSError):
                await self._task

    async def _serve_port(self) -> None:
        try:
            await self.serve()
        except SystemExit:
            raise OSError(f"HTTP port {self.config.port} cannot be bound") from None

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Do nothing: the process handles its signals itself."""
        yield
