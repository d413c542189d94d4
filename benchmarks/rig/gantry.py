"""Gantry's NameServer and broker as processes on 127.0.0.1, and the quickstart cluster through `gantry up`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from .processes import Started, free_port, until
from .target import Target
from .wire import connect

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"


def _status(http_port: int) -> dict[str, Any] | None:
    """Returns the broker's status; None while it does not answer."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{http_port}/v1/status", timeout=1)
    except httpx.HTTPError:
        return None
    return answer.json() if answer.status_code == 200 else None


def _writable(http_port: int) -> bool:
    status = _status(http_port)
    return status is not None and status["role"] == "Master" and status["writable"]


@contextlib.contextmanager
def single(
    folder: Path,
    settings: dict[str, Any] | None = None,
    flush: str = "Async",
    tls: dict[str, Any] | None = None,
    broker: Sequence[str] = ("-m", "gantry_broker.broker"),
    archive: dict[str, Any] | None = None,
) -> Iterator[Target]:
    """Starts one NameServer and a broker group of one member; settings are BrokerSettings, `tls` is a TlsConfig,
    `archive` an ArchiveConfig.

    `broker`: Python's arguments for another program that is a broker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ns_port, ns_http, port, http_port, group_port, registration_port, replication_port = (free_port() for _ in range(7))
    registration, replication = f"127.0.0.1:{registration_port}", f"127.0.0.1:{replication_port}"
    group_address = f"127.0.0.1:{group_port}"
    ns_file, broker_file = folder / "namesrv.json", folder / "broker.json"
    ns_file.write_text(json.dumps({
        "name": "ns-0", "listen_host": "127.0.0.1", "port": ns_port, "http_port": ns_http,
        "data_dir": str(folder / "ns-0"), "cluster": "demo", "registration_port": registration_port,
        "tls": tls,
    }))  # fmt: skip
    broker_file.write_text(json.dumps({
        "cluster": "demo", "group": "demo-a", "member": 0, "name": "demo-a-0", "data_dir": str(folder / "demo-a-0"),
        "listen_host": "127.0.0.1", "port": port, "http_port": http_port, "group_port": group_port,
        "member_address": f"127.0.0.1:{port}", "group_address": group_address,
        "replication_port": replication_port, "replication_address": replication,
        "name_servers": [f"127.0.0.1:{ns_port}"], "registration_addresses": [registration], "flush": flush, "tls": tls,
        "archive": archive, "settings": {"enablePropertyFilter": True, **(settings or {})},
    }))  # fmt: skip
    with contextlib.ExitStack() as stack:
        ns = stack.enter_context(
            Started([sys.executable, "-m", "gantry_broker.namesrv", "--config", str(ns_file)], folder / "namesrv.log")
        )
        br = stack.enter_context(
            Started([sys.executable, *broker, "--config", str(broker_file)], folder / "broker.log")
        )
        until("the broker's HTTP", lambda: _status(http_port) is not None, 30, [ns, br])
        _promote(http_port)
        until("the broker", lambda: _writable(http_port), 30, [ns, br])
        yield Target(
            name="gantry", namesrv=f"127.0.0.1:{ns_port}", broker_address=group_address, cluster="demo",
            broker_name="demo-a", prefix=[], namesrv_pid=ns.pid, broker_pids=[br.pid], log=br.log,
            registration=registration, replication=replication, http=f"127.0.0.1:{http_port}",
            namesrv_http=f"127.0.0.1:{ns_http}",
        )  # fmt: skip


def status(target: Target) -> dict[str, Any]:
    """Returns the broker's status. Raises httpx.HTTPError."""
    found: dict[str, Any] = httpx.get(f"http://{target.http}/v1/status", timeout=5).raise_for_status().json()
    return found


def _promote(http_port: int) -> None:
    """Makes the only member of its group the master, as the failover loop does."""
    base = f"http://127.0.0.1:{http_port}/v1"
    status = httpx.get(f"{base}/status", timeout=5).raise_for_status().json()
    me = status["member"]
    # A store that was filled before has one epoch, of which the status does not know.
    leadership = {"epoch": status["epoch"] + 2, "version": status["version"] + 1, "master": me, "in_sync": [me]}
    answer = httpx.put(f"{base}/assignment", json={"leadership": leadership}, timeout=5).raise_for_status().json()
    if not answer["accepted"]:
        raise RuntimeError(f"the broker refuses its role: {answer}")


class Cluster:
    """`gantry up FILE --detach` in a folder of its own; the end of the `with` block runs `gantry down`."""

    def __init__(
        self,
        folder: Path,
        manifest: Path = QUICKSTART,
        prefix: list[str] | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        """`prefix` goes before each command, as in Target; `environ` adds to the environment of its processes."""
        self.folder, self.manifest, self.prefix = folder, manifest, prefix or []
        self._environ = {**os.environ, "NO_COLOR": "1", **(environ or {})}

    def gantry(self, *words: str, timeout_s: float = 60) -> str:
        """Returns the output of `gantry WORDS --dir DIR`. Raises RuntimeError with it when the command fails."""
        program = str(Path(sys.executable).with_name("gantry"))
        command = [*self.prefix, program, *words, "--dir", str(self.folder)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=self._environ
        )
        if done.returncode != 0:
            raise RuntimeError(f"gantry {words}: exit {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        """Returns `status` of the resource."""
        shown = json.loads(self.gantry("status", "-o", "json"))
        status: dict[str, Any] = shown["status"]
        return status

    def own_ports(self, member: str) -> list[int]:
        """Returns the ports of one member. The group's port is not among them, because it moves with the role."""
        ports: dict[str, int] = json.loads((self.folder / "ports.json").read_text())
        return [ports[member], ports[f"{member}/replication"], ports[f"{member}/http"]]

    def members(self) -> list[dict[str, Any]] | None:
        """Returns the status of every broker, without the start time of a command; None while one does not answer."""
        asked = self._ask_brokers()
        return None if None in asked else [answer for answer in asked if answer]

    def answering(self) -> list[dict[str, Any]]:
        """Returns the status of those brokers that answer."""
        return [answer for answer in self._ask_brokers() if answer]

    def _ask_brokers(self) -> list[dict[str, Any] | None]:
        ports: dict[str, int] = json.loads((self.folder / "ports.json").read_text())
        asked = [self._get(port, "/v1/status") for use, port in ports.items() if use.endswith("/http")]
        return [answer for answer in asked if answer is None or "broker_id" in answer]

    def _token(self) -> str:
        return (self.folder / "token").read_text().strip()

    def _get(self, port: int, path: str) -> dict[str, Any] | None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.sock = connect(f"127.0.0.1:{port}", 1.0, self.prefix)
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._token()}"})
            answer = connection.getresponse()
            body = answer.read()
            return json.loads(body) if answer.status == 200 else {}
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def processes(self) -> dict[str, int]:
        """Returns name and process id of all processes of this cluster, with the supervisor."""
        found: dict[str, int] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                named = [word for word in words if str(self.folder) in word]
                if named:
                    kind = next((w.rsplit(".", 1)[1] for w in words if w.startswith("gantry_broker.")), "supervisor")
                    name = kind if kind == "supervisor" else Path(named[0]).stem
                    found[name if name not in found else f"{name}-{entry.name}"] = int(entry.name)
        return dict(sorted(found.items()))

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.gantry("up", str(self.manifest), "--detach", timeout_s=120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self.gantry("down")
        for pid in self.processes().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
