"""The commands and their error messages, as a user runs them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from gantry_operator.cli.analytics import opens
from gantry_spark.main import main, parse_memory
from gantry_spark.session import ARROW_OPTIONS, SHORT_RUN_LIMIT, SHORT_RUN_OPTIONS, NoJava, check_java, java_options

from tests.spark.reference_log import LogWriter, Message

pytestmark = pytest.mark.timeout(600)


def gantry(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gantry_operator.cli", *args], capture_output=True, text=True, check=False,
        env=os.environ | environ, timeout=500,
    )  # fmt: skip


def test_a_single_read_of_a_small_log_disables_the_second_compiler() -> None:
    assert java_options("-Xss2m", SHORT_RUN_LIMIT - 1) == f"{ARROW_OPTIONS} {SHORT_RUN_OPTIONS} -Xss2m"
    assert java_options("", SHORT_RUN_LIMIT) == java_options("", None) == ARROW_OPTIONS


def test_the_report_command_has_the_options_of_the_run() -> None:
    assert opens(None, None, None) == "gantry report"
    assert opens("demo", None, None) == "gantry report demo"
    assert opens(None, None, Path("my cluster")) == "gantry report --dir 'my cluster'"
    assert opens("demo", "here", Path("there")) == "gantry report --out here"


@pytest.mark.usefixtures("java")
def test_analyze_and_report(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "store")
    writer.extend(Message("Table", 0, b"value", f"k{i % 10}") for i in range(100))
    state = str(tmp_path / "state")
    done = gantry("analyze", str(tmp_path / "store"), "-o", "json", XDG_STATE_HOME=state)
    assert done.returncode == 0, done.stderr
    assert "WARN " not in done.stderr
    assert "log level" not in done.stderr, "Spark is quiet unless something is wrong"
    report = json.loads(done.stdout)
    (topic,) = report["topics"]
    assert (topic["topic"], topic["records"], topic["distinctKeys"], topic["supersededRecords"]) == (
        "Table",
        100,
        10,
        90,
    )
    assert topic["recommendation"] == "compact"
    page = gantry("report", str(tmp_path / "store"), "--save", str(tmp_path / "copy.html"), XDG_STATE_HOME=state)
    assert page.returncode == 0, page.stderr
    assert "Savings by topic" in (tmp_path / "copy.html").read_text()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("analyze", "/no/such/store"), 2, "/no/such/store does not exist; give a store directory"),
        (("analyze", "nobody"), 3, "no local cluster is called 'nobody'"),
        (("report", "."), 1, "run gantry analyze"),
        (("compact", "Table", "."), 2, "--dry-run, or --out DIR"),
        (("report", "--out", "s3a://reports/demo"), 2, "--out: s3a://reports/demo is not on this machine"),
        (("analyze", ".", "--memory", "abc"), 2, "--memory: 'abc': write a whole number and m or g, at least 512m"),
        (("compact", "Table", ".", "--dry-run", "--memory", "511m"), 2, "--memory: '511m': write a whole number"),
        (
            ("analyze", "http://127.0.0.1:1,http://127.0.0.1:abc"),
            1,
            "option brokers: 'http://127.0.0.1:abc' is not an address; write http://HOST:PORT",
        ),
        (("analyze", ".", "--since", "soon"), 2, "--since: 'soon' is not a duration"),
        (("compact", "Table", ".", "--dry-run", "--as-of", "noon"), 2, "write a time such as"),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, args: tuple[str, ...], code: int, says: str) -> None:
    done = gantry(*args, XDG_STATE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--conf", "spark.driver.memory"), "--conf: 'spark.driver.memory'; write key=value"),
        (("--since", "soon"), "--since: 'soon' is not a duration"),
        (("--tombstones", "1y"), "--tombstones: '1y' is not a duration"),
        (("--history", "0"), "--history: '0'; write a whole number of at least 1"),
        (("--rate", "-1"), "--rate: '-1'; write a whole number of at least 0"),
    ],
)
def test_an_error_names_the_wrong_argument(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--path", ".", *args])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_memory_sizes_for_java() -> None:
    assert [parse_memory(text) for text in ("1g", "512M", "2GB", "600000k", " 1t ")] == [
        "1g",
        "512m",
        "2g",
        "600000k",
        "1t",
    ]
    for text in ("", "1", "1.5g", "450m", "1000k", "g", "-1g", "1g 2g"):
        with pytest.raises(ValueError, match="write a whole number"):
            parse_memory(text)


def test_report_accepts_the_urls_of_analyze(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("page")
    for out in (f"file://{tmp_path}", f"file:{tmp_path}", str(tmp_path)):
        done = gantry("report", "--out", out, "--save", str(tmp_path / "copy.html"))
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "copy.html").read_text() == "page"


def test_files_without_records_fail_before_spark_starts(tmp_path: Path) -> None:
    """Spark could not start without Java."""
    folder = tmp_path / "store" / "commitlog"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(random.Random(5).randbytes(3_000_000))
    (folder / "notes.txt").write_text("foreign")
    store = str(tmp_path / "store")
    for command in (("analyze", store), ("compact", "Table", store, "--dry-run")):
        done = gantry(*command, JAVA_HOME="/nowhere")
        assert done.returncode == 1
        assert "store holds no commit log: none of its 3,000,000 bytes, from offset 0 of store on" in done.stderr
        assert "Java" not in done.stderr


def test_an_error_names_the_java_to_install(tmp_path: Path) -> None:
    LogWriter(tmp_path / "store").append(Message())
    done = gantry("analyze", str(tmp_path / "store"), JAVA_HOME=str(tmp_path / "nowhere"), XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "Spark 4 needs Java 17 or 21" in done.stderr
    with pytest.raises(NoJava, match="no java on the PATH"):
        check_java({"PATH": str(tmp_path)})
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(NoJava, match="is version 11"):
        check_java({"JAVA_HOME": str(tmp_path)})


def test_the_job_writes_a_termination_message(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    done = subprocess.run(
        [sys.executable, "-m", "gantry_spark.main", "--path", str(tmp_path), "--termination-log", str(message),
         "--master", "local[1]"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    left = json.loads(message.read_text())
    assert left["result"] == "Failed"
    assert left["message"].startswith(f"no commit log in {tmp_path}")
