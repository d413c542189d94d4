"""Measures the CPU time of a start: from exec to the first answer over HTTP, of a command to its end.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 20 --only broker --tree ../other

The programs start in turn, `--rounds` times; the result is the median of user and system time, of all threads. A
broker, a NameServer and a proxy start on empty folders without TLS. They are killed at the first answer of `/readyz`,
whatever its status. `gantry status` asks a running quickstart cluster. `--tree`: the sources of another version, which
starts in turn with this one. One start of each program comes first and does not count: it writes the byte code.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rig.gantry import ROOT, Cluster
from rig.processes import Started, free_port, until

PROGRAMS = ("broker", "namesrv", "proxy", "gantry --help", "gantry status")
PACKAGES = ("operator", "broker_image")
HOST = "127.0.0.1"


def _config(program: str, folder: Path) -> dict[str, Any]:
    """Returns the configuration of a process on free ports, with its files in the folder."""
    port, http_port, group_port, replication_port, name_server = (free_port() for _ in range(5))
    common = {"listen_host": HOST, "port": port, "http_port": http_port}
    if program == "proxy":
        return {**common, "name": "proxy-0", "name_servers": [f"{HOST}:{name_server}"], "advertise": f"{HOST}:{port}"}
    if program == "namesrv":
        return {**common, "name": "ns-0", "data_dir": str(folder / "data"), "cluster": "demo"}
    return {
        **common, "cluster": "demo", "group": "demo-a", "member": 0, "name": "demo-a-0",
        "data_dir": str(folder / "data"), "group_port": group_port, "member_address": f"{HOST}:{port}",
        "group_address": f"{HOST}:{group_port}", "replication_port": replication_port,
        "replication_address": f"{HOST}:{replication_port}", "name_servers": [f"{HOST}:{name_server}"],
        "registration_addresses": [],
    }  # fmt: skip


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status in (200, 503)
    except OSError:
        return False
    finally:
        connection.close()


def _children_s() -> float:
    """CPU seconds of all children that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _serve(program: str, environ: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="startup-") as name:
        folder = Path(name)
        config = _config(program, folder)
        file = folder / "config.json"
        file.write_text(json.dumps(config))
        words = [sys.executable, "-m", f"gantry_broker.{program}", "--config", str(file)]
        with Started(words, folder / "log", environ) as process:
            until(f"the {program}'s HTTP", lambda: _answers(config["http_port"]), 60, [process])
            process.popen.kill()
            process.popen.wait()


def _command(words: list[str], environ: dict[str, str]) -> None:
    words = [sys.executable, "-m", "gantry_operator.cli", *words]
    subprocess.run(words, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, check=True)


def _environ(tree: Path, folder: Path) -> dict[str, str]:
    """Returns what makes a process use this tree, and keep its byte code."""
    path = os.pathsep.join(str(tree / package) for package in PACKAGES)
    return {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Returns milliseconds of CPU time by program and tree."""
    trees = {"ms": ROOT, **({} if options.tree is None else {"other_ms": options.tree.resolve()})}
    environs = {label: _environ(tree, folder / label) for label, tree in trees.items()}
    programs = options.only or list(PROGRAMS)
    used: dict[tuple[str, str], list[float]] = {(p, label): [] for p in programs for label in trees}

    def rounds(start: Callable[[str, dict[str, str]], None], names: list[str]) -> None:
        for number in range(options.rounds + 1):
            for program in names:
                for label, environ in environs.items():
                    before = _children_s()
                    start(program, environ)
                    if number:
                        used[program, label].append(_children_s() - before)

    rounds(_serve, [p for p in programs if not p.startswith("gantry")])
    rounds(lambda _, environ: _command(["--help"], environ), [p for p in programs if p == "gantry --help"])
    if "gantry status" in programs:
        with Cluster(folder / "cluster"):
            status = ["status", "--dir", str(folder / "cluster")]
            rounds(lambda _, environ: _command(status, environ), ["gantry status"])
    return {p: {label: round(1000 * statistics.median(used[p, label]), 1) for label in trees} for p in programs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="starts of each program (default 10)")
    parser.add_argument("--only", action="append", choices=PROGRAMS, help="this program; may be repeated")
    parser.add_argument("--tree", type=Path, help="the folder of another version of the sources")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        found = measure(options, Path(folder))
    if options.output == "json":
        print(json.dumps(found, indent=2))
        return 0
    print(f"{'start':<16}{'CPU ms':>9}" + (f"{'other':>9}{'change %':>10}" if options.tree else ""))
    for program, row in found.items():
        line = f"{program:<16}{row['ms']:>9}"
        if options.tree:
            line += f"{row['other_ms']:>9}{100 * (row['ms'] / row['other_ms'] - 1):>10.1f}"
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
