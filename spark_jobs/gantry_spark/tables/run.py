"""One run of the tables of a cluster: commit those that are due, and report: `python -m gantry_spark.tables.run`.

The order (`gantry_broker.contracts.table_runs.RunOrder`) is an argument or a file. The report is written after each
table, so that the operator can follow the run. A run may end at any moment: the tables say where they end.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
from gantry_broker import logs
from gantry_broker.contracts.table_runs import Reason, RunOrder, RunReport, TableOrder, TableReport, to_text
from pyiceberg.exceptions import NotInstalledError, RESTError, ServerError

from gantry_spark.errors import GantrySparkError, SourceError, error_message, error_name
from gantry_spark.session import parse_conf
from gantry_spark.tables.commits import ends_of
from gantry_spark.tables.entry_cache import keep, with_behind
from gantry_spark.tables.fields import BadSchema
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.library import drop, entries
from gantry_spark.tables.maintenance import Rules, maintain
from gantry_spark.tables.offsets import NotContinued
from gantry_spark.tables.parquet import TYPE as PARQUET
from gantry_spark.tables.spec import BadRecord, CatalogFailed, SchemaProposed, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

MAX_SECRET: Final = 65_536
"""Bytes of one property in a Secret."""
CREDENTIALS: Final = ("accessKey", "secretKey")
EXIT_FAILED: Final = 1
LEAST_PAUSE_S: Final = 1.0
"""Seconds between two looks at the topic of a continuous table that has everything."""
AFTER_FAILURE_S: Final = 30.0
"""Seconds after which a lasting run tries a table again that failed."""
_IN_WORKERS: Final[dict[str, Reason]] = {
    "SourceError": "SourceFailed", "Broken": "SourceFailed", "Refused": "SourceFailed", "Expired": "SourceFailed",
    "BadSchema": "BadSchema",
}  # fmt: skip
"""Words for errors that Spark's workers raise, and that arrive here as an exception of Java's."""


class BadOrder(GantrySparkError):
    """An order that cannot be carried out."""

    retry = False


def secret_files(folder: str | None, names: Sequence[str] | None = None) -> dict[str, str]:
    """Return the files of a mounted Secret by name: all, or those in `names`. Raises BadOrder."""
    if folder is None:
        return {}
    contents = {}
    try:
        for path in sorted(Path(folder).iterdir()):
            if path.name.startswith(".") or not path.is_file() or (names is not None and path.name not in names):
                continue
            data = path.read_bytes()
            if len(data) > MAX_SECRET:
                raise BadOrder(f"{path} has more than {MAX_SECRET} bytes")
            contents[path.name] = data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadOrder(f"the Secret in {folder} cannot be read: {error}") from None
    missing = [name for name in names or () if not contents.get(name)]
    if missing:
        raise BadOrder(f"the Secret in {folder} lacks {', '.join(missing)}")
    return contents


def spec_of(order: RunOrder, table: TableOrder) -> TableSpec:
    """Return the specification of one table. Raises BadOrder, BadSchema."""
    options = secret_files(order.credentials, CREDENTIALS)
    options |= order.archive or {"via": "pull"}
    if order.tls:
        options["tls"] = "true"
    if order.ca_file is not None:
        options["caFile"] = order.ca_file
    catalog = {**order.catalog, **secret_files(order.catalog_secret)}
    if table.format == "Parquet":
        catalog["type"] = PARQUET
    return TableSpec(
        topic=table.topic,
        name_servers=order.name_servers,
        catalog=catalog,
        namespace=order.namespace,
        options=options,
        per_commit=table.per_commit,
        **ordered(table),
    )


def ordered(table: TableOrder) -> dict[str, Any]:
    """Return what an order says of the table itself, as fields of a specification. Raises BadSchema."""
    schema: Any = None
    if table.json_schema is not None:
        try:
            schema = orjson.loads(table.json_schema)
        except orjson.JSONDecodeError as error:
            raise BadSchema(f"the JSON Schema is no JSON: {error}") from None
    return {
        "freeze": table.freeze, "mode": table.mode, "kind": table.kind, "schema": schema,
        "definition": table.definition, "message": table.message, "on_bad_record": table.on_bad_record,
        "partition_by": tuple(table.partition_by),
    }  # fmt: skip


def reason_of(error: Exception) -> Reason:
    """Return the word for what a table failed by."""
    if isinstance(error, SchemaProposed):
        return "SchemaProposed"
    if isinstance(error, BadRecord):
        return "BadRecord"
    if isinstance(error, BadSchema):
        return "BadSchema"
    if isinstance(error, NotContinued):
        return "NotContinued"
    if isinstance(error, CatalogFailed | RESTError | ServerError | NotInstalledError):
        return "CatalogFailed"
    if isinstance(error, SourceError):
        return "SourceFailed"
    return _IN_WORKERS.get(error_name(error), "Failed")


class Run:
    """Carries an order out. `now` and `sleep` are in seconds; `wall_ms`: milliseconds since 1970."""

    def __init__(
        self,
        order: RunOrder,
        write: Callable[[RunReport], None],
        spark: SparkSession | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._order = order
        self._write = write
        self._spark = spark
        self._now = now
        self._sleep = sleep
        self._wall_ms = wall_ms
        self._reports: dict[str, TableReport] = {}

    def run(self) -> RunReport:
        """Take each table once, and again while the run lasts. Never raises for a table."""
        order = self._order
        end = self._now() + order.lasts_s
        due = {table.topic: self._now() for table in order.tables}
        tables = {table.topic: table for table in order.tables}
        while due:
            topic = min(due, key=lambda t: due[t])
            begin = max(due[topic], self._now())
            if begin > end and topic in self._reports:
                break
            self._sleep(max(0.0, begin - self._now()))
            self._reports[topic] = self._one(tables[topic])
            self._write(self._report())
            every = tables[topic].every_s
            if every is None or order.lasts_s == 0:
                del due[topic]
            elif self._reports[topic].reason not in ("Current", "Behind", "Dropped"):
                due[topic] = self._now() + max(every, AFTER_FAILURE_S)
            else:
                due[topic] = max(begin + every, self._now() + LEAST_PAUSE_S)
        return self._report()

    def _report(self) -> RunReport:
        return RunReport(run=self._order.run, tables=list(self._reports.values()))

    def _one(self, table: TableOrder) -> TableReport:
        before = self._reports.get(table.topic, TableReport(topic=table.topic, reason="Behind"))
        begun = self._wall_ms()
        try:
            job = TableJob(spec_of(self._order, table), self._spark)
            if table.drop:
                drop(job.catalog, *reversed(job.spec.identifier))
                _delete_group(job)
                return TableReport(topic=table.topic, reason="Dropped")
            outcomes = job.run()
            update: dict[str, Any] = {
                "reason": "Current",
                "message": job.unacknowledged,
                "success_ms": begun,
                "messages": before.messages + sum(o.rows + o.rejected for o in outcomes),
            }
            if table.maintain and before.maintained_ms is None:
                self._maintain(job, table)
                update["maintained_ms"] = begun
            update |= self._figures(job)
        except Exception as error:
            if not isinstance(error, GantrySparkError):
                logger.exception("table %s", table.topic)
            text = error_message(error)
            if isinstance(error, ValueError):
                text = f"{type(error).__name__}: {text}"
            update = {"reason": reason_of(error), "message": text}
            if isinstance(error, SchemaProposed):
                update["proposed"] = orjson.dumps(error.schema).decode()
            logger.warning("table %s: %s", table.topic, text)
        return before.model_copy(update=update)

    def _maintain(self, job: TableJob, order: TableOrder) -> None:
        rows_ms = None if order.rows_s is None else int(order.rows_s * 1000)
        rules = Rules(self._wall_ms(), int(order.snapshots_s * 1000), rows_ms)
        for table in job.both():
            done = maintain(table, rules, ends_of)
            logger.info("table %s: %s", ".".join(table.name()), done)

    @staticmethod
    def _figures(job: TableJob) -> dict[str, Any]:
        table = job.find()
        if table is None:
            return {"rows": 0, "behind": 0, "rejected": 0}
        own, *rejected = entries(job.catalog, table)
        keep(job.spec.catalog, (own, *rejected))
        if own.facts is None:
            return {}
        facts = with_behind(own.facts, job.cluster)
        return {
            "rows": facts["rows"],
            "size_bytes": facts["bytes"],
            "files": facts["files"],
            "behind": facts["behindRecords"],
            "rejected": facts["rejected"],
            "lost": len(facts["lost"]),
            "last_commit_ms": facts["lastCommitMs"],
        }


def _delete_group(job: TableJob) -> None:
    """Delete the consumer group of a table that was dropped: no drain shall wait for it.

    The group that tables of all catalogs had together stays. For a table of another catalog that has not run since, it
    may be the only one, and nothing here says whether there is such a table.
    """
    try:
        job.cluster.delete_group(job.spec.topic, job.spec.table_group)
    except SourceError as error:
        logger.warning("consumer group %s stays, and a drain waits for it: %s", job.spec.table_group, error)


def write_report(path: str, limit: int, report: RunReport) -> None:
    """Write a report to a file, whole or not at all. A device, as a pod's termination log, is written in place."""
    text = to_text(report, limit)
    target = Path(path)
    if target.parent == Path("/dev"):
        target.write_text(text)
        return
    part = target.with_suffix(".part")
    part.write_text(text)
    os.replace(part, target)


