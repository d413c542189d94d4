"""How the operator fares with many clusters: `python benchmarks/operator_scale.py 10 30`, on KUBECONFIG's Kubernetes.

The operator must be installed (helm/gantry). For each number, clusters of one NameServer and one broker are
made in a namespace of their own; printed as JSON: seconds until all are Available, then over a minute of idling the
operator's API requests per cluster and minute, its CPU (share of a core) and its resident memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

NAMESPACE = "gantry-scale"
METRICS = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/metrics').read().decode())"


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"kubectl {' '.join(arguments[:4])}: {done.stderr.strip()}")
    return done.stdout


def cluster(name: str) -> dict[str, Any]:
    small = {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}}
    return {
        "apiVersion": "gantry.dev/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nameServers": {"replicas": 1, "resources": small},
            "brokerGroups": [{"name": "a", "members": 1}],
            "resources": small,
            "storage": {"size": "1Gi"},
            "reclaim": "Delete",
        },
    }


def figures(operator_namespace: str) -> dict[str, float]:
    """Of the operator that leads."""
    selector = "app.kubernetes.io/name=gantry-operator"
    pods = kubectl("-n", operator_namespace, "get", "pods", "-l", selector, "-o", "name").split()
    for pod in pods:
        found: dict[str, float] = {}
        for line in kubectl("-n", operator_namespace, "exec", pod, "--", "python", "-c", METRICS).splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name] = float(value)
        if found.get("gantry_operator_leader") == 1.0:
            return found
    raise SystemExit(f"no operator leads in namespace {operator_namespace}: install helm/gantry first")


def available() -> int:
    items = json.loads(kubectl("-n", NAMESPACE, "get", "bc", "-o", "json"))["items"]
    conditions = [c for o in items for c in (o.get("status") or {}).get("conditions", [])]
    return sum(c["type"] == "Available" and c["status"] == "True" for c in conditions)


def measure(count: int, patience_s: float, idle_s: float, operator_namespace: str) -> dict[str, Any]:
    kubectl("create", "namespace", NAMESPACE)
    try:
        items = [cluster(f"c{i}") for i in range(count)]
        begun = time.monotonic()
        kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        while available() < count:
            if time.monotonic() - begun > patience_s:
                raise SystemExit(f"{available()} of {count} clusters are available after {patience_s:.0f} s")
            time.sleep(1)
        ready = time.monotonic() - begun
        time.sleep(20)
        before, at = figures(operator_namespace), time.monotonic()
        time.sleep(idle_s)
        after, took = figures(operator_namespace), time.monotonic() - at
        cpu = (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / took
        calls = after["gantry_operator_api_requests"] - before["gantry_operator_api_requests"]
        return {
            "clusters": count,
            "allAvailableSeconds": round(ready, 1),
            "idleApiRequestsPerClusterAndMinute": round(calls / took * 60 / count, 2),
            "idleCpuShareOfACore": round(cpu, 4),
            "residentMiB": round(after["process_resident_memory_bytes"] / 2**20, 1),
        }
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--timeout=300s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", type=int, nargs="+", help="how many clusters, one run for each number")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for all to become available")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of idling that are measured")
    parser.add_argument("--operator-namespace", default="gantry-system")
    options = parser.parse_args()
    for count in options.counts:
        found = measure(count, options.patience, options.idle, options.operator_namespace)
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
