"""`gantry table`: topics of a cluster as Iceberg tables."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import unquote

import typer
from gantry_broker.protocol.digits import whole_number

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.on_cluster import sharing
from gantry_operator.cli.options import DirOption, NameOption, Output, OutputOption, command_group
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import find_local, find_target
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_spark.tables.spec import TableSpec
    from gantry_spark.topics.wire import Cluster

    from gantry_operator.api.table import Tables
    from gantry_operator.platforms.local.folder import ClusterFolder

NEED = "Install what tables need: pip install 'gantry-mq[spark,tables]'"
PLACE = "Where the tables lie"
USUAL_NAMESPACE: Final = "rocketmq"
MAX_NAMESPACE: Final = 64
BROKERS_S: Final = 10.0
"""Seconds for an answer of brokers."""

table_app = command_group(
    "Topics as Iceberg tables.\n\n"
    "[bold]gantry table run Orders[/bold] commits the messages of a topic; `gantry table query` reads them. Without "
    "--catalog the tables lie in the folder of the local cluster."
)
CatalogOption = Annotated[
    Path | None,
    typer.Option(
        help="JSON with the properties of a PyIceberg catalog: type, uri, warehouse, ...", rich_help_panel=PLACE
    ),
]
TableNamespaceOption = Annotated[
    str | None,
    typer.Option(
        help="Namespace of the tables in the catalog. Default: spec.tables.namespace of the cluster, or rocketmq.",
        show_default=False, rich_help_panel=PLACE,
    ),
]  # fmt: skip
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name: its topic.", show_default=False)]


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise errors of tables as CliError."""
    for library in ("duckdb", "pyiceberg", "pyspark"):
        if importlib.util.find_spec(library) is None:  # To load them takes a second; few commands need all.
            raise CliError(f"{library} is missing. {NEED}")
    from gantry_spark.errors import GantrySparkError

    try:
        yield
    except GantrySparkError as error:
        raise CliError(str(error)) from None


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where the tables of a command lie, as its options say. Methods raise CliError."""

    catalog: Path | None
    given_namespace: str | None
    directory: Path | None
    name: str | None

    @property
    def namespace(self) -> str:
        """The namespace of the tables in the catalog: the given one, that of the cluster, or the usual one."""
        from gantry_operator.api.base import TABLE_NAMESPACE

        given = self.given_namespace
        if given is not None:
            if not re.fullmatch(TABLE_NAMESPACE, given) or len(given) > MAX_NAMESPACE:
                raise CliError(f"--table-namespace: {given[:70]!r}; write lower-case letters, digits and _", Exit.USAGE)
            return given
        tables = None if self.catalog is not None else self._saved()[1]
        return USUAL_NAMESPACE if tables is None else tables.namespace

    def _saved(self) -> tuple[ClusterFolder, Tables | None]:
        """Return the folder of the cluster, and what its manifest says of tables."""
        from gantry_operator.platforms.local.table_catalog import saved_tables

        folder = find_local(self.directory, self.name)
        return folder, saved_tables(folder)

    def properties(self) -> dict[str, str]:
        """Return the properties of the catalog."""
        from gantry_operator.platforms.local.table_catalog import local_catalog

        given = self.catalog
        if given is None:
            return local_catalog(*self._saved())
        try:
            properties = json.loads(given.read_text())
        except OSError as error:
            raise CliError(f"--catalog: {given} cannot be read: {error.strerror}", Exit.USAGE) from None
        except ValueError as error:
            raise CliError(f"--catalog: {given} is no JSON: {error}", Exit.USAGE) from None
        if not isinstance(properties, dict) or not all(isinstance(v, str) for v in properties.values()):
            raise CliError(f'--catalog: {given}: write an object of texts, as {{"type": "sql"}}', Exit.USAGE)
        return {str(k): v for k, v in properties.items()}

    def spec(self, catalog: dict[str, str], **more: Any) -> TableSpec:
        """Return a specification with the addresses of the cluster."""
        from gantry_spark.tables.spec import TableSpec

        servers, options = self._reached()
        return TableSpec(name_servers=servers, catalog=catalog, options=options, **more)

    def cluster(self) -> Cluster:
        """Return the cluster's brokers."""
        from gantry_spark.topics.wire import Cluster
        from gantry_spark.trust import Trust

        servers, options = self._reached()
        keys = (options["accessKey"], options["secretKey"]) if "accessKey" in options else None
        trust = Trust(options.get("caFile"), "tls" in options, None, keys)
        return Cluster(tuple(servers.split(";")), trust, BROKERS_S)

    def _reached(self) -> tuple[str, dict[str, str]]:
        """Return the addresses of the NameServers, and how to reach brokers as options of the source."""
        import asyncio

        from gantry_broker.remoting.tls import TlsOptions

        async def clients() -> Any:
            async with find_target(self.directory, self.name, None, None).clients() as access:
                return access

        access = asyncio.run(clients())
        options: dict[str, str] = {}
        if access.credentials is not None:
            options |= {"accessKey": access.credentials.access_key, "secretKey": access.credentials.secret_key}
        if access.tls is not None:
            options["tls"] = "true"
            if isinstance(access.tls, TlsOptions) and access.tls.ca_file is not None:
                options["caFile"] = str(access.tls.ca_file)
        return access.name_servers, options


