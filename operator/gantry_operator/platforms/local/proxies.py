"""The proxies of a local cluster: whether they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantry_operator.cluster.member_http import httpx

READY_S = 1.0


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
