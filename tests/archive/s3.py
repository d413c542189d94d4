"""A real S3 server for tests: versitygw, which serves a folder, built from its module and run on a free port."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.rig import golang
from tests.support.free_ports import free_port

SOURCES = Path(__file__).with_name("s3server")
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
START_S = 90.0


@dataclass(frozen=True)
class S3Server:
    """The server's port, its folder (buckets are folders in it) and its keys."""

    port: int
    folder: Path
    access_key: str = "tests"
    secret_key: str = "of-the-archive"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bucket(self, name: str) -> str:
        """Make a bucket and return the URL of an archive in it."""
        (self.folder / name).mkdir(exist_ok=True)
        return f"s3://{name}/archive"

    def credentials(self, folder: Path) -> Path:
        """Write the keys as a mounted Secret has them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "accessKeyId").write_text(self.access_key)
        (folder / "secretAccessKey").write_text(self.secret_key + "\n")
        return folder


def build() -> Path:
    """Return the program, and build it once. Raises `golang.GoMissing`."""
    return golang.build(SOURCES, PACKAGE, "versitygw")


def built() -> Path:
    """Return the program; without Go the test is skipped, and the run says how to get it."""
    try:
        return build()
    except golang.GoMissing as error:
        pytest.skip(f"the S3 server of these tests is built from its sources: {error}")


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Raises `golang.GoMissing`."""
    program = build()
    served = folder / "s3"
    served.mkdir(parents=True)
    server = S3Server(free_port(), served)
    keys = {"ROOT_ACCESS_KEY": server.access_key, "ROOT_SECRET_KEY": server.secret_key}
    log = (folder / "s3.log").open("w")
    process = subprocess.Popen(
        [str(program), "--port", f"127.0.0.1:{server.port}", "posix", str(served)],
        env=os.environ | keys, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 1):
                break
            said = (folder / "s3.log").read_text()[-1000:]
            assert process.poll() is None, f"the S3 server ended: {said}"
            assert time.monotonic() < deadline, f"the S3 server does not listen: {said}"
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run the server for the tests of a module."""
    built()
    with s3_server(tmp_path_factory.mktemp("s3")) as found:
        yield found