def _chosen(
    catalog: CatalogOption = None,
    table_namespace: TableNamespaceOption = None,
    name: NameOption = None,
    directory: DirOption = None,
    output: OutputOption = Output.text,
) -> tuple[TablePlace, bool]:
    return TablePlace(catalog, table_namespace, directory, name), output == Output.json


_of_tables = sharing(_chosen, "place", "as_json")
"""Gives a command the options that say where the tables lie, and `--output`."""


def _has_none(properties: dict[str, str]) -> bool:
    """Whether no table was ever made in a catalog of this machine. PyIceberg, which takes a second to load, is not
    needed to say so.
    """
    kind, _, file = properties.get("uri", "").partition(":///")
    place, _, warehouse = properties.get("warehouse", "").partition("://")
    local = (kind, place) == ("sqlite", "file")
    return local and not Path(file).exists() and not (Path(unquote(warehouse)) / "parquet").exists()


def _in_format(properties: dict[str, str], file_format: str) -> dict[str, str]:
    """Return the properties of the catalog for tables of a format. Raises CliError."""
    if file_format.lower() not in ("iceberg", "parquet"):
        raise CliError(f"--format: {file_format[:40]!r}; write Iceberg or Parquet", Exit.USAGE)
    return {**properties, "type": "parquet"} if file_format.lower() == "parquet" else properties


def _seconds(text: str, option: str = "--every") -> float:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number = whole_number(text[:-1], 1, 1_000_000)
    unit = text[-1:]
    if number is None or unit not in units:
        raise CliError(f"{option}: {text[:40]!r}; write a number with s, m, h or d, as 5m", Exit.USAGE)
    return float(number * units[unit])


def _schema(text: str, message: str | None) -> dict[str, Any]:
    """Return the kind of a schema, and the schema itself. Raises CliError."""
    import base64

    if text.lower() in ("raw", "inferred"):
        return {"kind": text.capitalize()}
    try:
        if message is not None:
            definition = base64.b64encode(Path(text).read_bytes()).decode()
            return {"kind": "Protobuf", "definition": definition, "message": message}
        if text.endswith(".avsc"):
            return {"kind": "Avro", "definition": Path(text).read_text()}
        return {"kind": "JsonSchema", "schema": json.loads(Path(text).read_text())}
    except OSError as error:
        raise CliError(f"--schema: {text!r}; write raw, inferred or a file: {error.strerror}", Exit.USAGE) from None
    except ValueError as error:
        raise CliError(f"--schema: {text} is no JSON: {error}", Exit.USAGE) from None


