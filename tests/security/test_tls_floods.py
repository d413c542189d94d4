"""Floods of TLS by strangers, of all kinds at once, while a client sends: it gets its answers, the master stays."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import grpc
import pytest
from gantry_broker.client import Producer, SendStatus
from gantry_broker.protocol.grpc_contract import Code, v2

from tests.proxy import cluster as c
from tests.proxy.test_members import context_of
from tests.security.test_tls import metric, ready
from tests.support import tls_flood
from tests.support.certificates import Authority
from tests.support.tls_group import LOCAL, tls_group

SENDS: Final = 20
LIMIT_S: Final = 10.0
"""For one send, and for one answer to the control plane, on a machine that may be busy."""
UNDER_WAY: Final = 50
"""Connections of the flood before the first send."""

pytestmark = pytest.mark.timeout(180)


@contextlib.asynccontextmanager
async def flooded(*ports: int) -> AsyncIterator[None]:
    """A flood of these ports goes on within this."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, tls_flood.__file__, *map(str, ports), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await process.stdout.readexactly(UNDER_WAY * len(ports))
        rest = asyncio.create_task(process.stdout.read())
        yield
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()
    await rest


async def test_floods_at_all_ports_of_a_master_take_no_answer_from_others(tmp_path: Path) -> None:
    async with tls_group(tmp_path, internal=True) as started:
        master = await ready(started)
        before = await master.status()
        client, members = (int(a.rpartition(":")[2]) for a in (master.address, master.replication_address))
        async with Producer(started.name_server, tls=started.options, timeout=LIMIT_S) as producer:
            assert (await producer.send("T", b"first")).status == SendStatus.SEND_OK
            async with flooded(client, master.config.http_port, members):
                for number in range(SENDS):
                    async with asyncio.timeout(LIMIT_S):
                        assert (await producer.send("T", b"%d" % number)).status == SendStatus.SEND_OK
                    async with asyncio.timeout(LIMIT_S):  # Who gets none takes a master for dead.
                        assert (await master.status()).role == "Master"
                for port in ("client", "http"):
                    assert await metric(master, "gantry_tls_refused_total", port=port) > 0, port
        after = await master.status()
        assert (after.role, after.epoch, after.pid) == ("Master", before.epoch, before.pid)


async def test_a_flood_at_the_grpc_port_takes_no_answer_from_others(tmp_path: Path) -> None:
    files = Authority().issue(tmp_path / "grpc", *LOCAL)
    tls = {"mode": "Required", "cert_file": files.cert, "key_file": files.key}
    async with c.served(tmp_path) as cluster, c.proxied(cluster, tls=tls) as (proxy, _):
        port = proxy.endpoint
        assert port is not None
        await c.make_topic(cluster, "T")
        context = context_of(cluster)
        epoch = context.replication.epoch
        credentials = grpc.ssl_channel_credentials(files.ca.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{proxy.port}", credentials) as channel:
            stub = c.Stub(channel)
            async with flooded(proxy.port):
                for number in range(SENDS):
                    request = v2.SendMessageRequest(messages=[c.message("T", f"{number}".encode())])
                    answer = await stub.SendMessage(request, metadata=c.metadata("honest"), timeout=LIMIT_S)
                    assert answer.status.code == Code.OK, answer.status
                assert port._gate is not None
                assert sum(port._gate.refused.counts.values()) > 0, "the flood has come"
        assert context.role.leading
        assert context.replication.epoch == epoch
