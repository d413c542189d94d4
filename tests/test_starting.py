"""What a start imports, and that the collector of reference cycles does not look meanwhile."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest
from gantry_broker.starting import importing

from tests.support.free_ports import free_ports

HOST: Final = "127.0.0.1"
NEVER: Final = {
    "IPython", "gantry_operator", "gantry_spark", "grpc", "httpx", "kopf", "kubernetes", "numpy",
    "opentelemetry.exporter", "opentelemetry.sdk", "pyarrow", "pyspark", "requests", "rich", "typer", "yaml",
}  # fmt: skip
"""No process that serves imports these without TLS and OTLP."""
WEB: Final = {"fastapi", "starlette", "uvicorn", "prometheus_client", "opentelemetry"}
SERVERS: Final = {
    "broker": NEVER | {"cryptography", "google.protobuf"},
    "namesrv": NEVER | WEB | {"cryptography", "google.protobuf", "pydantic", "_ssl", "uvloop"},
    "proxy": NEVER | WEB | {"cryptography"},
}
COMMANDS: Final = {"kopf", "kubernetes", "fastapi", "uvicorn", "pyspark", "numpy", "pyarrow", "cryptography", "uvloop"}
"""No command imports these unless it needs them."""
GC: Final = """
import atexit, gc, runpy, sys
atexit.register(lambda: print(gc.get_freeze_count(), gc.isenabled(), file=sys.stderr))
sys.argv[1:] = ["--help"]
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def config(program: str, folder: Path) -> dict[str, Any]:
    port, http_port, replication_port, name_server = free_ports(4)
    common = {"listen_host": HOST, "port": port, "http_port": http_port}
    if program == "namesrv":
        return {**common, "name": "ns-0", "data_dir": str(folder / "data")}
    if program == "proxy":
        return {**common, "name_servers": [f"{HOST}:{name_server}"]}
    return {
        **common, "cluster": "demo", "group": "demo-a", "member": 0, "name": "demo-a-0",
        "data_dir": str(folder / "data"), "member_address": f"{HOST}:{port}", "group_address": f"{HOST}:{port}",
        "replication_port": replication_port, "replication_address": f"{HOST}:{replication_port}",
        "name_servers": [f"{HOST}:{name_server}"], "registration_addresses": [],
    }  # fmt: skip


def imported(log: str) -> set[str]:
    """The modules in what `python -X importtime` printed."""
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", log, re.MULTILINE))


def get(port: int) -> bytes:
    with socket.create_connection((HOST, port), 5) as connection:
        connection.sendall(f"GET /livez HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        return connection.recv(100)


@pytest.mark.parametrize("program", SERVERS)
def test_a_server_imports_only_what_it_needs(program: str, tmp_path: Path) -> None:
    file, log = tmp_path / "config.json", tmp_path / "log"
    settings = config(program, tmp_path)
    file.write_text(json.dumps(settings))
    words = [sys.executable, "-X", "importtime", "-m", f"gantry_broker.{program}", "--config", str(file)]
    with log.open("wb") as out:
        process = subprocess.Popen(words, stderr=out)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline
            try:
                answer = get(settings["http_port"])
                break
            except OSError:
                time.sleep(0.05)
        assert answer.startswith(b"HTTP/1.1 200")
        found = imported(log.read_text())
    finally:
        process.kill()
        process.wait()
    assert f"gantry_broker.{program}.process" in found
    assert not found & SERVERS[program]


@pytest.mark.parametrize(
    ("words", "needless"),
    [(["--help"], COMMANDS | {"asyncio", "httpx", "pydantic", "webbrowser"}), (["status"], COMMANDS | {"webbrowser"})],
    ids=["help", "status"],
)
def test_a_command_imports_only_what_it_needs(words: list[str], needless: set[str], tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gantry_operator.cli", *words]
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode in (0, 3), done.stderr[-2000:]
    found = imported(done.stderr)
    assert "gantry_operator.cli.app" in found
    assert not found & needless


@pytest.mark.parametrize("module", [*(f"gantry_broker.{program}" for program in SERVERS), "gantry_operator.cli"])
def test_a_start_freezes_what_it_imported(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", GC.format(module=module)], capture_output=True, text=True, check=True)
    frozen, enabled = done.stderr.split()[-2:]
    assert int(frozen) > 10_000
    assert enabled == "True"


def test_the_collector_looks_again_after_an_import_that_failed() -> None:
    off = False

    def fail() -> None:
        nonlocal off
        with importing():
            off = not gc.isenabled()
            raise ImportError

    try:
        with pytest.raises(ImportError):
            fail()
        assert off
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
