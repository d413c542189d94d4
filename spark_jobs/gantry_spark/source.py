"""The data source `spark.read.format("commitlog")`, for batch and streaming reads.

The driver lists the logs and splits them into ranges at record boundaries (`partitioning`). Each task reads its range
in blocks, finds the valid records (`scan`) and returns Arrow batches of the requested columns (`decode`). A session
must register the source with `gantry_spark.register`: Spark pushes filters to Python sources only with
`spark.sql.python.filterPushdown.enabled`.

Spark's Python data source API does not pass the columns of a query to the source (4.3). So a read names its columns:
`.option("columns", "topic,size")` or `.schema("topic string, size int")`. The default is all columns but the body and
the damage.

Options:
- `path` (or load's argument; several are allowed): store directories, or archives (s3://, gs://, az://, or the folder
  of one). `brokers`: HTTP addresses, separated by commas, each with its group (`a=http://10.0.0.5:10921`) to detect a
  group without a member that answers. `cluster`: NameServer addresses, separated by semicolons. Exactly one of these
  three is required.
- `columns`: names of columns, separated by commas. `body`: true adds the body. `verify`: false skips the CRC of bodies.
- `damaged`: `skip` leaves damaged ranges out. `rows` returns each as a row with `damage` and without a topic.
- `parallelism`: number of cores. `partitionBytes`: size of a partition, instead of a size by the number of cores.
- `rateLimit`: limit of one task's reads from brokers, in bytes a second. `tokenFile`: file with the admin token.
- `caFile`: file with the CAs of the cluster, for HTTPS. `tls`: true: ports for clients have TLS as well.
- `credentialsFile`: JSON with `accessKey` and `secretKey`, by which requests to NameServers and brokers are signed.
- `endpoint`, `region`, `credentials` (a folder with a file for each credential), `keyFile` (the key of the
  encryption): how to reach an archive.
- `ranges`: JSON {log: [[from, to], ...]} of record boundaries. Only records that start in these ranges are read.
- `maxBytesPerTrigger`: limit of a stream's batch. `clockSlackMs`: tolerance for store times that step back in a log.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from gantry_broker.protocol.digits import whole_number
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from gantry_spark import partitioning
from gantry_spark.decode import RecordFilter, batch_of, damage_batch, property_names
from gantry_spark.directory import DirectoryLog, find
from gantry_spark.errors import Expired, SourceError
from gantry_spark.pushdown import push
from gantry_spark.scan import Damage, scan
from gantry_spark.schema import DEFAULT_COLUMNS, arrow_schema, check_schema, spark_schema
from gantry_spark.trust import Trust

logger = logging.getLogger(__name__)

_OPTION_NAMES: Final = frozenset(
    name.lower()
    for name in (
        "path", "paths", "brokers", "cluster", "columns", "body", "damaged", "verify", "parallelism", "partitionBytes",
        "rateLimit", "tokenFile", "caFile", "tls", "credentialsFile", "ranges", "maxBytesPerTrigger", "clockSlackMs",
        "endpoint", "region", "credentials", "keyFile",
    )
)  # fmt: skip


class Options:
    """The validated options of a read. Raises SourceError with the option, its value and the valid form."""

    def __init__(self, given: dict[str, str]) -> None:
        options = {name.lower(): value for name, value in given.items()}
        for name in options:
            if name not in _OPTION_NAMES:
                raise SourceError(f"option {name}: unknown; there are {', '.join(sorted(_OPTION_NAMES))}")
        self.paths: list[str] = orjson.loads(options["paths"]) if "paths" in options else []
        if "path" in options:
            self.paths.append(options["path"])
        self.brokers = [b.strip() for b in options.get("brokers", "").split(",") if b.strip()]
        for broker in self.brokers:
            if not _is_http(broker):
                raise SourceError(f"option brokers: {broker!r} is not an address; write http://HOST:PORT")
        self.cluster = options.get("cluster", "").strip()
        kinds = sum((bool(self.paths), bool(self.brokers), bool(self.cluster)))
        if kinds != 1:
            raise SourceError("give one of: a path (load), option brokers, option cluster")
        self.columns = [c.strip() for c in options.get("columns", "").split(",") if c.strip()]
        self.body = _flag(options, "body", False)
        self.verify = _flag(options, "verify", True)
        damaged = options.get("damaged", "skip")
        if damaged not in ("skip", "rows"):
            raise SourceError(f"option damaged: {damaged!r}; write skip or rows")
        self.damage_rows = damaged == "rows"
        self.parallelism = _number(options, "parallelism", os.cpu_count() or 1, 1)
        self.partition_bytes = _number(options, "partitionbytes", 0, 0)
        self.rate = _number(options, "ratelimit", 0, 0)
        self.token_file = options.get("tokenfile")
        self.trust = Trust(options.get("cafile"), _flag(options, "tls", False), options.get("credentialsfile"))
        self.archive = {
            field: options.get(name)
            for field, name in (
                ("endpoint", "endpoint"), ("region", "region"), ("credentials", "credentials"), ("key_file", "keyfile"),
            )
        }  # fmt: skip
        self.slack_ms = _number(options, "clockslackms", partitioning.CLOCK_SLACK_MS, 0)
        self.bytes_per_trigger = _number(options, "maxbytespertrigger", 0, 0)
        try:
            self.ranges: dict[str, list[tuple[int, int]]] | None = (
                {log: [(int(a), int(b)) for a, b in spans] for log, spans in orjson.loads(options["ranges"]).items()}
                if "ranges" in options
                else None
            )
        except (ValueError, TypeError, AttributeError):
            raise SourceError('option ranges: write JSON as {"log": [[0, 1048576]]}') from None

    def logs(self) -> list[Any]:
        """Open the logs. Raises SourceError."""
        logs: list[Any]
        if self.paths:
            logs = [log for path in self.paths for log in self._logs_of(path)]
        else:
            # The network modules take a second to import, and every Spark worker would pay for it.
            from gantry_spark import remote, remoting

            brokers = self.brokers or remoting.broker_urls(self.cluster, self.trust)
            logs = list(remote.open_logs(brokers, self.token_file, self.rate, self.trust))
        names = [log.name for log in logs]
        duplicates = {name for name in names if names.count(name) > 1}
        if duplicates:
            raise SourceError(
                f"two logs have the name {min(duplicates)}: copies of one log would count twice; give each log once"
            )
        return logs

    def _logs_of(self, path: str) -> list[Any]:
        """Open the logs of one path. Raises SourceError."""
        # The modules of archives take a while to import, and every Spark worker would pay for it.
        from gantry_spark import archived

        url = archived.archive_url(path)
        if url is not None:
            return list(archived.open_logs(archived.ArchivePlace(url, **self.archive)))
        return [DirectoryLog(find(path))]


def unreachable_warnings(logs: Sequence[Any]) -> list[str]:
    """Return a warning for each address that does not answer and may belong to a missing group."""
    groups = ", ".join(log.name for log in logs)
    return [
        f"{why}; if it belongs to another group than {groups}, that group's records are missing: write each address "
        f"with its group (GROUP=http://HOST:PORT) to detect this"
        for why in dict.fromkeys(warning for log in logs for warning in log.unreachable)
    ]


def _is_http(address: str) -> bool:
    """Return whether an address, with or without its group, names an HTTP interface."""
    text = re.sub(r"^[^=/]+=", "", address)
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _flag(options: dict[str, str], name: str, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise SourceError(f"option {name}: {value!r}; write true or false")
    return value == "true"


def _number(options: dict[str, str], name: str, default: int, least: int) -> int:
    value = options.get(name)
    if value is None:
        return default
    number = whole_number(value, least)
    if number is None:
        raise SourceError(f"option {name}: {value!r}; write a whole number of at least {least}")
    return number


class LogPartition(InputPartition):
    """One Spark partition: ranges of a log in order."""

    def __init__(self, log: Any, parts: tuple[partitioning.LogRange, ...]) -> None:
        super().__init__(parts)
        self.log = log
        self.parts = parts


class ExpiredPartition(InputPartition):
    """Bytes [start, end) of a log that expired before they were read."""

    def __init__(self, log: str, start: int, end: int) -> None:
        super().__init__((start, end))
        self.log = log
        self.damage = Damage(start, end, "expired before the read")


def read_parts(partition: InputPartition, columns: StructType, where: RecordFilter, options: Options) -> Iterator[Any]:
    """Yield the batches of one partition."""
    if isinstance(partition, ExpiredPartition) and options.damage_rows:
        lost = partition.damage
        batch = damage_batch(partition.log, lost.start, lost, columns.fieldNames(), arrow_schema(columns), where)
        if batch is not None:
            yield batch
    if isinstance(partition, LogPartition):
        for part in partition.parts:
            yield from _read(partition.log, part, columns, where, options)


def _read(
    log: Any, part: partitioning.LogRange, row_type: StructType, where: RecordFilter, options: Options
) -> Iterator[Any]:
    columns, schema = row_type.fieldNames(), arrow_schema(row_type)
    names = property_names(columns)
    segment = log.segments[part.segment].start
    at = part.range.start
    try:
        with log.open(part.segment) as source:
            for piece in scan(source, part.range, options.verify, names=names):
                at = max(at, piece.end)
                if isinstance(piece, Damage):
                    if not options.damage_rows:
                        continue
                    batch = damage_batch(log.name, segment, piece, columns, schema, where)
                else:
                    batch = batch_of(log.name, segment, piece, columns, schema, where)
                if batch is not None:
                    yield batch
    except Expired as gone:
        logger.warning("%s: bytes %d to %d expired during the read", log.name, at, part.range.stop)
        lost = Damage(at, part.range.stop, f"expired during the read: {gone}")
        batch = damage_batch(log.name, segment, lost, columns, schema, where) if options.damage_rows else None
        if batch is not None:
            yield batch


def partitions_of(options: Options, where: RecordFilter) -> list[InputPartition]:
    """Return the partitions of a read. Raises SourceError."""
    logs = options.logs()
    for warning in unreachable_warnings(logs):
        logger.warning("%s", warning)
    gone = {name for name, spans in (options.ranges or {}).items() if spans} - {log.name for log in logs}
    if gone:
        raise SourceError(f"log {min(gone)} is no longer available")
    partitions: list[InputPartition] = []
    total = sum(s.limit - s.start for log in logs for s in log.segments)
    target = options.partition_bytes or partitioning.partition_bytes_for(total, options.parallelism)
    for log in logs:
        within = None if options.ranges is None else options.ranges.get(log.name, [])
        parts = partitioning.plan_ranges(log, target, where, within, options.slack_ms)
        partitions += [LogPartition(log, task) for task in partitioning.pack_tasks(parts, target)]
    return partitions


class CommitLogReader(DataSourceReader):
    """Reads logs once."""

    def __init__(self, schema: StructType, options: Options) -> None:
        check_schema(schema, options.damage_rows)
        self.schema = schema
        self.options = options
        self.where = RecordFilter()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.where, rest = push(filters)
        return rest

    def partitions(self) -> list[InputPartition]:
        return partitions_of(self.options, self.where)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_parts(partition, self.schema, self.where, self.options)


class CommitLogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as they grow. The offset of a stream is {log: position}; positions are record boundaries."""

    def __init__(self, schema: StructType, options: Options) -> None:
        check_schema(schema, options.damage_rows)
        self.schema = schema
        self.options = options
        self.target: dict[str, int] | None = None
        """The end of a query with the trigger availableNow; None: no end."""

    def initialOffset(self) -> dict[str, int]:
        return {log.name: log.segments[0].start for log in self.options.logs() if log.segments}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self.options.bytes_per_trigger) if self.options.bytes_per_trigger else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        logs = [log for log in self.options.logs() if log.segments]
        self.target = {log.name: partitioning.stream_end_offset(log, log.segments[0].start, 0) for log in logs}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        result = dict(start)
        logs = [log for log in self.options.logs() if log.segments]
        if self.target is not None:
            logs = [log for log in logs if log.name in self.target]
        left = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        for index, log in enumerate(logs):
            at = start.get(log.name, log.segments[0].start)
            # A log passes the rest of its share on to the next logs. Each log advances by at least one record.
            share = 0 if left is None else max(1, left // (len(logs) - index))
            end = partitioning.stream_end_offset(log, at, share)
            if self.target is not None:
                end = max(at, min(end, self.target[log.name]))
            result[log.name] = end
            if left is not None:
                left -= max(0, end - max(at, log.segments[0].start))
        return result

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        partitions: list[InputPartition] = []
        logs = self.options.logs()
        gone = {name for name in end if end[name] != start.get(name)} - {log.name for log in logs}
        if gone:
            raise SourceError(f"log {min(gone)} is no longer available")
        for log in logs:
            if log.name not in end or not log.segments:
                continue
            first = log.segments[0].start
            begin = max(start.get(log.name, first), first)
            lost = (start.get(log.name, first), min(first, end[log.name]))
            if lost[0] < lost[1]:
                logger.warning("%s: bytes %d to %d expired before the stream read them", log.name, *lost)
                partitions.append(ExpiredPartition(log.name, *lost))
            spans = [(begin, end[log.name])]
            size = end[log.name] - begin
            target = self.options.partition_bytes or partitioning.partition_bytes_for(size, self.options.parallelism)
            parts = partitioning.plan_ranges(log, target, RecordFilter(), spans, self.options.slack_ms)
            partitions += [LogPartition(log, task) for task in partitioning.pack_tasks(parts, target)]
        return partitions

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_parts(partition, self.schema, RecordFilter(), self.options)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: brokers expire segments by their own rules."""


class CommitLogSource(DataSource):
    """The data source `commitlog`. `gantry_spark.register` registers it with a session."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def _columns(self) -> tuple[str, ...]:
        options = Options(dict(self.options))
        if options.columns:
            named = tuple(dict.fromkeys(options.columns))
        else:
            named = DEFAULT_COLUMNS + (("damage",) if options.damage_rows else ())
        return named + (("body",) if options.body and "body" not in named else ())

    def schema(self) -> StructType:
        return spark_schema(self._columns(), Options(dict(self.options)).damage_rows)

    def reader(self, schema: StructType) -> CommitLogReader:
        return CommitLogReader(schema, Options(dict(self.options)))

    def streamReader(self, schema: StructType) -> CommitLogStream:
        return CommitLogStream(schema, Options(dict(self.options)))
