"""Writes the last report to the pod's log, to export it from a volume that only pods can mount.

The report is compressed and encoded in base64 between two marker lines, since a log consists of text lines and other
programs may write to it.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import sys
from collections.abc import Sequence
from typing import Final

from gantry_spark.errors import GantrySparkError, SourceError, error_message
from gantry_spark.main import EXIT_FAILED, write_termination_message
from gantry_spark.output_store import LocalOutputStore, OutputStore, is_local, open_output_store
from gantry_spark.session import session

BEGIN: Final = "-----BEGIN GANTRY REPORT-----"
END: Final = "-----END GANTRY REPORT-----"
_LINE: Final = 12_288
"""Compressed bytes on a line: 16 KiB of text, the line limit of container runtimes."""


def to_lines(data: bytes) -> list[str]:
    """Encode a file as lines. `gantry_operator.cli.analytics_on_demand` decodes them."""
    packed = gzip.compress(data, mtime=0)
    body = (base64.b64encode(packed[i : i + _LINE]).decode() for i in range(0, len(packed), _LINE))
    return [BEGIN, *body, END]


def main(argv: Sequence[str]) -> None:
    """Write a file of the last report in `--out` to standard output. Exits with 1 if there is none."""
    parser = argparse.ArgumentParser(prog="show", description="Writes the last report as lines of a log.")
    parser.add_argument("--file", required=True, choices=("report.json", "report.html"), help="file of the report")
    parser.add_argument("--out", required=True, help="directory of the reports, or a URL of a Hadoop file system")
    parser.add_argument(
        "--conf", action="append", default=[], help="key=value of Spark's configuration (repeat for more)"
    )
    parser.add_argument("--termination-log", help="file for a short summary, for the pod's status")
    args = parser.parse_args(argv)
    try:
        data = _read(args.out, args.file, dict(pair.split("=", 1) for pair in args.conf))
    except (GantrySparkError, ValueError) as error:
        print(f"gantry: {error_message(error)}", file=sys.stderr)
        write_termination_message(args.termination_log, {"result": "Failed", "message": error_message(error)})
        raise SystemExit(EXIT_FAILED) from None
    print("\n".join(to_lines(data)), flush=True)


def _read(out: str, name: str, conf: dict[str, str]) -> bytes:
    if is_local(out):
        return _file(LocalOutputStore(out), name)
    # Only the file system's configuration is needed, and no executors.
    kept = {k: v for k, v in conf.items() if not k.startswith(("spark.master", "spark.kubernetes.", "spark.executor."))}
    spark = session("gantry-show", "local[1]", kept)
    try:
        return _file(open_output_store(spark, out), name)
    finally:
        spark.stop()


def _file(store: OutputStore, name: str) -> bytes:
    data = store.read(name)
    if data is None:
        raise SourceError(f"{store.url()} holds no report yet")
    return data
