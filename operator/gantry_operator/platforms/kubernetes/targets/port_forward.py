"""A whole cluster on local ports, through the API server, for a laptop without another route.

Connections use the pods' `portforward`. NameServers return addresses inside the cluster, so their responses are
rewritten: each group's address becomes a local port that leads to the present master.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
from gantry_broker.protocol.frame import FrameDecoder, FrameError, encode_frame
from gantry_broker.tasks import end_tasks

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import ManifestError, parse_manifest
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import POD, ApiError, ApiUnavailable, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.pod_state import pod_ready
from gantry_operator.platforms.kubernetes.manifests.broker_group import member_host

log = logging.getLogger(__name__)

PROTOCOL = "v4.channel.k8s.io"
HOST = "127.0.0.1"
CHUNK = 65_536
_DATA, _ERROR = 0, 1

PodChooser = Callable[[], Awaitable[str | None]]
"""Name of the pod for a new connection; None: there is none now."""


def cluster_that_runs(resource: Object) -> BrokerCluster:
    """Return the cluster by its spec; by the names in the status if that is refused. Raises ManifestError without."""
    try:
        return parse_manifest(resource)
    except ManifestError:
        status = resource.get("status") or {}
        groups: dict[str, int] = {}
        for row in status.get("members") or []:
            number = int(row["name"].rsplit("-", 1)[1])
            groups[row["group"]] = max(groups.get(row["group"], 0), number + 1)
        servers = len(status.get("nameServerMembers") or [])
        if not groups or not servers:
            raise
    meta = resource["metadata"]
    spec = [{"name": g, "members": n} for g, n in groups.items()]
    return BrokerCluster.make(meta["name"], meta["namespace"], nameServers={"replicas": servers}, brokerGroups=spec)


class ForwardedCluster:
    """Local listeners until `close`. Their only state is their connections."""

    def __init__(
        self, api: KubeApi, namespace: str, clients: ssl.SSLContext | None, http: ssl.SSLContext | None
    ) -> None:
        self.name_servers = ""
        self.members: tuple[str, ...] = ()
        """Their names, in the order of `members_http`."""
        self.members_http: tuple[str, ...] = ()
        self._api = api
        self._namespace = namespace
        self._clients, self._http = clients, http
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses: dict[bytes, bytes] = {}

    @classmethod
    async def open(
        cls,
        api: KubeApi,
        cluster: BrokerCluster,
        *,
        clients: ssl.SSLContext | None = None,
        http: ssl.SSLContext | None = None,
    ) -> ForwardedCluster:
        """Open listeners for the NameServers, for each group's master and for each member.

        The local ends are in clear text, on this machine alone. `clients` and `http`: TLS of the ports for clients and
        of HTTP at the other end.
        """
        planned = plan(cluster)
        self = cls(api, cluster.namespace, clients, http)
        for g in planned.groups:
            service = names.service_host(names.master_service(cluster.name, g.name), cluster.namespace)
            port = await self._listen(self._master_of(cluster.name, g.name), names.BROKER_PORT)
            self._addresses[f"{service}:{names.BROKER_PORT}".encode()] = f"{HOST}:{port}".encode()
        urls = []
        for m in planned.members:
            port = await self._listen(_always(m.name), names.BROKER_PORT)
            inner = f"{member_host(cluster, m)}:{names.BROKER_PORT}"
            self._addresses[inner.encode()] = f"{HOST}:{port}".encode()
            urls.append(f"http://{HOST}:{await self._listen(_always(m.name), names.BROKER_HTTP_PORT)}")
        self.members = tuple(m.name for m in planned.members)
        self.members_http = tuple(urls)
        servers = [
            await self._listen(_always(s.name), names.NAME_SERVER_PORT, rewrite=True) for s in planned.name_servers
        ]
        self.name_servers = ";".join(f"{HOST}:{port}" for port in servers)
        return self

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await end_tasks(*self._tasks)

    def _master_of(self, cluster: str, group: str) -> PodChooser:
        labels = names.selector(cluster, names.BROKER, group) | {names.ROLE_LABEL: names.ROLE_MASTER}

        async def choose() -> str | None:
            query = ",".join(f"{k}={v}" for k, v in labels.items())
            pods, _ = await self._api.list(POD, self._namespace, query)
            pods.sort(key=pod_ready, reverse=True)
            return str(pods[0]["metadata"]["name"]) if pods else None

        return choose

    async def _listen(self, choose: PodChooser, port: int, rewrite: bool = False) -> int:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(choose, port, rewrite, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(accepted, HOST, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(
        self, choose: PodChooser, port: int, rewrite: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            pod = await choose()
            if pod is None:
                return
            path = POD.path(self._namespace, pod, "portforward")
            socket = await self._api.websocket(path, {"ports": str(port)}, PROTOCOL)
            try:
                context = self._http if port == names.BROKER_HTTP_PORT else self._clients
                plain = Channel(socket)
                channel: Channel | TlsChannel = plain
                if context is not None:
                    channel = TlsChannel(plain, context, pod)
                    await channel.handshake()
                up = asyncio.create_task(_send(reader, channel))
                down = asyncio.create_task(self._receive(channel, writer, rewrite))
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                await end_tasks(up, down)
            finally:
                await socket.close()
        except (ApiError, ApiUnavailable, OSError) as error:
            log.debug("forwarding port %s: %s", port, error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _receive(self, channel: Channel | TlsChannel, writer: asyncio.StreamWriter, rewrite: bool) -> None:
        decoder = FrameDecoder()
        while data := await channel.receive():
            writer.write(self._rewritten(decoder, data) if rewrite else data)
            await writer.drain()

    def _rewritten(self, decoder: FrameDecoder, data: bytes) -> bytes:
        """Rewrite complete responses to local addresses. Raises OSError for data that is not RocketMQ's protocol."""
        try:
            frames = decoder.feed(data)
        except FrameError as error:
            raise OSError(str(error)) from error
        for frame in frames:
            for inner, here in self._addresses.items():
                frame.body = frame.body.replace(inner, here)
        return b"".join(encode_frame(f) for f in frames)


