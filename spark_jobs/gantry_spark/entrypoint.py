"""The entry point of the Spark image.

Commands: `report ...` and `tables ...` run a driver in client mode. `executor` is Spark's own command on Kubernetes.
`show ...` writes the last report to the log. Spark's own images use a shell script for this. The variables and the
command line of an executor are those of Spark 4.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from gantry_spark.errors import GantrySparkError
from gantry_spark.session import check_java

EXECUTOR: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION: Final = "SPARK_JAVA_OPT_"


def executor_command(environ: Mapping[str, str], java: str, cwd: str) -> list[str]:
    """Return the command line of an executor. Raises KeyError for a variable that is missing."""
    options = sorted((n for n in environ if n.startswith(_OPTION)), key=lambda n: int(n.removeprefix(_OPTION)))
    home = environ.get("SPARK_HOME") or _installed()
    paths = [environ.get("SPARK_CLASSPATH", ""), f"{home}/jars/*", environ.get("SPARK_EXTRA_CLASSPATH", ""), cwd]
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    return [
        java,
        *(environ[name] for name in options),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp", ":".join(p for p in paths if p),
        EXECUTOR,
        "--driver-url", environ["SPARK_DRIVER_URL"],
        "--executor-id", environ["SPARK_EXECUTOR_ID"],
        "--cores", environ["SPARK_EXECUTOR_CORES"],
        "--app-id", environ["SPARK_APPLICATION_ID"],
        "--hostname", environ["SPARK_EXECUTOR_POD_IP"],
        "--resourceProfileId", environ["SPARK_RESOURCE_PROFILE_ID"],
        "--podName", environ["SPARK_EXECUTOR_POD_NAME"],
    ]  # fmt: skip


def _installed() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def main(argv: Sequence[str]) -> NoReturn:
    """Run a command of the image, and exit with its code."""
    if argv[:1] == ["executor"]:
        try:
            command = executor_command(os.environ, check_java(), os.getcwd())
        except (GantrySparkError, KeyError) as error:
            print(f"gantry: the executor cannot start: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        print(f"gantry: {shlex.join(command)}", file=sys.stderr)
        os.execv(command[0], command)
    if argv[:1] == ["report"]:
        from gantry_spark.main import main as report

        report(argv[1:])
        raise SystemExit(0)
    if argv[:1] == ["tables"]:
        from gantry_spark.tables.run import main as tables

        raise SystemExit(tables(argv[1:]))
    if argv[:1] == ["show"]:
        from gantry_spark.showlog import main as show

        show(argv[1:])
        raise SystemExit(0)
    given = shlex.join(argv) or "nothing"
    print(
        f"gantry: start this image with 'report ...', 'tables ...', 'executor' or 'show ...', not with {given}",
        file=sys.stderr,
    )
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
