"""Names that a shell completes: topics and consumer groups of the cluster. Those of clusters: `options.clusters`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import typer

from gantry_operator.cli.target import find_target

if TYPE_CHECKING:
    from gantry_broker.client import Admin

WAIT_S: Final = 2.0
"""Seconds for which a shell waits; then there are no names."""


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics of the chosen cluster, without the system's."""
    from gantry_operator.api.reserved_names import cluster_topics, reserved_topic

    async def names(admin: Admin) -> list[str]:
        import asyncio

        listed, info = await asyncio.gather(admin.topics(), admin.cluster_info())
        own = cluster_topics(info.clusters, info.brokers)
        return [name for name in listed if not reserved_topic(name) and name not in own]

    return _asked(ctx, incomplete, names)


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups of the chosen cluster, without the system's."""
    from gantry_operator.api.reserved_names import reserved_group

    async def names(admin: Admin) -> list[str]:
        import asyncio

        by_broker = await asyncio.gather(*(admin.groups(address) for address in (await admin.masters()).values()))
        return [name for part in by_broker for name in part if not reserved_group(name)]

    return _asked(ctx, incomplete, names)


def _asked(ctx: typer.Context, incomplete: str, names: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    import asyncio

    from gantry_broker.client import Admin

    chosen: dict[str, Any] = ctx.params

    async def ask() -> list[str]:
        target = find_target(
            chosen.get("directory"), chosen.get("name"), chosen.get("context"), chosen.get("namespace")
        )
        async with (
            asyncio.timeout(WAIT_S),
            target.clients() as c,
            Admin(c.name_servers, credentials=c.credentials, tls=c.tls) as admin,
        ):
            return sorted({name for name in await names(admin) if name.startswith(incomplete)})

    try:
        return asyncio.run(ask())
    except Exception:  # Whatever is wrong: a shell that completes says nothing.
        return []
