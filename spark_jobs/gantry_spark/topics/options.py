"""The options of the source and of the sink `rocketmq`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from gantry_broker.client.errors import InvalidMessage
from gantry_broker.client.message import check_group
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.plausible import MAX_OFFSET

from gantry_spark.errors import SourceError
from gantry_spark.remoting import host_and_port
from gantry_spark.topics.queues import EARLIEST, LATEST, Offsets, parse_position
from gantry_spark.topics.ways import Logs
from gantry_spark.trust import Trust

READERS_GROUP: Final = "TOOLS_CONSUMER"
"""The group in the pulls of a read without `groupId`. Every broker has it; no offset is committed for it."""
TIMEOUT_MS: Final = 60_000
VIA: Final = ("auto", "pull", "log")

SHARED: Final = (
    "nameServers", "cluster", "caFile", "tls", "credentialsFile", "accessKey", "secretKey", "timeoutMs",
)  # fmt: skip
PLACES: Final = ("via", "tokenFile", "archive", "endpoint", "region", "credentials", "keyFile")
"""Where logs are read, and how."""
READ: Final = (
    *SHARED, *PLACES, "subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss", "includeProperties", "tags",
    "groupId", "columns", "verify", "path",
)  # fmt: skip
WRITE: Final = (*SHARED, "topic", "orderByKey", "producerGroup", "writeId", "path")
MAX_MS: Final = 253_402_300_799_999


class Given:
    """Options by lower-case name, checked one by one. Raises SourceError with the option and what to write."""

    def __init__(self, options: Mapping[str, str], allowed: tuple[str, ...]) -> None:
        self.values = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in allowed}
        for name in self.values:
            if name not in names:
                raise SourceError(f"option {name}: unknown; there are {', '.join(allowed)}")

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name.lower(), default).strip()

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise SourceError(f"option {name}: {value!r}; write true or false")
        return value == "true"

    def number(self, name: str, least: int, most: int) -> int | None:
        value = self.values.get(name.lower())
        if value is None:
            return None
        number = whole_number(value.strip(), least, most)
        if number is None:
            raise SourceError(f"option {name}: {value[:80]!r}; write a whole number from {least} to {most}")
        return number


class Access:
    """How to reach the brokers."""

    def __init__(self, given: Given) -> None:
        servers = given.text("nameServers")
        cluster = given.text("cluster")
        if bool(servers) == bool(cluster):
            raise SourceError("give option nameServers: addresses of NameServers as host:port;host:port")
        self.name_servers = tuple(s.strip() for s in (servers or cluster).replace(",", ";").split(";") if s.strip())
        option = "nameServers" if servers else "cluster"
        for one in self.name_servers or ("",):
            try:
                host_and_port(one)
            except SourceError as error:
                raise SourceError(f"option {option}: {error};host:port") from None
        access, secret = given.text("accessKey"), given.text("secretKey")
        file = given.text("credentialsFile") or None
        if bool(access) != bool(secret):
            raise SourceError("give options accessKey and secretKey together")
        if access and file:
            raise SourceError("give option credentialsFile, or accessKey and secretKey, not both")
        keys = (access, secret) if access else None
        self.trust = Trust(given.text("caFile") or None, given.flag("tls", False), file, keys)
        self.timeout_s = (given.number("timeoutMs", 1_000, 3_600_000) or TIMEOUT_MS) / 1000


def logs_of(given: Given) -> Logs:
    """Return where a read looks for logs. Raises SourceError."""
    via = given.text("via", "auto").lower()
    if via not in VIA:
        raise SourceError(f"option via: {via[:40]!r}; write one of {', '.join(VIA)}")
    url = given.text("archive")
    place = None
    if url:
        from gantry_spark.archived import ArchivePlace, archive_url

        archive = archive_url(url)
        if archive is None:
            raise SourceError(f"option archive: {url[:80]!r} is no archive; write its URL, as s3://bucket/prefix")
        place = ArchivePlace(
            archive, given.text("endpoint") or None, given.text("region") or None, given.text("credentials") or None,
            given.text("keyFile") or None,
        )  # fmt: skip
    return Logs(via, place, given.text("tokenFile") or None)


def _has(position: int | Offsets, offset: int) -> bool:
    """Return whether a position by queue has this offset."""
    return isinstance(position, dict) and offset in position.values()


class ReadOptions:
    """The validated options of a read. Raises SourceError with the option, its value and the valid form."""

    def __init__(self, options: Mapping[str, str], *, stream: bool | None) -> None:
        """`stream` None: not known yet."""
        given = Given(options, READ)
        self.access = Access(given)
        self.topics = tuple(dict.fromkeys(t.strip() for t in given.text("subscribe").split(",") if t.strip()))
        if given.text("path"):
            if self.topics:
                raise SourceError("give the topic once: as option subscribe, or as the argument of load")
            self.topics = (given.text("path"),)
        pattern = given.text("subscribePattern")
        if bool(self.topics) == bool(pattern):
            raise SourceError("give one of the options subscribe (topics, separated by commas) and subscribePattern")
        try:
            self.pattern = re.compile(pattern) if pattern else None
        except re.error as error:
            raise SourceError(f"option subscribePattern: {pattern[:80]!r} is no regular expression: {error}") from None
        self.start_ms = given.number("startingTimestamp", 0, MAX_MS)
        self.end_ms = given.number("endingTimestamp", 0, MAX_MS)
        for ends, text, ms in (("starting", "Offsets", self.start_ms), ("ending", "Offsets", self.end_ms)):
            if ms is not None and given.text(f"{ends}{text}"):
                raise SourceError(f"give one of the options {ends}Offsets and {ends}Timestamp")
        if self.start_ms is not None and self.end_ms is not None and self.end_ms < self.start_ms:
            raise SourceError(
                f"option endingTimestamp: {self.end_ms} is before startingTimestamp {self.start_ms}; write a later time"
            )
        if stream and (self.end_ms is not None or given.text("endingOffsets")):
            raise SourceError("a stream has no end: leave out endingOffsets and endingTimestamp")
        default = "latest" if stream else "earliest"
        self.starting: int | Offsets = parse_position(given.text("startingOffsets", default), "startingOffsets")
        self.ending: int | Offsets = parse_position(given.text("endingOffsets", "latest"), "endingOffsets")
        if stream is False and (self.starting == LATEST or _has(self.starting, LATEST)):
            raise SourceError(
                "option startingOffsets: latest is a start of streams, as -1 is; write earliest, offsets or -2"
            )
        if _has(self.ending, EARLIEST):
            raise SourceError(
                "option endingOffsets: -2 (earliest) is only a start; write latest, or JSON with offsets or -1"
            )
        self.per_trigger = given.number("maxOffsetsPerTrigger", 1, MAX_OFFSET)
        self.min_partitions = given.number("minPartitions", 1, 100_000) or 1
        self.fail_on_loss = given.flag("failOnDataLoss", True)
        self.with_properties = given.flag("includeProperties", False)
        self.tags = tuple(dict.fromkeys(t.strip() for t in given.text("tags").split("||") if t.strip()))
        if "*" in self.tags:
            self.tags = ()
        self.group = given.text("groupId")
        if self.group:
            try:
                check_group(self.group)
            except InvalidMessage as error:
                raise SourceError(f"option groupId: {error}") from None
        self.columns = tuple(dict.fromkeys(c.strip() for c in given.text("columns").split(",") if c.strip()))
        self.verify = given.flag("verify", True)
        self.logs = logs_of(given)

    @property
    def reader(self) -> str:
        """The consumer group of pulls."""
        return self.group or READERS_GROUP


class WriteOptions:
    """The validated options of a write. Raises SourceError with the option, its value and the valid form."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = Given({k: v for k, v in options.items() if k.lower() != "checkpointlocation"}, WRITE)
        self.access = Access(given)
        self.topic = given.text("topic") or given.text("path") or None
        self.by_key = given.flag("orderByKey", False)
        self.write_id = given.text("writeId") or uuid4().hex
        """Names the write. Rows of a repeated write with the same name keep their unique keys."""
        self.group = given.text("producerGroup", "gantry-spark")
        try:
            check_group(self.group)
        except InvalidMessage as error:
            raise SourceError(f"option producerGroup: {error}") from None