@table_app.command("run")
@_of_tables
def run_table(
    place: TablePlace,
    as_json: bool,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    schema: Annotated[
        str,
        typer.Option(
            help="raw: key, value, properties. inferred: from JSON bodies. Or a file: a JSON Schema, an Avro schema "
            "(.avsc), or with --message the output of protoc --include_imports -o."
        ),
    ] = "raw",
    message: Annotated[str | None, typer.Option(help="Full name of the Protobuf message.")] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(help="Partition of the table, as country or day(rocketmq.timestamp). Repeat it for more."),
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", help="Iceberg: a table of the catalog. Parquet: a folder of files.")
    ] = "Iceberg",
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Accept the columns that --schema inferred shows, and make the table.")
    ] = False,
    on_bad_record: Annotated[
        str, typer.Option(help="Reject: a message that does not fit goes to TABLE__rejected. Suspend: stop before it.")
    ] = "Reject",
    upsert: Annotated[
        bool, typer.Option("--upsert", help="One row for each key, the newest. An empty body deletes it.")
    ] = False,
    with_spark: Annotated[bool, typer.Option("--spark", help="Let Spark write the files, on all cores.")] = False,
    every: Annotated[str | None, typer.Option(help="Run again and again, as 1m. Default: once.")] = None,
) -> None:
    """Commit the messages of a topic to its table, from where the table ends."""
    pause = None if every is None else _seconds(every)
    with _one_line_errors():
        properties = _in_format(place.properties(), file_format)
        mode = "Upsert" if upsert else "Append"
        spec = place.spec(
            properties, topic=topic, freeze=freeze, mode=mode, partition_by=tuple(partition_by or ()),
            namespace=place.namespace, on_bad_record=on_bad_record.capitalize(),
            **_schema(schema, message),
        )  # fmt: skip
        while True:
            begun = time.monotonic()
            _run(spec, as_json, with_spark)
            if pause is None:
                return
            time.sleep(max(0.0, begun + pause - time.monotonic()))


def _session() -> Any:
    from gantry_spark.session import session

    return session("gantry table")


def _run(spec: TableSpec, as_json: bool, with_spark: bool = False) -> None:
    from gantry_spark.tables import entry_cache, library
    from gantry_spark.tables.job import TableJob

    count: list[tuple[int, int | None]] = [(0, None)]
    spark = _session() if with_spark else None
    try:
        with Progress(f"table {spec.topic}", unit="messages", poll=lambda: count[0]):
            job = TableJob(spec, spark)
            outcomes = job.run(
                lambda done, total: count.__setitem__(0, (done, total)), is_kept=spec.freeze or spec.kind != "Inferred"
            )
            if (table := job.find()) is not None:
                entry_cache.keep(spec.catalog, library.entries(job.catalog, table))
    finally:
        if spark is not None:
            spark.stop()
    done: dict[str, Any] = {
        "table": spec.topic,
        "commits": len(outcomes),
        "rows": sum(one.rows for one in outcomes),
        "rejected": sum(one.rejected for one in outcomes),
        "lost": [loss for one in outcomes for loss in one.losses],
    }
    if as_json:
        print_json(done)
        return
    commits = f"{done['commits']} commit{'' if done['commits'] == 1 else 's'}"
    say(f"{spec.topic}: {done['rows']:,} messages in {commits}, {done['rejected']:,} rejected")
    for loss in done["lost"]:
        note(f"lost: {loss}")
    if job.unacknowledged:
        note(job.unacknowledged)


@table_app.command("list")
@_of_tables
def list_tables(place: TablePlace, as_json: bool) -> None:
    """List the tables: rows, rejected rows, last commit, and how far each is behind its topic."""
    with _one_line_errors():
        tables = _described(place, None)
    if as_json:
        print_json(tables)
        return
    headings = ("TABLE", "MODE", "SCHEMA", "ROWS", "REJECTED", "SIZE", "LAST COMMIT", "BEHIND")
    print_table(headings, [_row(one) for one in tables], right=("ROWS", "REJECTED", "SIZE", "BEHIND"))
    for one in tables:
        if one["problem"]:
            note(f"{one['name']}: {one['problem']}")


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    behind = one["behindRecords"]
    last = one["lastCommitMs"]
    return (
        one["name"], one["mode"], one["schema"], f"{one['rows']:,}", f"{one['rejected']:,}", size(one["bytes"]),
        "none" if last is None else f"{datetime.fromtimestamp(last / 1000, UTC):%Y-%m-%d %H:%M:%S}",
        "not known" if behind is None else f"{behind:,}",
    )  # fmt: skip