async def _send(reader: asyncio.StreamReader, channel: Channel | TlsChannel) -> None:
    while data := await reader.read(CHUNK):
        await channel.send(data)


class Channel:
    """The bytes of one forwarded port over its websocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._opened: set[int] = set()

    async def send(self, data: bytes) -> None:
        await self._socket.send_bytes(bytes([_DATA]) + data)

    async def receive(self) -> bytes:
        """Return the next bytes; empty: the other end is closed."""
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                return b""
            number, data = message.data[0], bytes(message.data[1:])
            if number not in self._opened:
                # The first two bytes of each channel repeat the port.
                self._opened.add(number)
                data = data[2:]
            if number == _ERROR and data:
                return b""
            if number == _DATA and data:
                return data
        return b""


class TlsChannel:
    """TLS over a `Channel`. Call `handshake` first."""

    def __init__(self, channel: Channel, context: ssl.SSLContext, name: str) -> None:
        self._channel = channel
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    async def handshake(self) -> None:
        """Prove the identity of both ends. Raises OSError when the other end is not trusted, or closes."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise ConnectionError("the other end closed the connection during the TLS handshake") from None
            else:
                await self._flush()
                return

    async def send(self, data: bytes) -> None:
        self._tls.write(data)
        await self._flush()

    async def receive(self) -> bytes:
        """Return the next bytes; empty: the other end is closed."""
        while True:
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                if not await self._fill():
                    return b""

    async def _fill(self) -> bool:
        data = await self._channel.receive()
        self._incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            await self._channel.send(data)


def _always(pod: str) -> PodChooser:
    async def choose() -> str | None:
        return pod

    return choose
