"""Before the chart goes: `python -m gantry_operator.platforms.kubernetes.uninstall DEPLOYMENT`.

A BrokerTopic or ConsumerGroup with `deletionPolicy: Delete` has a finalizer, which only an operator removes. Without
one the object, and a namespace with it, would be Terminating for ever. So the chart's hook stops the operators, takes
their Lease, and lets all of these objects go. What they name stays at the brokers. An operator that is installed again
gives them the finalizer again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence

from gantry_operator.platforms.kubernetes.api.client import (
    DEPLOYMENT,
    KINDS,
    ApiError,
    ApiUnavailable,
    KubeApi,
    Object,
    load_config,
)
from gantry_operator.platforms.kubernetes.api.operator_lease import Election
from gantry_operator.platforms.kubernetes.resources.topics import KINDS as TOPIC_KINDS
from gantry_operator.platforms.kubernetes.resources.topics import release

LEASE_NAME = "gantry-operator"
STOPPED_S = 90.0
"""Seconds for the operators to end: their pods have a grace period, and a Lease that is not released runs out."""
TRIES = 5


async def stop_operators(api: KubeApi, election: Election, namespace: str, deployment: str) -> None:
    """Scale the operators down, and take their Lease. Raises ApiError, ApiUnavailable, TimeoutError."""
    try:
        await api.merge(DEPLOYMENT, namespace, deployment, {"spec": {"replicas": 0}})
    except ApiError as error:
        if error.status != 404:
            raise
    async with asyncio.timeout(STOPPED_S):
        await election.acquire()


async def release_all(api: KubeApi, namespaces: Sequence[str]) -> list[str]:
    """Remove the operator's finalizer from all topics and groups (`namespaces` empty: everywhere).

    Returns a line for each object that was being deleted: its topic or group stays. Raises ApiError, ApiUnavailable.
    """
    lines = []
    for kind in TOPIC_KINDS.values():
        for namespace in namespaces or (None,):
            for obj in (await api.list(kind, namespace))[0]:
                await _release(api, kind.kind, obj)
                meta = obj["metadata"]
                if meta.get("deletionTimestamp") is not None:
                    lines.append(
                        f"{kind.kind} {meta['namespace']}/{meta['name']} was being deleted and goes now; what it names "
                        "stays at the brokers"
                    )
    return lines


async def _release(api: KubeApi, kind: str, obj: Object) -> None:
    """Somebody may change the object meanwhile: it is read again then."""
    for left in reversed(range(TRIES)):
        try:
            await release(api, KINDS[kind], obj)
            return
        except ApiError as error:
            if error.status == 404:
                return
            if error.reason != "Conflict" or not left:
                raise
            meta = obj["metadata"]
            field = f"metadata.name={meta['name']}"
            objects = (await api.list(KINDS[kind], meta["namespace"], fields=field))[0]
            again = [o for o in objects if o["metadata"]["uid"] == meta["uid"]]
            if not again:
                return
            obj = again[0]


async def uninstall(api: KubeApi, namespace: str, deployment: str, watched: Sequence[str], identity: str) -> None:
    election = Election(api, namespace, LEASE_NAME, identity, "")
    await stop_operators(api, election, namespace, deployment)
    print("no operator acts any more: brokers go on, without failovers by an operator")
    for line in await release_all(api, watched):
        print(line)
    print("no BrokerTopic or ConsumerGroup waits for an operator")
    await election.release()


async def _main(deployment: str) -> int:
    namespace = os.environ.get("POD_NAMESPACE", "default")
    watched = [w.strip() for w in os.environ.get("GANTRY_WATCH_NAMESPACES", "").split(",") if w.strip()]
    async with KubeApi(await load_config()) as api:
        try:
            await uninstall(api, namespace, deployment, watched, f"uninstall-{socket.gethostname()}")
        except (ApiError, ApiUnavailable) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except TimeoutError:
            print(f"error: an operator still holds Lease {LEASE_NAME} after {STOPPED_S:.0f} s", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(_main(sys.argv[1])))
