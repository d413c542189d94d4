"""A local cluster with TLS: between members, for clients, through a failover and a renewal of everything."""

from __future__ import annotations

import asyncio
import signal
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from gantry_broker.client import ClientError, Producer
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions
from gantry_operator.certificates import schedule, x509
from gantry_operator.certificates.schedule import RENEW_AUTHORITY, RENEW_CERTIFICATES
from gantry_operator.platforms.local.ports import Ports

from tests.local.cluster import Cluster, Load, check_account, kill, one_group, running, take_down

pytestmark = pytest.mark.timeout(300)
WITH_TLS = {"tls": {"mode": "Required", "internal": True}}


async def sends(cluster: Cluster, tls: TlsOptions | None, timeout: float = 3) -> str:
    """Empty: a message was sent; else why not."""
    try:
        async with Producer(cluster.name_servers, "one", tls=tls) as producer:
            await producer.send("Tried", b"x", timeout=timeout)
    except (ClientError, RemotingError) as error:
        return str(error) or type(error).__name__
    return ""


async def test_up_with_tls_and_a_renewal_under_load(tmp_path: Path) -> None:
    """The manifest says nothing about the mode: `--tls` does."""
    cluster = Cluster(tmp_path, security={"tls": {"internal": True}})
    try:
        said = cluster.up("--tls")
        authority = cluster.folder.tls / "ca.crt"
        assert str(authority) in said
        for path in cluster.folder.tls.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path

        assert await sends(cluster, TlsOptions(authority), 30) == ""
        assert await sends(cluster, None) != "", "clear text"
        foreign = tmp_path / "foreign.crt"
        foreign.write_bytes(x509.make_authority("t", "", datetime.now(UTC), schedule.AUTHORITY_LIFETIME).certificate)
        assert "certificate" in await sends(cluster, TlsOptions(foreign))

        async with Load.on(cluster, "Renewed", "r") as load:
            before = {p: p.read_bytes() for p in cluster.folder.tls.glob("*/tls.crt")}
            assert len(before) == 2
            cluster.annotate(RENEW_CERTIFICATES, "1")
            await asyncio.to_thread(cluster.up, "--tls")
            assert all(p.read_bytes() != text for p, text in before.items())
            pids = cluster.pids()
            await load.more(200)
            cluster.annotate(RENEW_AUTHORITY, "1")
            await asyncio.to_thread(cluster.up, "--tls")
            assert authority.read_bytes().count(b"BEGIN") == 2, "a new one is trusted before it signs"
            await load.more(200)
            assert load.errors == [], "no send failed"
            # New connections with the new certificate: the members', and those of other clients.
            kill(cluster.master()["pid"], signal.SIGKILL)
            await asyncio.to_thread(cluster.until, "all members are in sync", cluster.whole, 60)
            await load.more(200)
        assert len(set(pids) & set(cluster.pids())) == len(pids) - 1, "one was killed, and none restarted"
        await check_account(cluster, load)
        status = cluster.resource()["status"]
        assert {row["name"] for row in status["certificates"]} == {"ca", "a", "namesrv"}
        valid = next(c for c in status["conditions"] if c["type"] == "CertificatesValid")
        assert valid["status"] == "True"
    finally:
        take_down(cluster)


async def test_the_http_interface_of_members_has_tls_and_needs_the_token(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, **one_group(1), security=WITH_TLS)) as cluster:
        port = Ports.load(cluster.folder.ports)["t-a-0/http"]
        context = ssl.create_default_context(cafile=str(cluster.folder.tls / "ca.crt"))
        async with httpx.AsyncClient(verify=context, trust_env=False) as client:
            assert (await client.get(f"https://127.0.0.1:{port}/livez")).status_code == 200
            assert (await client.get(f"https://127.0.0.1:{port}/v1/status")).status_code == 401
            with pytest.raises(httpx.HTTPError):
                await client.get(f"http://127.0.0.1:{port}/livez")
        cluster.write(**one_group(1))
        refused = cluster.gantry("up", str(cluster.file), "--dir", str(cluster.folder.root), check=False)
        assert refused.returncode == 2
        assert "spec.security.tls.internal is false, was true" in refused.stderr
        secret = {"tls": {"mode": "Required", "internal": True, "issuer": "Secret", "secretName": "mine"}}
        cluster.write(**one_group(1), security=secret)
        refused = cluster.gantry("up", str(cluster.file), "--dir", str(cluster.folder.root), check=False)
        assert "issuer: Operator without secretName" in refused.stderr
