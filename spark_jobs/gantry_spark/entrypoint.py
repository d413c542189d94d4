"""The entry point of the Spark image.

Commands: `report ...` and `tables ...` run a driver in client mode. `executor` and `driver` are Spark's own commands on
Kubernetes: a `driver` that Spark's operator has made runs one of the others, with that operator's settings. `show ...`
writes the last report to the log. Spark's own images use a shell script for this. The variables and the command lines
are those of Spark 4.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from gantry_spark.errors import GantrySparkError
from gantry_spark.session import check_java

EXECUTOR: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION: Final = "SPARK_JAVA_OPT_"
_LINES: Final = re.compile(r"(?:[^\\\r\n]|\\(?:\r\n|.))+", re.DOTALL)
"""Matches a logical line of a properties file: an escaped end of a line continues it."""
_ENTRY: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


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


def driver_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command of a driver that Spark's operator has made, with its settings as options.

    `argv`: `--properties-file FILE --class CLASS RESOURCE COMMAND ...`. Raises ValueError, OSError.
    """
    options, rest = {}, list(argv)
    while rest and rest[0].startswith("--"):
        if len(rest) < 2:
            raise ValueError(f"{rest[0]} has no value")
        options[rest[0]] = rest[1]
        rest = rest[2:]
    if "--properties-file" not in options or len(rest) < 2:
        raise ValueError("a driver needs --properties-file, a resource and a command")
    conf = java_properties(Path(options["--properties-file"]).read_text("iso-8859-1"))
    conf = {key: value for key, value in conf.items() if key.startswith("spark.")}
    # The JVM starts in this pod, by this process.
    conf |= {"spark.submit.deployMode": "client", "spark.driver.bindAddress": environ["SPARK_DRIVER_BIND_ADDRESS"]}
    return [*rest[1:], *(word for key, value in sorted(conf.items()) for word in ("--conf", f"{key}={value}"))]


def java_properties(text: str) -> dict[str, str]:
    """Return the entries of a properties file of Java. Raises ValueError for an escape that is none."""
    entries: dict[str, str] = {}
    for line in _LINES.findall(text):
        line = re.sub(r"\\(?:\r\n|\r|\n)[ \t\f]*", "", line).lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        matched = _ENTRY.fullmatch(line)
        if matched is not None:
            entries[_unescaped(matched[1])] = _unescaped(matched[2])
    return entries


def _unescaped(text: str) -> str:
    def one(escape: re.Match[str]) -> str:
        if escape[1] is not None:
            return chr(int(escape[1], 16))
        if escape[2] == "u":
            raise ValueError(f"{text!r} has an escape that is none")
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape[2], escape[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", one, text, flags=re.DOTALL)


def _installed() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def main(argv: Sequence[str]) -> NoReturn:
    """Run a command of the image, and exit with its code."""
    if argv[:1] == ["driver"]:
        try:
            argv = driver_arguments(argv[1:], os.environ)
        except (ValueError, OSError, KeyError) as error:
            print(f"gantry: the driver cannot start: {error}", file=sys.stderr)
            raise SystemExit(1) from None
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
        f"gantry: start this image with 'report ...', 'tables ...', 'driver ...', 'executor' or 'show ...', not with "
        f"{given}",
        file=sys.stderr,
    )
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