def carry_out(order: RunOrder) -> int:
    """Carry an order out and return the exit code."""

    def write(report: RunReport) -> None:
        write_report(order.report, order.report_limit, report)

    spark = None
    try:
        if order.spark:
            from gantry_spark.session import session

            spark = session("gantry tables", conf=order.conf)
        write(Run(order, write, spark).run())
    except Exception as error:
        logger.exception("the run failed")
        write(RunReport(run=order.run, problem=f"{type(error).__name__}: {error}"))
        return EXIT_FAILED
    finally:
        if spark is not None:
            spark.stop()
    return 0


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m gantry_spark.tables.run", description="Topics as tables.")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--order", help="the order as JSON")
    given.add_argument("--order-file", help="a file with it")
    parser.add_argument("--conf", action="append", default=[], help="key=value of Spark's configuration")
    args = parser.parse_args(argv)
    logs.configure("INFO")
    try:
        order = RunOrder.model_validate_json(args.order or Path(args.order_file).read_bytes())
        if args.conf:
            order = order.model_copy(update={"conf": {**order.conf, **parse_conf(args.conf)}})
    except (OSError, ValueError) as error:
        print(f"gantry: the order cannot be read: {error}", file=sys.stderr)
        return EXIT_FAILED
    return carry_out(order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
