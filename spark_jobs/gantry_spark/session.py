"""The Spark session of the jobs, and the check of its Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantry_spark.errors import GantrySparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING: Final = Path(__file__).with_name("log4j2-local.properties")
JAVA_VERSIONS: Final = (17, 21)
INSTALL: Final = (
    "Spark 4 needs Java 17 or 21. Install it, for example `apt-get install openjdk-21-jre-headless` (Ubuntu, Debian "
    "13, or openjdk-17-jre-headless in Debian 12), "
    "`dnf install java-21-openjdk-headless` (Fedora, RHEL) or `brew install openjdk@21` (macOS), and set JAVA_HOME if "
    "it is not on the PATH. (The JRE wheels on PyPI lack the module jdk.incubator.vector, which Spark 4 requires.)"
)
ARROW_OPTIONS: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Disables Arrow's bounds and null checks, since Spark has already made them for each batch."""
SHORT_RUN_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Options of a JVM that makes one report of a small log: without the second compiler, whose cost exceeds its gain.
With the first compiler alone a JVM reserves only 48 MiB for code. Generated classes can exceed that, and tasks fail.
"""
SHORT_RUN_LIMIT: Final = 2 << 30
"""Bytes of log below which these options pay off. They are even at twice this size (docs/analytics.md)."""
MODULE_WARNING: Final = b"WARNING: Using incubator modules"
_VERSION = re.compile(r'version "([0-9]+)')


class NoJava(GantrySparkError):
    """There is no Java that Spark supports."""


def check_java(environ: Mapping[str, str] | None = None) -> str:
    """Return the path of the Java for Spark. Raises NoJava with the Java found and the Java to install."""
    env = os.environ if environ is None else environ
    home = env.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=env.get("PATH"))
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, but {java} does not exist" if home else "no java on the PATH"
        raise NoJava(f"{where}. {INSTALL}")
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoJava(f"{java} does not start: {error}. {INSTALL}") from None
    version = _VERSION.search(output.stderr + output.stdout)
    if version is None or int(version[1]) not in JAVA_VERSIONS:
        raise NoJava(f"{java} is version {version[1] if version else 'unknown'}. {INSTALL}")
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=30, check=False).stdout
    if modules and "jdk.incubator.vector" not in modules:
        raise NoJava(f"{java} lacks the module jdk.incubator.vector. {INSTALL}")
    return java


def local_conf(memory: str = "1g") -> dict[str, str]:
    """Return the settings of a local session: small, quiet, and bound to 127.0.0.1."""
    return {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    }


def java_options(given: str, single_read_bytes: int | None) -> str:
    """Return the options of a session's JVMs. Options in `given` come last and win.

    `single_read_bytes`: as in `session`.
    """
    small = single_read_bytes is not None and single_read_bytes < SHORT_RUN_LIMIT
    return " ".join(option for option in (ARROW_OPTIONS, SHORT_RUN_OPTIONS if small else "", given) if option)


def session(
    name: str, master: str | None = None, conf: Mapping[str, str] | None = None, single_read_bytes: int | None = None
) -> SparkSession:
    """Return a session with the `commitlog` source. Default of `master`: SPARK_MASTER, then local[*].

    `single_read_bytes`: bytes of the log, for a session that reads it only once (see `SHORT_RUN_OPTIONS`). Raises
    NoJava.
    """
    check_java()
    # Workers must use this Python with these packages, not the first python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, str] = {}
    chosen = master or os.environ.get("SPARK_MASTER")
    given = dict(conf or {})
    if chosen is None and "spark.master" not in given:
        chosen = "local[*]"
    if chosen is not None and chosen.startswith("local"):
        settings |= local_conf()
        # Spark's scripts need this before they read any configuration. It also prevents a warning about the host name.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings |= {
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "gantry_spark.daemon",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        # Writes the files of five kinds of rows side by side, without a sort.
        "spark.sql.maxConcurrentOutputFileWriters": "16",
    }
    settings |= given
    for key in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        settings[key] = java_options(settings.get(key, ""), single_read_bytes)
    with without_module_warning():
        return _start(name, chosen, settings)


def _start(name: str, chosen: str | None, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    from gantry_spark import register

    builder = SparkSession.builder.appName(name)
    if chosen is not None:
        builder = builder.master(chosen)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


@contextmanager
def without_module_warning() -> Iterator[None]:
    """Keep the JVM's line about incubator modules from a user, who can do nothing about it.

    The JVM writes it before it reads any option, so a thread copies the standard error of a JVM that starts here, for
    as long as the JVM runs.
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        yield  # The JVM runs already.
        return
    sys.stderr.flush()
    source, pipe = os.pipe()
    own = os.dup(2)
    os.dup2(pipe, 2)
    os.close(pipe)
    threading.Thread(target=_copy_lines, args=(source, os.dup(own)), daemon=True, name="jvm-stderr").start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(own, 2)
        os.close(own)


def _copy_lines(source: int, target: int) -> None:
    """Copy bytes until their end, without the warning's line. A line that may become it waits for its end."""
    held = b""
    begins = True  # Whether the next byte begins a line.
    while data := os.read(source, 65_536):
        lines = (held + data).splitlines(keepends=True)
        if not begins:
            os.write(target, lines.pop(0))
            lines = lines or [b""]
        held = b""
        if MODULE_WARNING.startswith(lines[-1]) or lines[-1].startswith(MODULE_WARNING):
            held = b"" if lines[-1].endswith(b"\n") else lines.pop()
        begins = bool(held) or data.endswith(b"\n")
        kept = b"".join(line for line in lines if not line.startswith(MODULE_WARNING))
        while kept:
            kept = kept[os.write(target, kept) :]
    os.write(target, held)
    os.close(source)
    os.close(target)


def cores(spark: SparkSession) -> int:
    """Return the number of parallel tasks with all executors. Spark itself counts only the executors so far."""
    context = spark.sparkContext
    conf = context.getConf()
    executors = int(conf.get("spark.executor.instances", "0") or "0")
    if executors and not (context.master or "local").startswith("local"):
        return executors * int(conf.get("spark.executor.cores", "1") or "1")
    return int(context.defaultParallelism)


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `key=value` pairs of Spark's configuration. Raises ValueError with the argument."""
    for pair in pairs:
        if not re.match(r"[^=\s]+=", pair):
            raise ValueError(f"--conf: {pair!r}; write key=value, for example spark.driver.memory=2g")
    return dict(pair.split("=", 1) for pair in pairs)
