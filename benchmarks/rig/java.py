"""The Java side: finds Java and Maven, builds `tests/interop/java` once, and returns class paths."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from .processes import error_line

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "interop" / "java"
OUT = ROOT / "build" / "interop"

# RocketMQ uses internals of the JDK for direct buffers; Java 17 forbids that without these flags.
JVM_OPENS = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("jdk.internal.ref", "java.nio", "sun.nio.ch", "java.util", "java.lang")
    ),
]


INSTALL = (
    "install a JDK of version 17 or later and Maven 3.8 or later (`python .ci/checks.py --tools`, as root, on Debian)"
)


class JavaMissing(Exception):
    """This machine cannot run the Java part; the text has the reason and the package to install."""


def java_version() -> int:
    """Returns the major version of `java` on the path. Raises JavaMissing."""
    java = shutil.which("java")
    if java is None:
        raise JavaMissing(f"there is no Java here: {INSTALL}")
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', text)
    if found is None:
        raise JavaMissing(f"`java -version` says {text.strip()[:100]!r}: {INSTALL}")
    return int(found.group(1))


def _stamp() -> str:
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.rglob("pom.xml"), *SOURCES.rglob("*.java")]):
        digest.update(str(path.relative_to(SOURCES)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build() -> Path:
    """Builds the Java programs if needed, and returns the folder of class paths. Raises JavaMissing.

    Only the first build (or the first after a change of the sources) needs Maven and its repository.
    """
    version = java_version()
    if version < 17:
        raise JavaMissing(f"Java {version} is too old: {INSTALL}")
    OUT.mkdir(parents=True, exist_ok=True)
    mark = OUT / "stamp"
    with (OUT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _stamp()
        if mark.exists() and mark.read_text() == wanted:
            return OUT / "classpath"
        maven = shutil.which("mvn")
        if maven is None:
            raise JavaMissing(f"there is no Maven here, which the first build needs: {INSTALL}")
        shutil.rmtree(OUT / "classpath", ignore_errors=True)
        done = subprocess.run(
            [maven, "-q", "-B", "-ntp", f"-Dgantry.out={OUT}", "package"],
            cwd=SOURCES, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            text = done.stdout + done.stderr
            if "resolve" in text or "transfer" in text:
                raise JavaMissing(
                    "Maven could not get RocketMQ's published artifacts: let it reach Maven Central, or name a mirror "
                    f"in ~/.m2/settings.xml. It says: {error_line(text)}"
                )
            raise RuntimeError(f"tests/interop/java does not build:\n{text[-4000:]}")
        mark.write_text(wanted)
    return OUT / "classpath"


def command(
    classpath: str | Path, main: str, *words: str, heap: str = "256m", flags: list[str] | None = None
) -> list[str]:
    """Returns the command line of one Java program.

    `classpath`: a module of tests/interop/java, e.g. "driver49", or a folder of jars.
    """
    jars = classpath if isinstance(classpath, Path) else build() / classpath
    return [
        shutil.which("java") or "java", f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", *JVM_OPENS, *(flags or []),
        "-cp", f"{jars}{os.sep}*", main, *words,
    ]  # fmt: skip
