"""Requests to NameServers and brokers over RocketMQ's remoting protocol: which brokers there are.

Each request has its own connection, since a report sends only a few.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from gantry_broker.protocol.bodies import ClusterInfo
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.digits import MAX_INT, whole_number
from gantry_broker.protocol.fastjson import JsonError, loads
from gantry_broker.protocol.frame import Frame, FrameDecoder, FrameError, encode_frame

from gantry_spark.errors import SourceError
from gantry_spark.trust import PLAINTEXT, Trust

TIMEOUT_S: Final = 5.0
_MAX_FRAME_BYTES: Final = 64 * 1024 * 1024


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of "host:port" (IPv6 with or without brackets). Raises SourceError."""
    host, _, port = address.rpartition(":")
    number = whole_number(port, 1, 65_535)
    if not host or number is None:
        raise SourceError(f"{address[:80]!r} is no address; write host:port")
    return host.strip("[]"), number


def call(
    address: str,
    code: int,
    ext: dict[str, str] | None = None,
    timeout: float = TIMEOUT_S,
    trust: Trust = PLAINTEXT,
) -> Frame:
    """Send one request to `host:port` and return the response. Raises SourceError without a successful response."""
    place = host_and_port(address)
    try:
        with trust.wrap(socket.create_connection(place, timeout=timeout), place[0]) as connection:
            request = Frame(code, opaque=1, ext=dict(ext or {}))
            trust.sign(request)
            connection.sendall(encode_frame(request))
            decoder = FrameDecoder(_MAX_FRAME_BYTES)
            while True:
                data = connection.recv(256 * 1024)
                if not data:
                    raise SourceError(f"{address} closed the connection before it answered request {code}")
                for frame in decoder.feed(data):
                    if frame.is_response and frame.opaque == 1:
                        if frame.code != ResponseCode.SUCCESS:
                            reason = f"{address} refuses request {code}: {frame.code} {frame.remark or ''}"
                            if frame.code == ResponseCode.NO_PERMISSION:
                                reason += "; set option credentialsFile to a file with the keys of a user who may ask"
                            raise SourceError(reason)
                        return frame
    except OSError as error:
        raise SourceError(f"{address} does not answer: {error}") from None
    except FrameError as error:
        raise SourceError(f"{address} does not speak RocketMQ's protocol: {error}") from None


def broker_urls(name_servers: str, trust: Trust = PLAINTEXT) -> list[str]:
    """Return group and HTTP base URL (`a=http://10.0.0.5:10921`) of all brokers of the first NameServer that answers.

    Raises SourceError, also if no broker of a group names its HTTP interface.
    """
    problems: list[str] = []
    for server in (s.strip() for s in name_servers.replace(",", ";").split(";")):
        if not server:
            continue
        try:
            response = call(server, RequestCode.GET_BROKER_CLUSTER_INFO, trust=trust)
            info = ClusterInfo.from_json(loads(response.body))
        except (SourceError, ValueError) as error:
            problems.append(f"NameServer {error}")
            continue
        of_groups: list[str] = []
        without_http: list[str] = []
        for group, broker in info.brokers.items():
            addresses = dict.fromkeys(broker.addresses.values())
            urls = [f"{group}={url}" for url in (_http_url(a, trust) for a in addresses) if url is not None]
            of_groups += urls
            if not urls and not any(_lacks_http(a, trust) for a in addresses):
                without_http.append(f"group {group} ({', '.join(addresses) or 'no address'})")
        if of_groups and without_http:
            raise SourceError(
                f"no broker names the HTTP interface of {'; '.join(without_http)}, known to NameServer {server}, "
                f"and its part of the cluster would be missing: wait until it answers, or give option brokers"
            )
        if of_groups:
            return of_groups
        problems.append(f"NameServer {server} has no broker with a known HTTP interface; give option brokers")
    raise SourceError("; ".join(problems) or "option cluster: write NameServer addresses as host:port;host:port")


def _http_url(address: str, trust: Trust) -> str | None:
    """Return the URL of a broker's HTTP interface, or None if it does not answer or has none."""
    table = _runtime_info(address, trust)
    http = None if table is None else table.get("gantryHttp")
    return f"{'http' if trust.ca_file is None else 'https'}://{http}" if http else None


def _lacks_http(address: str, trust: Trust) -> bool:
    """Return whether a broker answers and has no HTTP interface, as Apache RocketMQ's. Its log is not read this way."""
    table = _runtime_info(address, trust)
    return table is not None and not table.get("gantryHttp")


def _runtime_info(address: str, trust: Trust) -> dict[str, Any] | None:
    try:
        table = loads(call(address, RequestCode.GET_BROKER_RUNTIME_INFO, trust=trust).body).get("table", {})
    except (SourceError, JsonError, AttributeError):
        return None
    return table if isinstance(table, dict) else None


def parse_offsets(body: bytes, where: str) -> dict[tuple[str, str, int], int]:
    """Parse RocketMQ's consumerOffset.json: `offsetTable` of `topic@group` -> {queue: offset}. Raises SourceError."""
    try:
        table = loads(body).get("offsetTable", {})
        offsets: dict[tuple[str, str, int], int] = {}
        for name, queues in table.items():
            topic, _, group = str(name).partition("@")
            for queue, offset in queues.items():
                number, at = whole_number(str(queue), 0, MAX_INT), whole_number(str(offset), -1)
                if number is None or at is None:
                    raise ValueError(f"{name}: queue {str(queue)[:40]!r}, offset {str(offset)[:40]!r}")
                offsets[group, topic, number] = at
    except (JsonError, ValueError, AttributeError, TypeError) as error:
        raise SourceError(f"{where}: consumer offsets cannot be read: {error}") from None
    return offsets
