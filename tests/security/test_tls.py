"""TLS on the ports for clients: real processes, our client, and peers that stop in the middle or send garbage."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import json
import re
import resource
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

import pytest
from gantry_broker.client import Admin, Consumer, FromWhere, Producer, SendFailed, SendStatus, TlsOptions
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.protocol.headers import Long, PullHeader
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import ConnectError, RemotingError
from gantry_broker.remoting.tls import client_context
from gantry_broker.watching import CHECK_S

from tests.client.cluster import Inbox
from tests.support.broker_group import MakeGroup, Member, until
from tests.support.certificates import DAY, Authority, replace
from tests.support.present import present
from tests.support.tls_group import LOCAL, TlsGroup, tls_group

HALF_HANDSHAKES = 1_500
ASK = Frame(RequestCode.GET_ALL_TOPIC_CONFIG, 1)

pytestmark = pytest.mark.timeout(180)


async def metric(member: Member, name: str, **labels: str) -> float:
    """The sum of a metric's rows with these labels."""
    page = (await member.http.get("/metrics")).text
    rows = [line for line in page.splitlines() if line.startswith(name + "{")]
    return sum(
        float(row.rpartition(" ")[2]) for row in rows if all(f'{key}="{value}"' in row for key, value in labels.items())
    )


async def refusals(member: Member, reason: str) -> float:
    return await metric(member, "gantry_tls_refused_total", port="client", reason=reason)


async def ready(started: TlsGroup) -> Member:
    """The only member, as master."""
    await started.group.lead(0)
    await started.group.registered()
    return started.group.members[0]


async def answers(address: str, tls: TlsOptions | None) -> bool:
    """Whether a client that begins now is served."""
    async with RemotingClient(tls=tls) as client:
        return (await client.request(address, Frame(ASK.code), 5)).code == 0


def tls_socket(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, port = address.split(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), 10), server_hostname=host)


async def received(address: str, data: bytes) -> bytes:
    """What a server sends to somebody who sends this, up to the end of the connection. Raises OSError on a reset."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.closing(writer):
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 10)


@pytest.mark.parametrize("mode", ["Required", "Permissive"])
async def test_all_of_our_client_with_tls(tmp_path: Path, mode: str) -> None:
    async with tls_group(tmp_path, mode=mode) as started:
        await ready(started)
        inbox = Inbox()
        big = [b"%d " % n + bytes(3_900_000) for n in range(3)]
        async with Producer(started.name_server, tls=started.options) as producer:
            for body in big + [b"small %d" % n for n in range(300)]:  # the first message follows the handshake
                assert (await producer.send("T", body)).status == SendStatus.SEND_OK
        async with Consumer(started.name_server, "g", from_where=FromWhere.FIRST, tls=started.options) as consumer:
            await consumer.subscribe("T", inbox)
            await inbox.wait(303, 30)
        assert [body for body in inbox.bodies if len(body) > 100] == sorted(big)
        async with Admin(started.name_server, tls=client_context(started.options)) as admin:
            assert list(await admin.masters("demo")) == ["demo-a"]


async def test_one_port_takes_plaintext_beside_tls(tmp_path: Path) -> None:
    async with tls_group(tmp_path, mode="Permissive") as started:
        member = await ready(started)
        for tls in (None, started.options, None):
            assert await answers(member.address, tls)
            async with Producer(started.name_server, tls=tls) as producer:
                assert (await producer.send("T", b"x")).status == SendStatus.SEND_OK


async def test_required_refuses_plaintext_in_order_and_counts_it(tmp_path: Path) -> None:
    async with tls_group(tmp_path) as started:
        member = await ready(started)
        for address in (member.address, started.group.group_address, started.name_server):
            assert await received(address, encode_frame(ASK)) == b""
        assert await refusals(member, "plaintext") == 2
        with pytest.raises(RemotingError):
            await answers(member.address, None)


async def test_a_port_without_tls_ends_a_tls_handshake(make_group: MakeGroup) -> None:
    group = await make_group()
    await group.lead(0)
    with pytest.raises(ConnectError):
        await answers(group.group_address, TlsOptions(verify=False))
    assert await answers(group.group_address, None)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16" + bytes(200),
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x03\x40\x00" + b"\x01\x00\x3f\xfc" + bytes(16_380),
    ],
    ids=["no version", "no hello", "long record", "empty hello"],
)
async def test_garbage_after_the_first_byte_ends_the_connection(tmp_path: Path, sent: bytes) -> None:
    async with tls_group(tmp_path) as started:
        member = await ready(started)
        try:
            answer = await received(member.address, sent)
        except ConnectionResetError:
            answer = b""
        assert not answer or answer[0] == 0x15, "an alert, or nothing"
        await until(lambda: refusals(member, "protocol"), "it is counted")
        assert await answers(member.address, started.options)


async def test_old_versions_and_renegotiation_are_refused(tmp_path: Path) -> None:
    async with tls_group(tmp_path) as started:
        member = await ready(started)
        for version, accepted in (
            (ssl.TLSVersion.TLSv1, False),
            (ssl.TLSVersion.TLSv1_1, False),
            (ssl.TLSVersion.TLSv1_2, True),
            (ssl.TLSVersion.TLSv1_3, True),
        ):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(started.files.ca)
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version, context.maximum_version = version, version
            before = await refusals(member, "protocol")
            if accepted:
                with await asyncio.to_thread(tls_socket, member.address, context) as sock:
                    assert sock.version() == version.name.replace("_", ".")
            else:
                with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|UNSUPPORTED"):
                    await asyncio.to_thread(tls_socket, member.address, context)
                await until(functools.partial(_more, member, "protocol", before), f"{version.name} is counted")
        renegotiated = await _openssl_renegotiates(member.address)
        assert "no renegotiation" in renegotiated.lower(), renegotiated


async def _more(member: Member, reason: str, before: float) -> bool:
    return await refusals(member, reason) > before


async def _openssl_renegotiates(address: str) -> str:
    """The output of a client of OpenSSL's that asks for a renegotiation."""
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", address, "-tls1_2",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    shown = b""
    while b"Verify return code" not in shown:
        shown += await asyncio.wait_for(process.stdout.read(4096), 10)
    process.stdin.write(b"R\n")
    out, _ = await asyncio.wait_for(process.communicate(), 15)
    return out.decode(errors="replace")


