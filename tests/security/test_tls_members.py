"""TLS between members and of HTTP: both ends show certificates that name what the handshake proves. Real processes."""

from __future__ import annotations

import asyncio
import functools
import resource
import signal
import ssl
import time
from pathlib import Path

import httpx
import pytest
from gantry_broker.client import Consumer, FromWhere, Producer, SendStatus
from gantry_broker.protocol.codes import GantryCode
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import ConnectError, RemotingError
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import Membership
from gantry_broker.remoting.tls import Certificates, TlsOptions, client_context
from gantry_broker.watching import CHECK_S

from tests.client.cluster import Inbox
from tests.security.test_tls import answers, metric, received
from tests.support.broker_group import PATIENCE_S, Member, until
from tests.support.certificates import Authority, Files
from tests.support.tls_group import LOCAL, TlsGroup, tls_group

HALF_HANDSHAKES = 1_500
DESCRIPTORS = 1_024

pytestmark = pytest.mark.timeout(180)


def member(number: int, group: str = "demo-a", cluster: str = "demo") -> Identity:
    return Identity(cluster, group, number)


async def handshakes_failed(target: Member, reason: str) -> float:
    return await metric(target, "gantry_member_handshakes_failed_total", reason=reason)


async def replicates(started: TlsGroup) -> bool:
    """Whether all members come into the in-sync set."""
    try:
        async with asyncio.timeout(60):
            await started.group.all_in_sync()
    except TimeoutError:
        return False
    return True


async def join(target: Member, files: Files, identity: Identity) -> None:
    """Connect to a replication port as this member with this certificate. Raises RemotingError when refused."""
    tls = Certificates("internal", files.cert, files.key, files.ca, "Required", calls=True)
    async with RemotingClient(membership=Membership(identity, None), tls=tls) as client:
        await client.request(target.replication_address, Frame(GantryCode.FETCH), 5)


@pytest.mark.parametrize("uris", [member(1).uris[:1], member(1).uris[1:]], ids=["its own", "of its group"])
async def test_a_member_with_the_right_certificate_follows(tmp_path: Path, uris: tuple[str, ...]) -> None:
    async with tls_group(tmp_path, 2, internal=True, member_certificates={1: uris}) as started:
        await started.group.lead(0)
        await started.group.registered()
        assert await replicates(started)
        assert await metric(started.group.members[0], "gantry_tls_handshakes_total", port="replication") >= 1


@pytest.mark.parametrize(
    "uris",
    [member(2).uris[:1], member(1, "demo-b").uris, member(1, cluster="other").uris, (), ("gantry://demo/nameserver",)],
    ids=["another member", "another group", "another cluster", "no member", "a NameServer"],
)
async def test_a_member_with_the_certificate_of_somebody_else_is_refused(tmp_path: Path, uris: tuple[str, ...]) -> None:
    async with tls_group(tmp_path, 2, internal=True, member_certificates={1: uris}) as started:
        await started.group.lead(0)
        master = started.group.members[0]
        await until(functools.partial(handshakes_failed, master, "certificate"), "it is counted")
        status = await master.status()
        assert [m.member for m in status.in_sync] == [0]
        assert not any(f.acked >= 0 for f in status.followers)


async def test_strangers_at_the_replication_port(tmp_path: Path) -> None:
    async with tls_group(tmp_path, 2, internal=True) as started:
        await started.group.lead(0)
        master = started.group.members[0]
        hello = encode_frame(Frame(GantryCode.HANDSHAKE, 1))
        assert await received(master.replication_address, hello) == b""
        assert await metric(master, "gantry_tls_refused_total", port="replication", reason="plaintext") == 1
        other = Authority("another CA").issue(tmp_path / "other", *member(1).uris)
        with pytest.raises(RemotingError):
            await join(master, Files(other.cert, other.key, started.files.ca), member(1))
        with pytest.raises(RemotingError):
            async with RemotingClient(membership=Membership(member(1), None), tls=started.options) as client:
                await client.request(master.replication_address, Frame(GantryCode.FETCH), 5)
        await until(
            functools.partial(metric, master, "gantry_tls_refused_total", port="replication", reason="certificate"),
            "certificates of another CA, and none at all, are counted",
        )
        registration = f"127.0.0.1:{started.names.registration_port}"
        assert await received(registration, hello) == b""
        gates = {gate.port: gate.refused.counts for gate in started.names.tls.gates}
        assert gates["registration"] == {"plaintext": 1}


async def test_a_broker_registers_only_with_a_name_server_whose_certificate_says_so(tmp_path: Path) -> None:
    wrong = member(0).uris
    async with tls_group(tmp_path, 1, internal=True, name_server_uris=wrong) as started:
        await started.group.lead(0)
        broker = started.group.members[0]
        await until(lambda: _said(broker, "its certificate names"), "the broker says why")
        assert not started.names.service.routes.has_master()


async def _said(target: Member, text: str) -> bool:
    return text in target.log()


