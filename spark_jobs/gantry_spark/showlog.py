"""The last report as lines of a log: the way out of a volume that only a pod of the cluster can mount.

It is compressed and written between two marker lines, in base64, since logs are lines of text and other programs may
write to the same one.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import sys
from collections.abc import Sequence
from typing import Final

from gantry_spark.errors import GantrySparkError, SourceError
from gantry_spark.main import FAILED, leave, plain
from gantry_spark.places import LocalPlace, Place, is_local, place_of
from gantry_spark.session import session

BEGIN: Final = "-----BEGIN GANTRY REPORT-----"
END: Final = "-----END GANTRY REPORT-----"
_LINE: Final = 12_288
"""Compressed bytes on a line: 16 KiB of text, where container runtimes cut lines."""


def to_lines(data: bytes) -> list[str]:
    """A file as lines. `gantry_operator.cli.analytics_on_demand` reads them."""
    packed = gzip.compress(data, mtime=0)
    body = (base64.b64encode(packed[i : i + _LINE]).decode() for i in range(0, len(packed), _LINE))
    return [BEGIN, *body, END]


def main(argv: Sequence[str]) -> None:
    """Write a file of the last report in `--out` to standard output; exits with 1 when there is none."""
    parser = argparse.ArgumentParser(prog="show", description="The last report, as lines of a log.")
    parser.add_argument("--file", required=True, choices=("report.json", "report.html"), help="which file of it")
    parser.add_argument("--out", required=True, help="directory of the reports, or an URL of a Hadoop file system")
    parser.add_argument("--conf", action="append", default=[], help="key=value of Spark's configuration (again)")
    parser.add_argument("--termination-log", help="write a short summary there, for the pod's status")
    args = parser.parse_args(argv)
    try:
        data = _read(args.out, args.file, dict(pair.split("=", 1) for pair in args.conf))
    except (GantrySparkError, ValueError) as error:
        print(f"gantry: {plain(error)}", file=sys.stderr)
        leave(args.termination_log, {"result": "Failed", "message": plain(error)})
        raise SystemExit(FAILED) from None
    print("\n".join(to_lines(data)), flush=True)


def _read(out: str, name: str, conf: dict[str, str]) -> bytes:
    if is_local(out):
        return _file(LocalPlace(out), name)
    # Only what the file system needs: no executors.
    kept = {k: v for k, v in conf.items() if not k.startswith(("spark.master", "spark.kubernetes.", "spark.executor."))}
    spark = session("gantry-show", "local[1]", kept)
    try:
        return _file(place_of(spark, out), name)
    finally:
        spark.stop()


def _file(place: Place, name: str) -> bytes:
    data = place.read(name)
    if data is None:
        raise SourceError(f"there is no report in {place.url()} yet")
    return data
