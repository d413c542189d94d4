"""The proxies of a local cluster: how many there are, and whether they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_operator.api.proxy import Proxy

if TYPE_CHECKING:
    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.cluster.member_http import httpx

READY_S = 1.0


def with_proxies(cluster: BrokerCluster, replicas: int | None = None) -> BrokerCluster:
    """Return a cluster as `gantry up` runs it. `replicas`: proxies, whatever the manifest says; None: as it says, and
    one if it says nothing.
    """
    if replicas is None and cluster.spec.proxy is None:
        replicas = 1
    if replicas is None:
        return cluster
    # No autoscaler runs on one machine.
    changed = {"replicas": replicas, "autoscaling": None}
    proxy = (cluster.spec.proxy or Proxy()).model_copy(update=changed)
    return cluster.model_copy(update={"spec": cluster.spec.model_copy(update={"proxy": proxy})})


async def why_no_proxy(client: httpx.AsyncClient, url: str) -> str:
    """Why the proxy with this HTTP interface does not serve; empty: it does."""
    from gantry_operator.cluster.member_http import httpx  # Not needed by `gantry up` itself.

    try:
        answer = await client.get(f"{url}/readyz", timeout=READY_S, auth=None)
    except httpx.ConnectError:
        return "its process does not run"
    except httpx.HTTPError as error:
        return f"it does not answer: {str(error) or type(error).__name__}"
    return "" if answer.status_code == 200 else f"it is not ready: {answer.text.strip()[:200]}"
