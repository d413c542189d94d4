"""The logs of a live cluster, read over the brokers' HTTP interface up to the confirmed offset.

A broker group has one log. Its listing is that of the member with the highest confirmed offset. Slaves serve the bytes
as long as they hold them, then the master. A read skips a member that does not answer and retries with growing pauses.
A position that no member holds any more has expired.

An address may start with its group: `a=http://10.0.0.5:10921`. Then a missing group is detected although none of its
members answers.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import orjson
from gantry_broker.contracts.models import LogInfo, MemberStatus
from gantry_broker.protocol.plausible import MAX_OFFSET

from gantry_spark.compacted import Compacted
from gantry_spark.errors import Expired, SourceError
from gantry_spark.kept import SMALL_READ, KeptBytes
from gantry_spark.trust import PLAINTEXT, Trust

READ_AHEAD: Final = 4 * 1024 * 1024
ATTEMPTS: Final = 6
"""Rounds over all members before a read fails: about 16 s of pauses."""
_FIRST_PAUSE_S: Final = 0.25
_CONNECT_S: Final = 2.0
_READ_S: Final = 10.0
_TIMEOUT: Final = httpx.Timeout(_READ_S, connect=_CONNECT_S)
_SHOWN: Final = 120
"""Bytes of a refusal that an error shows."""
_EXPIRED_STATUS: Final = 410
_NAMED: Final = re.compile(r"([^=/]+)=(.+)")
_TOKEN: Final = re.compile(rb"[ -~]+")


@dataclass(frozen=True)
class RemoteSegment:
    """A segment in a broker's listing; see `directory.Segment`."""

    start: int
    end: int
    limit: int
    first_ms: int
    last_ms: int


def headers(token_file: str | None) -> dict[str, str]:
    """Return the HTTP header with the admin token. Raises SourceError if the file holds no token or is not readable."""
    if token_file is None:
        return {}
    try:
        token = Path(token_file).read_bytes().strip()
    except OSError as error:
        raise SourceError(f"option tokenFile: {token_file} cannot be read: {error.strerror}") from None
    if _TOKEN.fullmatch(token) is None:
        raise SourceError(f"option tokenFile: {token_file} holds no token; expected one line of ASCII")
    return {"Authorization": f"Bearer {token.decode()}"}


def http_get(url: str, token_file: str | None, path: str, trust: Trust = PLAINTEXT) -> bytes:
    """Send one GET and return the body. Raises SourceError if the broker does not answer or refuses."""
    try:
        response = httpx.get(url + path, headers=headers(token_file), timeout=_TIMEOUT, verify=trust.context())
    except httpx.HTTPError as error:
        raise SourceError(f"broker {url} does not answer: {error or type(error).__name__}") from None
    if response.status_code in (401, 403):
        raise SourceError(
            f"broker {url} refuses access ({response.status_code}): set option tokenFile to a file with the admin token"
        )
    if response.status_code != 200:
        raise SourceError(f"broker {url}{path} answers {response.status_code}: {response.text[:200]}")
    return response.content


def base_url(text: str) -> str:
    """Return the base URL of a broker's HTTP interface, given as `host:port` or as a URL."""
    return (text if "://" in text else f"http://{text}").rstrip("/")


def split_group(text: str) -> tuple[str | None, str]:
    """Split an address into its group (None: not given) and its base URL."""
    parts = _NAMED.fullmatch(text)
    return (None, base_url(text)) if parts is None else (parts[1], base_url(parts[2]))


