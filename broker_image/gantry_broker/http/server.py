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

    async def serve_port(self, port: int) -> None:
        """Serve until `should_exit`. Raises OSError when the port is taken."""
        try:
            await self.serve()
        except SystemExit:
            raise OSError(f"HTTP port {port} cannot be bound") from None

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Do nothing: the process handles its signals itself."""
        yield
