"""Programs from Maven Central and PyPI that measurements and tests put beside ours, fetched once into a cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from .java import INSTALL, JavaMissing

PYSPARK = "pyspark==4.1.1"
"""The last Spark for which Iceberg and Kafka's connector are published."""
POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>"
    "<dependencies>{}</dependencies></project>"
)
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gantry-jars"


def fetch(name: str, jars: Sequence[str]) -> list[Path]:
    """Returns jars (`group:artifact:version`) with what they need. Raises JavaMissing.

    `name`: of their folder in the cache.
    """
    folder = _cache() / name
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "complete"
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != "\n".join(jars):
            maven = shutil.which("mvn")
            if maven is None:
                raise JavaMissing(f"there is no Maven here: {INSTALL}")
            shutil.rmtree(folder)
            folder.mkdir()
            pom = folder / "pom.xml"
            pom.write_text(POM.format("".join(DEPENDENCY.format(*one.split(":")) for one in jars)))
            done = subprocess.run(
                [maven, "-q", "-B", "-ntp", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime",
                 f"-DoutputDirectory={folder}"], capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise JavaMissing(f"Maven cannot fetch {', '.join(jars)}: {(done.stdout + done.stderr)[-500:]}")
            mark.write_text("\n".join(jars))
    return sorted(folder.glob("*.jar"))


def spark41() -> Path:
    """Returns a Python with PySpark 4.1 and nothing of this project. Raises JavaMissing."""
    folder = _cache() / "spark41"
    folder.parent.mkdir(parents=True, exist_ok=True)
    mark = folder / "complete"
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != PYSPARK:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            python = folder / "bin" / "python"
            done = subprocess.run(
                [str(python), "-m", "pip", "install", "-q", PYSPARK, "pyarrow"], capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise JavaMissing(f"pip cannot install {PYSPARK}: {done.stderr[-500:]}")
            mark.write_text(PYSPARK)
    return folder / "bin" / "python"