def _described(place: TablePlace, only: str | None) -> list[dict[str, Any]]:
    namespace, properties = place.namespace, place.properties()
    if only is None and _has_none(properties):
        return []
    from gantry_spark.tables import entry_cache

    entries = None if properties.get("type") == "parquet" else entry_cache.read(properties, namespace)
    if entries is not None and only is not None:
        # By name an Iceberg table comes before one of Parquet. Without any, the library says which there are.
        entries = [one for one in entries if one["name"] == only][:1] or None
    if entries is None:
        entries = _read(properties, namespace, only)
    cluster = None
    try:
        cluster = place.cluster()
    except CliError as error:
        note(f"how far tables are behind is not known: {error}")
    return [entry_cache.with_behind(one, cluster) | {"group": _group(one, namespace, properties)} for one in entries]


def _group(facts: dict[str, Any], namespace: str, properties: dict[str, str]) -> str:
    """Return the consumer group that has the progress of a table."""
    from gantry_spark.tables.offsets import group_of

    return group_of(namespace, facts["topic"], _in_format(properties, facts["format"]))


def _read(properties: dict[str, str], namespace: str, only: str | None) -> list[dict[str, Any]]:
    """Read the tables, and keep what they hold for the next command."""
    from gantry_spark.tables import entry_cache, library

    if only is None:
        entries = library.all_entries(library.catalogs(properties), namespace)
    else:
        entries = library.entries(*library.find(properties, only, namespace))
    entry_cache.keep(properties, entries)
    return [one.facts for one in entries if one.facts is not None]


@table_app.command("describe")
@_of_tables
def describe_table(place: TablePlace, as_json: bool, table: TableArgument) -> None:
    """Show a table: its columns, its place, and the offsets that it covers."""
    with _one_line_errors():
        (described,) = _described(place, table)
    if as_json:
        print_json(described)
        return
    for label, key in (
        ("topic", "topic"), ("format", "format"), ("mode", "mode"), ("schema", "schema"), ("location", "location"),
        ("consumer group", "group"), ("rows", "rows"), ("rejected", "rejected"), ("files", "files"),
    ):  # fmt: skip
        say(f"{label}: {described[key]}")
    say(f"behind: {'not known' if described['behindRecords'] is None else described['behindRecords']}")
    print_table(("COLUMN", "TYPE"), [(c["name"], c["type"]) for c in described["columns"]])
    offsets = [(q, o) for queues in described["offsets"].values() for q, o in queues.items()]
    print_table(("QUEUE", "OFFSET"), offsets, right=("OFFSET",))
    for loss in described["lost"]:
        note(f"lost: {loss}")
    if described["problem"]:
        note(described["problem"])


@table_app.command("query")
@_of_tables
def query_table(
    place: TablePlace,
    as_json: bool,
    sql: Annotated[str, typer.Argument(help="A query: select count(*) from Orders", show_default=False)],
) -> None:
    """Run SQL (DuckDB's) over the tables, which have the names of their topics."""
    with _one_line_errors(), Progress("reading the tables"):
        from gantry_spark.tables import library

        namespace = place.namespace
        columns, rows = library.query(library.catalogs(place.properties()), sql, namespace)
    if as_json:
        print_json([dict(zip(columns, map(_plain, row), strict=True)) for row in rows])
        return
    print_table(columns, [tuple(map(_plain, row)) for row in rows])
    if len(rows) == library.MAX_ROWS:
        note(f"the first {library.MAX_ROWS:,} rows; add a limit")


