"""The key-value configuration of a RocketMQ that a cluster of this machine follows, kept up to date until a cutover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gantry_broker.client import Admin, Credentials
from gantry_broker.remoting.tls import TlsOptions

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.migration import FromRocketMQ
from gantry_operator.cluster.copies import ask_copy, follows
from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration.cutover_edge import FAILURES, Edge, SourcePlace
from gantry_operator.migration.cutover_steps import Refused
from gantry_operator.migration.source_config import CONFIG_S, NotYet
from gantry_operator.platforms.local.client_facts import client_facts
from gantry_operator.platforms.local.events import EventLog
from gantry_operator.platforms.local.folder import ClusterFolder, secret_folder
from gantry_operator.platforms.local.key_files import read_secret

FIRST_S: Final = 5.0
"""Seconds between two looks until a copy follows."""


def place_of(source: FromRocketMQ) -> SourcePlace:
    """Secrets of this machine are folders. Raises OSError, ValueError for one that is missing."""
    keys = tls = None
    if source.accessKeySecret is not None:
        folder = secret_folder(source.accessKeySecret)
        keys = Credentials((folder / "accessKey").read_text().strip(), (folder / "secretKey").read_text().strip())
    if source.tls is not None:
        tls = TlsOptions(ca_file=secret_folder(source.tls.caSecret) / "ca.crt")
    return SourcePlace(tuple(source.nameServers), keys, tls, tuple(source.kvNamespaces))


class LocalSourceConfig:
    """The copy for one cluster."""

    def __init__(
        self,
        folder: ClusterFolder,
        cluster: Callable[[], BrokerCluster],
        members: Callable[[], list[list[str]]],
        cutover: Callable[[], str],
        http: httpx.AsyncClient,
        events: EventLog,
    ) -> None:
        """`members`: by group the URLs of the members' HTTP interfaces. `cutover`: see `Platform`."""
        self._folder, self._cluster, self._members, self._cutover = folder, cluster, members, cutover
        self._http, self._events = http, events

    async def run(self) -> None:
        """Never returns."""
        while True:
            done = False
            try:
                done = await self.look()
            except NotYet:
                done = True  # The end of the cutover copies it.
            except (Refused, ValueError, *FAILURES) as error:  # An event that is the same is shown once a minute.
                text = f"the key-value configuration of the source is not copied: {error}"
                self._events.add("Warning", "Migration", text[:900], self._cluster().name)
            await asyncio.sleep(CONFIG_S if done else FIRST_S)

    async def look(self) -> bool:
        """Copy once if all groups follow the source; False: they do not. Raises Refused, OSError, ValueError, and as
        clients do.
        """
        bootstrap = self._cluster().spec.bootstrap
        source = None if bootstrap is None else bootstrap.fromRocketMQ
        if source is None or self._cutover():
            return False
        copies = await asyncio.gather(*(ask_copy(self._http, urls) for urls in self._members()))
        if not all(map(follows, copies)):
            return False
        facts = await asyncio.to_thread(client_facts, self._folder)
        path, field = facts["key"]
        key = (await asyncio.to_thread(read_secret, Path(path))).get(field)
        keys = Credentials(facts["accessKey"], key) if key else None
        tls = None if facts["tls"] is None else TlsOptions(*facts["tls"])
        place = await asyncio.to_thread(place_of, source)
        async with Edge(place, [], self._http) as edge, Admin(facts["servers"], credentials=keys, tls=tls) as own:
            await edge.copy_kv(own)
        return True