def fetch_status(url: str, token_file: str | None = None, trust: Trust = PLAINTEXT) -> MemberStatus:
    """Return the status of a broker. Raises SourceError."""
    try:
        return MemberStatus.model_validate_json(http_get(base_url(url), token_file, "/v1/status", trust))
    except ValueError as error:
        raise SourceError(f"broker {url} returns no status of a Gantry broker: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True)
class Tables:
    """What a member's tables say."""

    offsets: dict[tuple[str, str, int], int]
    """Of consumer groups, by (group, topic, queue)."""
    compacted: dict[str, Compacted]
    """By topic: what the brokers' compaction has done. Only of compacted topics."""


def fetch_tables(url: str, token_file: str | None = None, trust: Trust = PLAINTEXT) -> Tables:
    """Return a member's tables. Raises SourceError.

    Over HTTP with the admin token: at the ports for clients a request may need the signature of a user.
    """
    data = http_get(base_url(url), token_file, "/v1/tables?ages=false", trust)
    offsets: dict[tuple[str, str, int], int] = {}
    compacted: dict[str, Compacted] = {}
    try:
        tables = orjson.loads(data)
        for name, topic in tables["topics"].items():
            if (compaction := topic.get("compaction")) is not None:
                numbers = [compaction[field] for field in Compacted._fields]
                if any(type(number) is not int or number < 0 for number in numbers):
                    raise ValueError(f"compaction of {name}: {compaction!r}")
                compacted[name] = Compacted._make(numbers)
        for row in tables["lags"]:
            for queue, _, committed in row["queues"]:
                if not (type(queue) is type(committed) is int and queue >= 0 and 0 <= committed <= MAX_OFFSET):
                    raise ValueError(f"{queue!r}, {committed!r}")
                offsets[str(row["group"]), str(row["topic"]), queue] = committed
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"broker {url}: its tables cannot be read: {error!r}") from None
    return Tables(offsets, compacted)


class RemoteLog:
    """The log of one broker group."""

    def __init__(
        self,
        infos: Sequence[tuple[str, LogInfo]],
        token_file: str | None,
        rate: int,
        unreachable: Sequence[str] = (),
        trust: Trust = PLAINTEXT,
    ) -> None:
        """`infos`: base URL and listing of every member that answers; at least one.

        `unreachable`: the errors of addresses without a group. They may belong to this group or to a missing one.
        """
        best = max((info for _, info in infos), key=lambda info: info.confirmed)
        self.name = best.group
        self.cluster = best.cluster
        self.confirmed = best.confirmed
        self.reserved_hours = best.reserved_hours
        """fileReservedTime; None: the broker does not name it."""
        ordered = sorted(infos, key=lambda one: (one[1].role == "Master", one[1].member.member))
        self.sources = tuple((url, info.confirmed) for url, info in ordered)
        self.master = next((url for url, info in ordered if info.role == "Master"), ordered[-1][0])
        self.token_file = token_file
        self.trust = trust
        self.rate = rate
        self.unreachable = tuple(unreachable)
        size = best.segment_bytes
        self.segments = [
            RemoteSegment(s.start, s.start - s.start % size + size, min(s.end, best.confirmed), s.first_store_ms,
                          s.last_store_ms)
            for s in best.segments if min(s.end, best.confirmed) > s.start
        ]  # fmt: skip

    def open(self, index: int) -> HttpBytes:
        """Return the bytes of a segment. This sends no request yet."""
        return HttpBytes(self.sources, self.segments[index].limit, self.token_file, self.rate, self.trust)


def open_logs(urls: Sequence[str], token_file: str | None, rate: int, trust: Trust = PLAINTEXT) -> list[RemoteLog]:
    """Return the logs of all groups of these brokers.

    Raises SourceError if no member of a group answers, or if a broker belongs to another group than its address names.
    """
    headers(token_file)  # Fails early on an unusable file, which is no fault of the brokers.
    trust.context()
    groups: dict[str, list[tuple[str, LogInfo]]] = defaultdict(list)
    problems: dict[str | None, list[str]] = defaultdict(list)
    for group, url in dict.fromkeys(split_group(u) for u in urls):
        try:
            info = LogInfo.model_validate_json(http_get(url, token_file, "/v1/log", trust))
        except SourceError as error:
            problems[group].append(str(error))
        except ValueError as error:
            problems[group].append(f"{url} returns no listing of a log: {str(error).splitlines()[0]}")
        else:
            if group not in (None, info.group):
                raise SourceError(f"broker {url} is of group {info.group}, not of {group}")
            groups[info.group].append((url, info))
    for group, why in problems.items():
        if group is not None and group not in groups:
            raise SourceError(
                f"no member of group {group} answers, and its part of the cluster would be missing: {'; '.join(why)}"
            )
    if not groups:
        raise SourceError("; ".join(problems[None]) or "no broker is given")
    return [RemoteLog(infos, token_file, rate, problems[None], trust) for _, infos in sorted(groups.items())]


