"""A reader of Iceberg tables that is not ours: Spark 4.1 with Iceberg's own runtime, in an environment of its own.

Run as a program it imports PySpark 4.1 and nothing of this project: it reads SQL as JSON lines, and answers each with
its rows as a line. The project's own environment has a later PySpark, for which Iceberg has no runtime.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

PYSPARK = "pyspark==4.1.4"
JARS = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0")
POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>"
    "{}</project>"
)


class NoReader(Exception):
    """The environment cannot be made here. The text says what is missing."""


def fetch_jars(folder: Path, jars: tuple[str, ...]) -> list[Path]:
    """Return jars from Maven's repository, with what they need, in a folder of their own. Raises NoReader."""
    mark = folder / "complete"
    if not mark.exists() or mark.read_text() != "\n".join(jars):
        maven = shutil.which("mvn")
        if maven is None:
            raise NoReader("there is no Maven here: install Maven 3.8 or later")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        parts = [one.split(":") for one in jars]
        wanted = "".join(
            f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version></dependency>"
            for g, a, v in parts
        )
        pom = folder / "pom.xml"
        pom.write_text(POM.format(f"<dependencies>{wanted}</dependencies>"))
        done = subprocess.run(
            [maven, "-q", "-B", "-ntp", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime",
             f"-DoutputDirectory={folder}"], capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NoReader(f"Maven cannot fetch {', '.join(jars)}: {(done.stdout + done.stderr)[-500:]}")
        mark.write_text("\n".join(jars))
    return sorted(folder.glob("*.jar"))


def environment() -> tuple[Path, list[Path]]:
    """Return the Python with PySpark 4.1 and Iceberg's jars. The first call fetches them. Raises NoReader."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gantry-iceberg-reader"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = cache / "venv" / "bin" / "python"
        mark = cache / "venv" / "complete"
        if not mark.exists() or mark.read_text() != PYSPARK:
            shutil.rmtree(cache / "venv", ignore_errors=True)
            venv.create(cache / "venv", with_pip=True)
            done = subprocess.run(
                [str(python), "-m", "pip", "install", "-q", PYSPARK], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise NoReader(f"pip cannot install {PYSPARK}: {done.stderr[-500:]}")
            mark.write_text(PYSPARK)
        return python, fetch_jars(cache / "jars", JARS)


class Reader:
    """The running program. `catalog`: a SQL catalog's database in SQLite; `warehouse`: its URL."""

    def __init__(self, database: Path, warehouse: str) -> None:
        python, jars = environment()
        words = [str(python), "-I", __file__, str(database), warehouse, ",".join(map(str, jars))]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def sql(self, text: str) -> list[Any]:
        """Return the rows of a query: binary values in Base64, as Spark writes JSON."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(text) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                assert "error" not in found, found["error"]
                return [json.loads(row) for row in found["rows"]]
        raise AssertionError("the reader ended")

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main(database: str, warehouse: str, jars: str) -> None:
    """Answer queries from standard input."""
    from pyspark.sql import SparkSession

    catalog = "spark.sql.catalog.gantry"
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)  # type: ignore[attr-defined]
    for name, value in {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        # PyIceberg's SQL catalog has the tables of Iceberg's JDBC catalog.
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{database}",
        f"{catalog}.warehouse": warehouse,
        f"{catalog}.jdbc.schema-version": "V1",
        # Another process writes to the tables.
        f"{catalog}.cache-enabled": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        try:
            found: dict[str, Any] = {"rows": spark.sql(json.loads(line)).toJSON().collect()}
        except Exception as error:
            found = {"error": str(error)[:2000]}
        print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
