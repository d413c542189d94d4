"""Storage of reports and their state: a local directory, or a path of a Hadoop file system."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gantry_spark.errors import OutputBusy, OutputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OutputStore(Protocol):
    """A directory. Names are relative, with '/'. All methods raise OutputError with the path and the reason."""

    def url(self, name: str = "") -> str:
        """Return the URL of a file or directory for Spark."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        ...

    def names(self, name: str) -> list[str]:
        """Return the sorted names in a directory; an empty list if it does not exist."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file or a directory tree, if it exists."""
        ...


def is_local(root: str) -> bool:
    """Return whether an output is a local directory."""
    return "://" not in root or root.startswith("file:")


def local_path(root: str) -> Path:
    """Return the local directory of an output, given as a path or as a URL."""
    return Path(root.removeprefix("file://").removeprefix("file:")).expanduser().absolute()


def escape_glob(url: str) -> str:
    """Escape the glob characters of a URL, since Spark expands patterns in the paths it reads."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", url)


class LocalOutputStore:
    """A local directory. It is created if it does not exist."""

    def __init__(self, root: str) -> None:
        self.root = local_path(root)
        with self._output_errors(""):
            self.root.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".writable-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()

    @contextmanager
    def _output_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"output {self.root / name} cannot be written: {error.strerror or error}") from None

    def url(self, name: str = "") -> str:
        return f"file://{self.root / name}"

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(f"{self.root / name} cannot be read: {error.strerror}") from None

    def write(self, name: str, data: bytes) -> None:
        path = self.root / name
        with self._output_errors(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}")
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)

    def names(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory against a second run. Raises OutputBusy if another run holds the lock."""
        with self._output_errors(".lock"), (self.root / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputBusy(
                    f"another run is writing to {self.root}; wait for it, or give another output"
                ) from None
            yield


class HadoopOutputStore:
    """A directory of a Hadoop file system, such as s3a:// or hdfs://."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root.rstrip("/")
        self._jvm: Any = spark.sparkContext._jvm
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        with self._output_errors(""):
            self._fs = self._path("").getFileSystem(configuration)
            self._fs.mkdirs(self._path(""))

    @contextmanager
    def _output_errors(self, name: str) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            reason = str(error.java_exception).splitlines()[0]
            raise OutputError(f"output {self.url(name)} is not usable: {reason}") from None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.url(name))

    def url(self, name: str = "") -> str:
        return f"{self.root}/{name}" if name else self.root

    def read(self, name: str) -> bytes | None:
        with self._output_errors(name):
            path = self._path(name)
            if not self._fs.exists(path):
                return None
            stream = self._fs.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write(self, name: str, data: bytes) -> None:
        with self._output_errors(name):
            part = self._path(f"{name}.part")
            stream = self._fs.create(part, True)
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()
            self._fs.delete(self._path(name), False)
            self._fs.rename(part, self._path(name))

    def names(self, name: str) -> list[str]:
        with self._output_errors(name):
            path = self._path(name)
            if not self._fs.exists(path):
                return []
            return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def delete(self, name: str) -> None:
        with self._output_errors(name):
            self._fs.delete(self._path(name), True)


def open_output_store(spark: SparkSession, root: str) -> OutputStore:
    """Open the output directory `root`. Raises OutputError if it cannot be created or written."""
    return LocalOutputStore(root) if is_local(root) else HadoopOutputStore(spark, root)


@contextmanager
def lock_output(root: str) -> Iterator[None]:
    """Lock a local output directory against a second run. In Kubernetes the CronJob's concurrency policy does this."""
    if is_local(root):
        with LocalOutputStore(root).locked():
            yield
    else:
        yield
