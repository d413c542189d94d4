"""The report's command line: arguments, session, exit code, and the pod's termination message."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from gantry_broker import logs
from gantry_broker.protocol.digits import whole_number

from gantry_spark.errors import GantrySparkError, error_message
from gantry_spark.page_secret import keep_page
from gantry_spark.report import Job, preflight, run
from gantry_spark.session import parse_conf, session

MAX_SUMMARY_BYTES: Final = 4000
"""Limit of a termination message in bytes. Kubernetes truncates at 4096."""
EXIT_FAILED: Final = 1
MAX_NOTES: Final = 3
MAX_NOTE_LENGTH: Final = 300
MAX_MISSING: Final = 5
"""Limits of the summary: the number of notes, and the characters of a note."""
EXIT_PERMANENT: Final = 3
"""Exit code of a run that failed and would fail again in the same way."""
MIN_MEMORY_KB: Final = 512 * 1024
"""Spark needs a heap of at least 450 MiB, and a part of the JVM's memory is no heap."""
_UNITS: Final = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}


def parse_hours(text: str) -> float:
    """Parse a duration such as `90m`, `12h` or `7d`, and return it in hours. Raises ValueError with the valid form."""
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", text.strip())
    if parts is None:
        raise ValueError(f"{text!r} is not a duration: write a number and s, m, h, d or w, for example 7d")
    return float(parts[1]) * _UNITS[parts[2]]


def parse_memory(text: str) -> str:
    """Parse a memory size such as `512m` or `2g` for Spark's JVM. Raises ValueError with the valid form."""
    parts = re.fullmatch(r"([0-9]{1,9})([kmgt])b?", text.strip().lower())
    if parts is None or int(parts[1]) << 10 * "kmgt".index(parts[2]) < MIN_MEMORY_KB:
        raise ValueError(f"{text!r}: write a whole number and m or g, at least 512m, for example 2g")
    return f"{parts[1]}{parts[2]}"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gantry_spark.main", description="The compaction report.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--path", action="append", default=[], help="store directory (repeat for more logs)")
    source.add_argument(
        "--brokers", help="HTTP addresses of brokers, separated by commas, each with its group: a=http://..."
    )
    source.add_argument("--cluster", help="NameServer addresses, separated by semicolons")
    parser.add_argument("--name", default="", help="name of the cluster in the report")
    parser.add_argument("--out", help="directory for reports and state, or a URL of a Hadoop file system")
    parser.add_argument("--topics", action="append", default=[], help="topic, with * and ? (repeat for more)")
    parser.add_argument("--since", help="only records of this period, for example 12h or 7d")
    parser.add_argument("--tombstones", default="24h", help="time for which compaction keeps tombstones (24h)")
    parser.add_argument(
        "--reserved-hours", type=_integer_from(1), help="retention in hours (default: the broker's, else 72)"
    )
    parser.add_argument("--top", type=_integer_from(1), default=20, help="number of hot keys per topic (20)")
    parser.add_argument(
        "--rate",
        type=_integer_from(0),
        default=0,
        help="limit of all reads from brokers, in bytes a second; 0: no limit",
    )
    parser.add_argument("--token-file", help="file with the brokers' admin token")
    parser.add_argument("--ca-file", help="file with the CAs of the cluster, for brokers with https://")
    parser.add_argument("--tls", action="store_true", help="NameServers and the brokers' ports for clients have TLS")
    parser.add_argument(
        "--credentials-file", help="JSON with accessKey and secretKey, for NameServers with authentication (--cluster)"
    )
    parser.add_argument("--endpoint", help="URL of a server that speaks the protocol of S3, for an archive (--path)")
    parser.add_argument("--region", help="region of the archive's bucket")
    parser.add_argument("--credentials", help="folder with a file for each credential of the archive")
    parser.add_argument("--key-file", help="file with the key of the archive's encryption, in Base64")
    parser.add_argument("--history", type=_integer_from(1), default=10, help="number of reports to keep (10)")
    parser.add_argument("--master", help="Spark master (default: SPARK_MASTER, else local[*])")
    parser.add_argument(
        "--conf", action="append", default=[], help="key=value of Spark's configuration (repeat for more)"
    )
    parser.add_argument("--termination-log", help="file for a short summary, for the pod's status")
    parser.add_argument("--page-secret", help="name of a Secret of this pod's namespace, for the page")
    return parser


