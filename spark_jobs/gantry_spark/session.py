"""A Spark session for the jobs, and the Java that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantry_spark.errors import GantrySparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING: Final = Path(__file__).with_name("log4j2-local.properties")
JAVA_VERSIONS: Final = (17, 21)
INSTALL: Final = (
    "Spark 4 needs Java 17 or 21. Install it, for example `apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "`dnf install java-21-openjdk-headless` (Fedora, RHEL) or `brew install openjdk@21` (macOS), and set JAVA_HOME if "
    "it is not on the PATH. (The JRE wheels on PyPI lack the module jdk.incubator.vector, which Spark 4 insists on.)"
)
ARROW_OPTIONS: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow checks bounds and validity at every value that Spark takes from a batch; Spark has checked validity before, and
its row numbers are those of the batch."""
SHORT_RUN_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a JVM that makes one report of a small log and ends: the second compiler would cost more than it gives back. With
the first alone a JVM reserves only 48 MiB for code, which the classes that Spark makes can fill; then tasks fail."""
SHORT_RUN_LIMIT: Final = 2 << 30
"""Bytes of log below which that is so: measured to be equal at twice this (docs/analytics.md)."""
_VERSION = re.compile(r'version "(\d+)')


class NoJava(GantrySparkError):
    """There is no Java that Spark can run on."""


def check_java(environ: Mapping[str, str] | None = None) -> str:
    """The path of the Java that Spark will use. Raises NoJava: what was found and what to install."""
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
    found = _VERSION.search(output.stderr + output.stdout)
    if found is None or int(found[1]) not in JAVA_VERSIONS:
        raise NoJava(f"{java} is version {found[1] if found else 'unknown'}. {INSTALL}")
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=30, check=False).stdout
    if modules and "jdk.incubator.vector" not in modules:
        raise NoJava(f"{java} lacks the module jdk.incubator.vector. {INSTALL}")
    return java


def local_conf(memory: str = "1g") -> dict[str, str]:
    """Settings for a session on this machine: small, quiet, and bound to 127.0.0.1."""
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
    """The options of a session's JVMs; those that are `given` come last, so that they win. `once`: as in `session`."""
    small = single_read_bytes is not None and single_read_bytes < SHORT_RUN_LIMIT
    return " ".join(option for option in (ARROW_OPTIONS, SHORT_RUN_OPTIONS if small else "", given) if option)


def session(
    name: str, master: str | None = None, conf: Mapping[str, str] | None = None, single_read_bytes: int | None = None
) -> SparkSession:
    """A session with the `commitlog` source. Without `master`: SPARK_MASTER, else local[*].

    `once`: bytes of the log, for a session that reads it a single time (`ONCE`) rather than query after query. Raises
    NoJava.
    """
    check_java()
    # Workers must be this Python with these packages, not whatever python3 is on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from gantry_spark import register

    settings: dict[str, str] = {}
    chosen = master or os.environ.get("SPARK_MASTER")
    given = dict(conf or {})
    if chosen is None and "spark.master" not in given:
        chosen = "local[*]"
    if chosen is not None and chosen.startswith("local"):
        settings |= local_conf()
        # Spark's scripts ask for it before they read any configuration, and warn of what the host's name leads to.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings |= {
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "gantry_spark.daemon",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        # Rows of five kinds go to five files side by side instead of being sorted first.
        "spark.sql.maxConcurrentOutputFileWriters": "16",
    }
    settings |= given
    for key in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        settings[key] = java_options(settings.get(key, ""), single_read_bytes)
    builder = SparkSession.builder.appName(name)
    if chosen is not None:
        builder = builder.master(chosen)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def cores(spark: SparkSession) -> int:
    """Tasks that run side by side once all executors are there; Spark itself counts those that are there so far."""
    context = spark.sparkContext
    conf = context.getConf()
    executors = int(conf.get("spark.executor.instances", "0") or "0")
    if executors and not (context.master or "local").startswith("local"):
        return executors * int(conf.get("spark.executor.cores", "1") or "1")
    return int(context.defaultParallelism)
