"""`python -m tests.proxy.h2spec`: h2spec, the conformance tests of HTTP/2, against the gRPC endpoint. Needs Go."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from gantry_broker.proxy.http2.endpoint import Endpoint
from gantry_broker.remoting.connection import Shared

MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
BUILD = Path(__file__).parents[2] / "build" / "h2spec"


async def main() -> int:
    BUILD.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOBIN": str(BUILD)}
    await asyncio.to_thread(subprocess.run, ["go", "install", MODULE], env=environment, check=True)
    endpoint = Endpoint({}, "127.0.0.1", 0, shared=Shared())
    await endpoint.start()
    try:
        command = [str(BUILD / "h2spec"), "-h", "127.0.0.1", "-p", str(endpoint.port), "-o", "3"]
        return (await asyncio.to_thread(subprocess.run, command, check=False)).returncode
    finally:
        await endpoint.close(0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