def _integer_from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        parsed = whole_number(text, least)
        if parsed is None:
            raise argparse.ArgumentTypeError(f"{text!r}; write a whole number of at least {least}")
        return parsed

    return number


def _hours(text: str, option: str) -> float:
    try:
        return parse_hours(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def job_from_args(args: argparse.Namespace) -> Job:
    """Return the job for parsed arguments. Raises ValueError with the argument."""
    return Job(
        paths=tuple(args.path),
        brokers=tuple(b.strip() for b in (args.brokers or "").split(",") if b.strip()),
        cluster=args.cluster or "",
        name=args.name,
        out=args.out,
        topics=tuple(args.topics),
        window_hours=_hours(args.since, "--since") if args.since else None,
        tombstone_hours=_hours(args.tombstones, "--tombstones"),
        reserved_hours=args.reserved_hours,
        top=args.top,
        rate=args.rate,
        token_file=args.token_file,
        ca_file=args.ca_file,
        tls=args.tls,
        credentials_file=args.credentials_file,
        history=args.history,
        read_options={
            option: value
            for option, value in (
                ("endpoint", args.endpoint),
                ("region", args.region),
                ("credentials", args.credentials),
                ("keyFile", args.key_file),
            )
            if value is not None
        },
    )


def run_summary(report: dict[str, Any], out: str | None) -> dict[str, Any]:
    """Return the summary of a report for the cluster's status. Its size is bounded."""
    saving = [t for t in report["topics"] if t["savedBytes"] > 0][:3]
    return {
        "result": "Succeeded",
        "run": report["run"],
        "report": None if out is None else f"{out.rstrip('/')}/reports/{report['run']}/report.html",
        "asOf": report["asOf"],
        "durationSeconds": report["durationSeconds"],
        "scannedBytes": report["scan"]["scannedBytes"],
        "logBytes": report["scan"]["logBytes"],
        "records": report["totals"]["records"],
        "savedBytes": report["totals"]["savedBytes"],
        "topSavings": [
            {"topic": t["topic"], "savedBytes": t["savedBytes"], "recommendation": t["recommendation"]} for t in saving
        ],
        "missing": [part[:MAX_NOTE_LENGTH] for part in report["missing"][:MAX_MISSING]],
        "notes": [note[:MAX_NOTE_LENGTH] for note in report["notes"][:MAX_NOTES]],
    }


def write_termination_message(path: str | None, value: dict[str, Any]) -> None:
    """Write the pod's termination message if `path` is given. A failure to write it does not fail the run."""
    if path is None:
        return
    try:
        Path(path).write_bytes(orjson.dumps(value)[:MAX_SUMMARY_BYTES])
    except OSError as error:
        print(f"gantry: cannot write the summary to {path}: {error}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the report and exit.

    Exit codes: 0 success, 1 failure, 2 wrong arguments, 3 failure that a retry cannot fix.
    """
    parser = arguments()
    args = parser.parse_args(argv)
    try:
        job = job_from_args(args)
        conf = parse_conf(args.conf)
    except ValueError as error:
        parser.error(str(error))
    logs.configure("WARNING")
    logging.getLogger("gantry_spark").setLevel(logging.INFO)
    started = time.monotonic()
    try:
        size = preflight(job)
        spark = session(f"gantry-report {job.source}", args.master, conf, single_read_bytes=size)
        try:
            done = run(spark, job)
        finally:
            spark.stop()
    except Exception as error:
        message = error_message(error)
        print(f"gantry: the report failed: {message}", file=sys.stderr)
        if os.environ.get("GANTRY_TRACEBACK"):
            raise
        duration = round(time.monotonic() - started, 1)
        write_termination_message(
            args.termination_log, {"result": "Failed", "message": message[:1500], "durationSeconds": duration}
        )
        retry = not isinstance(error, GantrySparkError) or error.retry
        raise SystemExit(EXIT_FAILED if retry else EXIT_PERMANENT) from None
    if args.page_secret:
        keep_page(args.page_secret, done.page)
    summary = run_summary(done.report, job.out)
    write_termination_message(args.termination_log, summary)
    print(orjson.dumps(summary).decode())


if __name__ == "__main__":
    main()
