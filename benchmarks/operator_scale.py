"""Measures the operator with many clusters: `python benchmarks/operator_scale.py 10 30 100`.

For each number the benchmark starts a Kubernetes API server and an etcd in a network of their own, and the operator as
a process with exactly the rights of the chart. Nothing else of Kubernetes runs: this program plays pods, brokers and
NameServers, and its brokers report once a second as real ones do. Each cluster has `--members` brokers and one
NameServer, and all are applied at once.

With `--topics N` the first cluster also gets N BrokerTopics and N ConsumerGroups.

One line of JSON for each number: seconds until all are Running; then over `--idle` seconds without any change the
operator's requests to the API, its CPU as a share of a core, and its resident memory. Needs root, `ip`, and on PATH
`etcd`, `kube-apiserver`, `kubectl` and `helm`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gantry_operator.platforms.kubernetes.api.client import BROKER_CLUSTER, BROKER_TOPIC, CONSUMER_GROUP, Kind, KubeApi
from rig import kubeapi
from rig.processes import Started, usage
from rig.standins import StandIns

ROOT = Path(__file__).parents[1]
NAMESPACE = "gantry-scale"
SETTLE_S = 25.0
"""Pause between Running and the idle time: the operator still writes the first statuses after a change."""
APPLIED_AT_ONCE = 10


def cluster(name: str, members: int) -> dict[str, Any]:
    return {
        "apiVersion": BROKER_CLUSTER.api_version,
        "kind": BROKER_CLUSTER.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nameServers": {"replicas": 1},
            "brokerGroups": [{"name": "a", "members": members}],
            "storage": {"size": "1Gi"},
            # The stand-ins speak HTTP in clear text.
            "security": {"tls": {"internal": False}},
        },
    }


async def all_running(api: KubeApi, count: int, operator: Started, patience_s: float) -> None:
    """Waits until all clusters run. Raises SystemExit after a timeout, or when the operator ends."""
    deadline = time.monotonic() + patience_s
    while True:
        found, _ = await api.list(BROKER_CLUSTER, NAMESPACE)
        phases = [(o.get("status") or {}).get("phase", "none") for o in found]
        if phases.count("Running") == count:
            return
        if time.monotonic() > deadline or operator.popen.poll() is not None:
            other = next((o for o in found if (o.get("status") or {}).get("phase") != "Running"), None)
            raise SystemExit(
                f"{phases.count('Running')} of {count} clusters run after {patience_s:.0f} s; one of the others:\n"
                f"{json.dumps(other, indent=1)}\n{operator.tail(6000)}"
            )
        await asyncio.sleep(0.25)


def topic_or_group(kind: Kind, name: str) -> dict[str, Any]:
    spec = {"queuesPerGroup": 8} if kind is BROKER_TOPIC else {"retryMax": 3}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"cluster": "c0", **spec},
    }


async def all_ready(api: KubeApi, count: int, patience_s: float) -> None:
    """Waits until all topics and groups are ready. Raises SystemExit after a timeout."""
    deadline = time.monotonic() + patience_s
    while True:
        ready = 0
        other: Any = None
        for kind in (BROKER_TOPIC, CONSUMER_GROUP):
            for obj in (await api.list(kind, NAMESPACE))[0]:
                conditions = (obj.get("status") or {}).get("conditions") or []
                if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
                    ready += 1
                else:
                    other = obj
        if ready == 2 * count:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{ready} of {2 * count} are ready after {patience_s:.0f} s; another one: {other}")
        await asyncio.sleep(1)


async def measure(count: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with kubeapi.ApiServer(folder) as server, kubeapi.operator(server, ROOT / "helm" / "gantry", folder) as operator:
        async with server.client() as api:
            stand_ins = StandIns(api, ["a"])
            standing_in = asyncio.create_task(stand_ins.run())
            try:
                server.kubectl("create", "namespace", NAMESPACE)
                begun = time.monotonic()
                gate = asyncio.Semaphore(APPLIED_AT_ONCE)

                async def apply(name: str) -> None:
                    async with gate:
                        await api.apply(cluster(name, options.members), "rig")

                await asyncio.gather(*(apply(f"c{i}") for i in range(count)))
                await all_running(api, count, operator, options.patience)
                ready = time.monotonic() - begun
                topics_ready = 0.0
                if options.topics:
                    begun = time.monotonic()
                    every = [(k, f"r{n}") for n in range(options.topics) for k in (BROKER_TOPIC, CONSUMER_GROUP)]

                    async def apply_one(kind: Kind, name: str) -> None:
                        async with gate:
                            await api.create(topic_or_group(kind, name))

                    await asyncio.gather(*(apply_one(*one) for one in every))
                    await all_ready(api, options.topics, options.patience)
                    topics_ready = time.monotonic() - begun
                made = server.requests()
                busy = usage(operator.pid)
                await asyncio.sleep(SETTLE_S)
                calls, before, at = server.requests(), usage(operator.pid), time.monotonic()
                tables = stand_ins.tables
                await asyncio.sleep(options.idle)
                after, took = usage(operator.pid), time.monotonic() - at
                idle = server.requests() - calls
            finally:
                standing_in.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await standing_in
            if standing_in.done() and not standing_in.cancelled():
                standing_in.result()
    for_clusters = sum(n for what, n in idle.items() if not what.endswith("of the operator itself"))
    return {
        "clusters": count,
        "brokers": count * options.members,
        "allRunningSeconds": round(ready, 1),
        "cpuSecondsUntilThen": round(busy.cpu_s, 1),
        "requestsPerClusterUntilThen": round(made.total() / count, 1),
        "topicsAndGroups": 2 * options.topics,
        "topicsReadySeconds": round(topics_ready, 1),
        "idleTablesPerMinute": round((stand_ins.tables - tables) / took * 60, 1),
        "idleSeconds": round(took),
        "idleRequestsPerClusterAndMinute": round(for_clusters / took * 60 / count, 2),
        "idleRequests": dict(idle.most_common()),
        "idleCpuShareOfACore": round((after.cpu_s - before.cpu_s) / took, 4),
        "residentMiB": round(after.rss / 2**20, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=int, nargs="+", help="how many clusters, one run for each number")
    parser.add_argument("--members", type=int, default=3, help="brokers of each cluster (default 3)")
    parser.add_argument("--topics", type=int, default=0, help="topics, and as many groups, of the first cluster")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for all to run (default 300)")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of idling that are measured (default 60)")
    parser.add_argument("--keep", type=Path, help="folder for the logs of what was started, which are kept there")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        with kubeapi.own_network("scale") as prefix:
            return subprocess.run(
                [*prefix, sys.executable, __file__, "--inside", *sys.argv[1:]], check=False
            ).returncode
    for count in options.counts:
        with contextlib.ExitStack() as stack:
            folder = options.keep / str(count) if options.keep else None
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="operator-scale-")))
            folder.mkdir(parents=True, exist_ok=True)
            found = asyncio.run(measure(count, options, folder))
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