class _Member:
    """The kept connection to one member, whose answers lie in memory that the caller gives: they are large, and a
    client that makes pieces of them takes longer than the rest of a read.
    """

    def __init__(self, url: str, headers: Mapping[str, str], trust: Trust) -> None:
        self._url = urlsplit(url)
        self._headers = dict(headers)
        self._trust = trust
        self._connection: HTTPConnection | None = None

    def get(self, path: str, into: memoryview) -> tuple[int, int, str]:
        """Send a GET; return the status, the number of bytes of an answer 200, and else the beginning of its text.

        Raises OSError, HTTPException.
        """
        kept = self._connection is not None
        try:
            return self._get(path, into)
        except ConnectionError:
            self.close()
            if not kept:
                raise
        except BaseException:
            self.close()
            raise
        return self.get(path, into)  # The member has closed the connection meanwhile.

    def _get(self, path: str, into: memoryview) -> tuple[int, int, str]:
        connection = self._connection = self._connection or self._connected()
        connection.request("GET", self._url.path + path, headers=self._headers)
        response = connection.getresponse()
        size = response.length
        if response.status != 200 or size is None or size > len(into):
            text = response.read(_SHOWN).decode(errors="replace")
            self.close()
            return response.status, 0, text
        done = 0
        while done < size:
            count = response.readinto(into[done:size])
            if not count:
                raise ConnectionResetError("the answer ended early")
            done += count
        if response.will_close:
            self.close()
        return response.status, size, ""

    def _connected(self) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=_CONNECT_S, context=self._trust.context())
        else:
            connection = HTTPConnection(host, port, timeout=_CONNECT_S)
        connection.connect()
        connection.sock.settimeout(_READ_S)
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class HttpBytes(KeptBytes):
    """Bytes of a log from the members that hold them. Keeps the last response for small reads around it."""

    def __init__(
        self,
        sources: Sequence[tuple[str, int]],
        limit: int,
        token_file: str | None,
        rate: int,
        trust: Trust = PLAINTEXT,
    ) -> None:
        """Set up for one log. `sources`: base URL and confirmed offset of the members, in the order of requests."""
        super().__init__(limit)
        self._sources = list(sources)
        given = headers(token_file)
        self._members = {url: _Member(url, given, trust) for url, _ in sources}
        self._room = bytearray()
        self._rate = rate
        self._started = time.monotonic()
        self._taken = 0

    def _fetch(self, at: int, much: bool) -> tuple[int, bytes | memoryview]:
        return at, self._request(at, min(at + (READ_AHEAD if much else SMALL_READ), self._limit))

    def _request(self, start: int, stop: int) -> memoryview:
        if len(self._room) < stop - start:
            self._kept = b""
            self._room = bytearray(stop - start)
        room = memoryview(self._room)
        problems: dict[str, str] = {}
        pause = _FIRST_PAUSE_S
        for attempt in range(ATTEMPTS):
            requests = gone = 0
            for source in list(self._sources):
                url, confirmed = source
                if start >= confirmed:
                    continue
                requests += 1
                try:
                    end = min(stop, confirmed)
                    path = f"/v1/log/bytes?from={start}&to={end}"
                    status, count, text = self._members[url].get(path, room[: end - start])
                except (OSError, HTTPException) as error:
                    problems[url] = str(error) or type(error).__name__
                    continue
                if status == 200 and count:
                    # The member that answered comes first, so that later reads do not wait for the others.
                    self._sources.remove(source)
                    self._sources.insert(0, source)
                    self._slow_down(count)
                    return room[:count]
                gone += status == _EXPIRED_STATUS
                problems[url] = f"{status} {text}"
            if requests and gone == requests:
                raise Expired(f"offset {start} is below the start of the log of every member")
            if attempt < ATTEMPTS - 1:
                time.sleep(pause)
                pause = min(pause * 2, 8.0)
        details = "; ".join(f"{url}: {why}" for url, why in problems.items())
        raise SourceError(f"bytes {start} to {stop} of the log are not available: {details}")

    def _slow_down(self, count: int) -> None:
        self._taken += count
        if self._rate:
            ahead = self._taken / self._rate - (time.monotonic() - self._started)
            if ahead > 0:
                time.sleep(ahead)

    def close(self) -> None:
        super().close()
        for member in self._members.values():
            member.close()
