"""A reader of Iceberg tables that is not ours: Spark 4.1 with Iceberg's own runtime, in an environment of its own.

Run as a program it imports PySpark 4.1 and nothing of this project: it reads SQL as JSON lines, and answers each with
its rows as a line. The project's own environment has a later PySpark, for which Iceberg has no runtime.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

JARS = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0")


class Reader:
    """The running program."""

    def __init__(self, database: Path, warehouse: str) -> None:
        """Start it. `database`: that of a SQL catalog in SQLite; `warehouse`: its URL. Raises JavaMissing."""
        from benchmarks.rig import jars as rig

        python, jars = rig.spark41(), rig.fetch("iceberg", JARS)
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