async def test_a_raft_group_elects_and_fails_over_with_tls(tmp_path: Path) -> None:
    async with tls_group(tmp_path, 3, internal=True, broker_mode="Raft") as started:
        group = started.group
        leader = await until(lambda: _leader(started), "a leader is elected")
        await group.registered()
        acknowledged = []
        async with Producer(started.name_server, tls=started.options, timeout=20) as producer:
            for number in range(100):
                assert (await producer.send("T", b"%d" % number)).status == SendStatus.SEND_OK
                acknowledged.append(b"%d" % number)
            await leader.kill(signal.SIGKILL)
            for number in range(100, 200):
                assert (await producer.send("T", b"%d" % number)).status == SendStatus.SEND_OK
                acknowledged.append(b"%d" % number)
        inbox = Inbox()
        async with Consumer(started.name_server, "g", from_where=FromWhere.FIRST, tls=started.options) as consumer:
            await consumer.subscribe("T", inbox)
            await inbox.wait(200, 30)
        assert set(acknowledged) <= set(inbox.bodies)


async def _leader(started: TlsGroup) -> Member | None:
    for one in started.group.members:
        status = await one.try_status()
        if status is not None and status.role == "Master" and status.writable:
            return one
    return None


async def test_rotation_between_members_interrupts_nothing(tmp_path: Path) -> None:
    """Certificates of a new CA need both CAs in ca.crt for a while; here the CA stays and every certificate changes."""
    async with tls_group(tmp_path, 2, internal=True) as started:
        group = started.group
        await group.lead(0)
        await group.registered()
        await group.all_in_sync()
        before = [(await m.status()).certificates["internal"] for m in group.members]
        # A handshake that is too slow at the start is made again.
        handshakes = await metric(group.members[0], "gantry_tls_handshakes_total", port="replication")
        sent = 0
        async with Producer(started.name_server, tls=started.options, retries=0) as producer:
            for number in (0, 1):
                started.authority.issue(tmp_path / f"member{number}", *member(number).uris[:1], *LOCAL)
            begin, renewed = time.monotonic(), False
            while not renewed or time.monotonic() < begin + 3 * CHECK_S:
                assert time.monotonic() < begin + PATIENCE_S, "the members do not read their new certificates"
                for _ in range(50):
                    assert (await producer.send("T", b"x")).status == SendStatus.SEND_OK
                    sent += 1
                after = [(await m.status()).certificates["internal"] for m in group.members]
                renewed = all(new > old for new, old in zip(after, before, strict=True))
        assert sent > 100
        assert await metric(group.members[0], "gantry_tls_handshakes_total", port="replication") == handshakes >= 1
        await group.members[1].kill(signal.SIGKILL)
        await group.members[1].start()
        await group.send_assignments()
        assert await replicates(started), "a new connection takes the new certificates"


async def test_https_with_the_ca_and_no_http(tmp_path: Path) -> None:
    async with tls_group(tmp_path, 1, internal=True) as started:
        await started.group.lead(0)
        broker = started.group.members[0]
        port, names_port = broker.config.http_port, started.names.http_port
        context = client_context(TlsOptions(ca_file=started.files.ca))
        async with httpx.AsyncClient(verify=context) as client:
            assert (await client.get(f"https://127.0.0.1:{port}/livez")).status_code == 200
            assert (await client.get(f"https://127.0.0.1:{port}/v1/status")).json()["role"] == "Master"
            page = await client.get(f"https://127.0.0.1:{names_port}/metrics")
            assert 'gantry_certificate_expiry_timestamp_seconds{port="internal"}' in page.text
        async with httpx.AsyncClient() as client:
            for scheme, error in (("http", httpx.RemoteProtocolError), ("https", httpx.ConnectError)):
                for each in (port, names_port):
                    with pytest.raises(error):
                        await client.get(f"{scheme}://127.0.0.1:{each}/livez")


async def test_half_handshakes_at_https_leave_room_for_the_operator(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client_context(TlsOptions(verify=False)).wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    writers = []
    async with tls_group(tmp_path, 1, internal=True) as started:
        await started.group.lead(0)
        broker = started.group.members[0]
        assert broker.process is not None
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        try:
            for number in range(HALF_HANDSHAKES):
                for port in (broker.config.http_port, started.names.http_port):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(hello[: number % 400])
                    writers.append(writer)
                if number % 100 == 0:
                    assert (await broker.status()).role == "Master"
            assert await metric(broker, "gantry_tls_refused_total", port="http", reason="crowded") > 500
            context = client_context(TlsOptions(ca_file=started.files.ca))
            async with httpx.AsyncClient(verify=context) as client:
                for port in (broker.config.http_port, started.names.http_port):
                    assert (await client.get(f"https://127.0.0.1:{port}/livez")).status_code == 200
            assert await answers(broker.address, started.options)
        finally:
            for writer in writers:
                writer.transport.abort()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_names_of_members() -> None:
    assert member(3).uris == ("gantry://demo/demo-a/3", "gantry://demo/demo-a")
    assert Identity.of_name_server("demo").uris == ("gantry://demo/nameserver",)
    assert member(3, "nameserver").uris == ("gantry://demo/nameserver/3",), "or this group could act as a NameServer"
    assert member(0, "a/b", "x y").uris[0] == "gantry://x%20y/a%2Fb/0"


async def test_the_caller_verifies_the_ca_of_members(tmp_path: Path) -> None:
    async with tls_group(tmp_path, 1, internal=True) as started:
        await started.group.lead(0)
        other = Authority("another CA").issue(tmp_path / "other", *member(1).uris)
        with pytest.raises(ConnectError, match="certificate is not valid"):
            await join(started.group.members[0], other, member(1))