async def test_half_handshakes_do_not_exclude_others(tmp_path: Path) -> None:
    """1,500 connections that stop before, in and after their first message: few are held, and members serve."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    outgoing = ssl.MemoryBIO()
    context = client_context(TlsOptions(verify=False))
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    openings = (b"", hello[:1], hello[:100], hello)
    async with tls_group(tmp_path, memory_limit_bytes=256 << 20) as started:
        member = await ready(started)
        assert member.process is not None
        before = _resident(member.process.pid)
        writers = []
        try:
            host, port = member.address.split(":")
            for number in range(HALF_HANDSHAKES):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(openings[number % len(openings)])
                writers.append(writer)
                if number % 100 == 0:
                    assert await answers(member.address, started.options)
            assert await metric(member, "gantry_tls_handshakes_pending", port="client") <= 256
            crowded, late = [await refusals(member, reason) for reason in ("crowded", "timeout")]
            # On a busy machine the first ones have had their time before the last ones come.
            assert crowded + late >= HALF_HANDSHAKES - 256 - 50
            assert crowded > HALF_HANDSHAKES / 2
            assert _resident(member.process.pid) - before < 64 << 20
            await until(lambda: _none_pending(member), "those that are left have their time, and no more", 15)
            assert await refusals(member, "timeout") > 0
            assert await answers(member.address, started.options)
        finally:
            for writer in writers:
                writer.transport.abort()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _none_pending(member: Member) -> bool:
    return await metric(member, "gantry_tls_handshakes_pending", port="client") == 0


def _resident(pid: int) -> int:
    return int(present(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()))[1]) << 10


async def test_a_record_that_is_never_finished_is_held_for_a_limited_time_and_counts(tmp_path: Path) -> None:
    """2,000 connections with one byte of a record each: what OpenSSL holds for them counts, the largest are ended."""
    async with tls_group(tmp_path, memory_limit_bytes=128 << 20) as started:
        member = await ready(started)
        context = client_context(started.options)
        host, port = member.address.split(":")
        writers = []
        try:
            for _ in range(1_400):
                _, writer = await asyncio.open_connection(host, int(port), ssl=context)
                raw = writer.get_extra_info("socket")
                writers.append(writer)
                # A byte that is no part of this end's TLS: the first one of a record.
                assert socket.socket.send(raw._sock if hasattr(raw, "_sock") else raw, b"\x17") == 1
            held = await metric(member, "gantry_unfinished_frame_bytes")
            assert 0 < held <= 20 << 20
            assert await metric(member, "gantry_connections_cut_total") > 50
            assert await answers(member.address, started.options)
        finally:
            for writer in writers:
                writer.transport.abort()


async def test_a_slow_reader_with_tls_is_cut_off(tmp_path: Path) -> None:
    async with tls_group(tmp_path, memory_limit_bytes=128 << 20) as started:
        member = await ready(started)
        async with Producer(started.name_server, tls=started.options) as producer:
            queue = (await producer.send("T", bytes(200_000))).queue
            for _ in range(20):
                await producer.send("T", bytes(200_000), queue=queue)
        pull = PullHeader("g", "T", queue.queue_id, Long(0), 32, 4, Long(0), subscription="*")
        context = client_context(started.options)
        assert member.process is not None
        before = _resident(member.process.pid)
        with await asyncio.to_thread(tls_socket, started.group.group_address, context) as sock:
            sock.settimeout(10)

            def ask_on() -> None:
                frame = encode_frame(Frame(RequestCode.PULL_MESSAGE, 1, ext=pull.ext()))
                while True:
                    sock.sendall(frame * 20)

            with pytest.raises(OSError):  # noqa: PT011 (a reset, or no more room for requests: see the count)
                await asyncio.to_thread(ask_on)
        assert _resident(member.process.pid) - before < 64 << 20
        assert await answers(member.address, started.options)


async def test_a_client_refuses_a_server_that_it_cannot_verify(tmp_path: Path) -> None:
    other = Authority("another CA").write(tmp_path / "other.crt")
    async with tls_group(tmp_path) as started:
        member = await ready(started)
        for options, text in (
            (TlsOptions(ca_file=other), "certificate is not valid"),
            (TlsOptions(ca_file=started.files.ca, server_name="broker.example"), "Hostname mismatch"),
        ):
            with pytest.raises(ConnectError, match=text):
                await answers(member.address, options)
        assert await answers(member.address, TlsOptions(verify=False))
        assert await answers(member.address, TlsOptions(ca_file=started.files.ca, server_name="localhost"))
        async with Producer(started.name_server, tls=TlsOptions(ca_file=other), timeout=1) as producer:
            with pytest.raises((SendFailed, ConnectError)):
                await producer.send("T", b"x")


async def test_an_expired_certificate_is_refused_and_replaced_at_run_time(tmp_path: Path) -> None:
    async with tls_group(tmp_path) as started:
        member = await ready(started)
        started.authority.issue(started.files.cert.parent, *LOCAL, valid_for=datetime.timedelta(seconds=3))
        await until(lambda: _expires_before(member, time.time() + 60), "the short certificate is in use")
        await until(lambda: _refused(member.address, started.options, "expired"), "clients see that it has expired")
        started.rotate()
        await until(lambda: _served(member.address, started.options), "the new certificate is in use")
        assert (await member.status()).certificates["client"] > time.time() + 20 * 86_400


async def _expires_before(member: Member, when: float) -> bool:
    return (await member.status()).certificates["client"] < when


async def _served(address: str, options: TlsOptions) -> bool:
    try:
        return await answers(address, options)
    except RemotingError:
        return False


async def _refused(address: str, options: TlsOptions, text: str) -> bool:
    try:
        await answers(address, options)
    except ConnectError as error:
        return text in str(error)
    return False


async def test_rotation_under_load_fails_no_send_and_ends_no_connection(tmp_path: Path) -> None:
    async with tls_group(tmp_path) as started:
        member = await ready(started)
        sent, rotations, expiries = 0, 4, set()
        async with Producer(started.name_server, tls=started.options, retries=0) as producer:

            async def send_on(until_s: float) -> None:
                nonlocal sent
                while time.monotonic() < until_s:
                    assert (await producer.send("T", b"x" * 300)).status == SendStatus.SEND_OK
                    sent += 1

            async def rotate() -> None:
                for days in range(rotations):
                    # First the key alone: for a while the two files do not belong together.
                    made = started.authority.issue(tmp_path / "next", *LOCAL, valid_for=(40 + days) * DAY)
                    replace(started.files.key, made.key.read_bytes())
                    await asyncio.sleep(CHECK_S * 1.2)
                    replace(started.files.cert, made.cert.read_bytes())
                    await asyncio.sleep(CHECK_S * 1.2)
                    assert await answers(member.address, started.options)
                    expiries.add((await member.status()).certificates["client"])

            await asyncio.gather(*(send_on(time.monotonic() + CHECK_S * 2.4 * rotations) for _ in range(16)), rotate())
            handshakes = await metric(member, "gantry_tls_handshakes_total", port="client")
        assert sent > 100
        assert len(expiries) == rotations
        assert await metric(member, "gantry_certificate_failures_total", port="client") == rotations
        assert handshakes <= 2 + rotations, "the producer kept its connection"


async def test_client_certificates(tmp_path: Path) -> None:
    stranger = Authority("another CA").issue(tmp_path / "stranger", *LOCAL)
    async with tls_group(tmp_path, client_certificates="Required") as started:
        member = await ready(started)
        own = started.authority.issue(tmp_path / "client", "orders.example")
        ca = started.files.ca
        assert await answers(member.address, TlsOptions(ca, own.cert, own.key))
        for options in (TlsOptions(ca), TlsOptions(ca, stranger.cert, stranger.key)):
            before = await refusals(member, "certificate")
            with pytest.raises(RemotingError):
                await answers(member.address, options)
            await until(functools.partial(_more, member, "certificate", before), "it is counted")
    async with tls_group(tmp_path / "optional", client_certificates="Optional") as started:
        member = await ready(started)
        assert await answers(member.address, started.options)
        with pytest.raises(RemotingError):
            await answers(member.address, TlsOptions(started.files.ca, stranger.cert, stranger.key))


async def test_a_failover_with_tls_loses_no_message(tmp_path: Path) -> None:
    async with tls_group(tmp_path, 3, internal=True) as started:
        group = started.group
        await group.lead(0)
        await group.registered()
        acknowledged: list[bytes] = []
        async with Producer(started.name_server, tls=started.options, timeout=20) as producer:

            async def send_all(worker: int) -> None:
                for number in range(150):
                    body = b"%d-%d" % (worker, number)
                    assert (await producer.send("T", body)).status in (
                        SendStatus.SEND_OK,
                        SendStatus.FLUSH_DISK_TIMEOUT,
                    )
                    acknowledged.append(body)

            await producer.send("T", b"first")
            await group.all_in_sync()
            sends = asyncio.gather(*(send_all(worker) for worker in range(8)))
            await until(lambda: _some(acknowledged, 300), "some are sent")
            await group.members[0].kill(signal.SIGKILL)
            await group.lead(1, [1, 2])
            await asyncio.wait_for(sends, 60)
        inbox = Inbox()
        async with Consumer(started.name_server, "g", from_where=FromWhere.FIRST, tls=started.options) as consumer:
            await consumer.subscribe("T", inbox)
            await inbox.wait(len(acknowledged) + 1, 30)
        assert set(acknowledged) <= set(inbox.bodies)


async def _some(found: list[bytes], count: int) -> bool:
    return len(found) >= count


async def test_a_process_with_files_that_do_not_fit_says_so_and_does_not_start(tmp_path: Path) -> None:
    one, two = Authority().issue(tmp_path / "1", *LOCAL), Authority().issue(tmp_path / "2", *LOCAL)
    replace(one.key, two.key.read_bytes())
    config = tmp_path / "ns.json"
    config.write_text(
        json.dumps(
            {
                "name": "ns",
                "listen_host": "127.0.0.1",
                "port": 0,
                "tls": {"mode": "Required", "cert_file": str(one.cert), "key_file": str(one.key)},
            }
        )
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gantry_broker.namesrv", "--config", str(config), stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 1
    assert f"the key in {one.key} does not belong to the certificate in {one.cert}" in said.decode()