def _plain(value: Any) -> Any:
    """Return a value as JSON and a terminal have it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@table_app.command("maintain")
@_of_tables
def maintain_table(
    place: TablePlace,
    as_json: bool,
    table: TableArgument,
    snapshots: Annotated[str, typer.Option(help="Age from which snapshots expire.")] = "3d",
    retention: Annotated[
        str | None,
        typer.Option(help="Age from which rows go, by the store time of their messages. Default: they stay."),
    ] = None,
) -> None:
    """Merge small files of a table and of its rejected rows, remove old rows, and let old snapshots expire."""
    snapshots_s = _seconds(snapshots, "--snapshots")
    rows_s = None if retention is None else _seconds(retention, "--retention")
    with _one_line_errors(), Progress(f"table {table}"):
        from gantry_spark.tables import library
        from gantry_spark.tables.commits import ends_of
        from gantry_spark.tables.maintenance import Rules, maintain, now_ms

        namespace = place.namespace
        opened, own = library.find(place.properties(), table, namespace)
        rules = Rules(now_ms(), int(snapshots_s * 1000), None if rows_s is None else int(rows_s * 1000))
        tables = [own, *library.rejected(opened, table, namespace)]
        done = [maintain(one, rules, ends_of) for one in tables]
    result: dict[str, Any] = {
        "table": table,
        "merged": sum(one.merged for one in done),
        "removedRows": sum(one.removed_rows for one in done),
        "expiredSnapshots": sum(one.expired for one in done),
        "deletedFiles": sum(one.deleted_files for one in done),
        "skipped": "; ".join(one.skipped for one in done if one.skipped),
    }
    if as_json:
        print_json(result)
        return
    say(
        f"{table}: {result['merged']:,} files merged, {result['removedRows']:,} rows removed, "
        f"{result['expiredSnapshots']:,} snapshots expired"
    )
    if result["skipped"]:
        note(result["skipped"])


def _of_resource(place: TablePlace, topic: str) -> dict[str, Any]:
    """Return what the BrokerTopic of a topic says of its table, as fields of a specification; empty: there is none."""
    from gantry_spark.tables.run import ordered

    from gantry_operator.platforms.local.topics import load_resources
    from gantry_operator.tables.schedule import WantedTable

    for one in load_resources(find_local(place.directory, place.name)).topics.values():
        if one.topic == topic and one.spec.table is not None:
            order = WantedTable(one.name, topic, one.spec.table).order("1m")
            return {**ordered(order), "freeze": True}
    return {}


@table_app.command("rebuild")
@_of_tables
def rebuild_table(
    place: TablePlace,
    as_json: bool,
    table: TableArgument,
    schema: Annotated[
        str | None,
        typer.Option(
            help="Another schema, as for run. Default: that of the table's BrokerTopic, or the one that it has.",
            show_default=False,
        ),
    ] = None,
    message: Annotated[str | None, typer.Option(help="Full name of the Protobuf message.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make a table again from the messages that the brokers still have. Rows of expired messages are gone then.

    It becomes what the BrokerTopic says by now: schema, mode and partitions.
    """
    with _one_line_errors():
        from gantry_spark.tables import library

        properties = place.properties()
        namespace = place.namespace
        opened, former = library.find(properties, table, namespace)
        if library.is_parquet(former):
            properties = _in_format(properties, "Parquet")
        spec = library.spec_of(former, place.spec(properties, topic=table, namespace=namespace))
        changes = _of_resource(place, spec.topic) if place.catalog is None else {}
        if schema is not None:
            changes |= {"schema": None, "definition": "", "message": ""} | _schema(schema, message)
        spec = replace(spec, **changes)
        if not spec.cluster().queues(spec.topic):
            raise CliError(
                f"no NameServer knows topic {spec.topic}: it does not exist, or no broker runs; its table stays"
            )
        if not yes and not typer.confirm(f"Drop table {table} and read topic {spec.topic} from its first message?"):
            raise CliError("nothing changed", Exit.USAGE)
        library.drop(opened, spec.topic, namespace)
        _run(spec, as_json)
