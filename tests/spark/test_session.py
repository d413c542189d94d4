"""A user sees what the JVM says, and not its line about incubator modules."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from gantry_spark.report import cluster_name
from gantry_spark.session import MODULE_WARNING, _copy_lines

LINE = MODULE_WARNING + b": jdk.incubator.vector\n"


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ([LINE], b""),
        ([b"a\n" + LINE + b"b\n"], b"a\nb\n"),
        ([LINE[:7], LINE[7:40], LINE[40:] + b"no end"], b"no end"),
        ([b"WARNING: other\n", b"\xff\n\n"], b"WARNING: other\n\xff\n\n"),
        ([b"half", b" a line", LINE], b"half a line" + LINE),
        ([b"half", b"\n", LINE, LINE[:9]], b"half\n" + LINE[:9]),
    ],
)
def test_the_warning_alone_is_left_out(pieces: list[bytes], wanted: bytes) -> None:
    source, fill = os.pipe()
    out, target = os.pipe()
    worker = threading.Thread(target=_copy_lines, args=(source, target))
    worker.start()
    for piece in pieces:
        os.write(fill, piece)
    os.close(fill)
    worker.join()
    found = b""
    while data := os.read(out, 4096):
        found += data
    os.close(out)
    assert found == wanted


def test_a_session_says_nothing_of_its_own(java: str) -> None:
    program = (
        "import sys; from gantry_spark.session import session; spark = session('t', 'local[1]'); "
        "print('python', file=sys.stderr); spark._jvm.System.err.println('jvm'); print(spark.range(3).count()); "
        "spark.stop()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=110)
    assert (done.stdout, sorted(done.stderr.splitlines())) == ("3\n", ["jvm", "python"])


def test_a_report_has_the_name_of_the_cluster() -> None:
    class Log:
        def __init__(self, cluster: str | None) -> None:
            if cluster is not None:
                self.cluster = cluster

    assert cluster_name([Log("demo"), Log("demo")]) == "demo"
    assert cluster_name([Log(None)]) is None
    assert cluster_name([Log("demo"), Log("other")]) is None
