"""The broker process: `python -m gantry_broker.broker --config FILE`.

SIGTERM and SIGINT stop it cleanly: it answers waiting sends and makes tables and log durable, and the next start trusts
the log. Events go to stderr, one line each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path

import uvloop
from pydantic import ValidationError

from gantry_broker import descriptors, logs
from gantry_broker.allocation import keep_freed_memory, share_one_heap
from gantry_broker.archive.errors import ArchiveError
from gantry_broker.broker import fencing, restoring, source_servers
from gantry_broker.broker.migration import member as migrating
from gantry_broker.broker.migration.guarding import Guarding
from gantry_broker.broker.site import load_site, mark_origin, prepare_disk
from gantry_broker.broker.wiring import wire
from gantry_broker.config import BrokerConfig
from gantry_broker.loglevel import LEVELS, follow, level_in
from gantry_broker.protocol.message import pack_host
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import Membership
from gantry_broker.remoting.tls import TlsError, TlsOptions
from gantry_broker.remoting.tls_ports import PortsTls
from gantry_broker.replication.identity import StateError
from gantry_broker.store.errors import FlushFailed, StoreError
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig
from gantry_broker.tasks import end_tasks

log = logging.getLogger("gantry_broker.broker")

PEER_CONNECT_S = 1.0
"""Seconds for a connection attempt to a member or NameServer. TCP tries again after 1 s, then 2 s later. An attempt
that began in a network failure would delay all requests to that address for as long after its end.
"""


def resolved_host(address: str) -> tuple[str, int]:
    """Return the (IP, port) for message ids, from "host:port". A name without an address becomes 127.0.0.1."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        infos = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        log.warning("%s cannot be resolved: message ids will name 127.0.0.1", address)
        return "127.0.0.1", int(port)
    infos.sort(key=lambda f: f[0] != socket.AF_INET)
    return str(infos[0][4][0]), int(port)


class BrokerProcess:
    """One member of a group, from its start to its stop. Use it as an async context manager."""

    def __init__(self, config: BrokerConfig) -> None:
        """Build the parts. Raises what the store, the archive and TLS raise for what cannot be."""
        self.config = config
        site = load_site(config.data_dir, follows=config.follow is not None)
        self.tls = PortsTls(config.tls, config.internal_tls)
        host = resolved_host(config.group_address)
        self.store = MessageStore.open(
            StoreConfig(
                path=config.data_dir,
                settings=config.settings.model_copy(),  # mqadmin may change them while the process runs
                sync_flush=config.flush == "Sync",
                store_host=host,
            )
        )
        membership = Membership(Identity(config.cluster, config.group, config.member), config.token_file)
        self.client = RemotingClient(
            on_disconnect=lambda address: self.broker.registrar.lost(address),
            connect_timeout=PEER_CONNECT_S,
            membership=membership,
            tls=self.tls.internal,
        )
        self.source = RemotingClient(
            on_disconnect=lambda address: self.broker.registrar.lost(address),
            connect_timeout=PEER_CONNECT_S,
            tls=None if config.source_ca_file is None else TlsOptions(ca_file=config.source_ca_file),
        )
        mark_origin(config.data_dir, site, self.store.log.end, self.store.epoch_cache.last_epoch)
        self.parts = wire(config, self.store, pack_host(*host), self.client, membership, self.tls, self.source, site)
        self.broker = self.parts.context
        self.port = 0

    async def start(self) -> None:
        """Start all parts. Raises OSError when a port is taken, and the errors of replication's state."""
        parts, broker = self.parts, self.broker
        broker.access.load()
        broker.replay.start(self.config.data_dir / "config")
        await broker.replication.start()
        self.port = await parts.ports.start()
        await parts.http.start()
        self.tls.start()
        broker.registrar.start()
        parts.group_address.start()
        broker.loop_watch.start()
        parts.tasks.start()
        broker.log_repair.start()
        broker.archiving.start()
        broker.archive_reads.start()
        broker.sites.start()
        log.info(
            "%s of %s/%s serves port %d, HTTP %d; log %d to %d, confirmed %d",
            self.config.name,
            self.config.cluster,
            self.config.group,
            self.port,
            parts.http.port,
            self.store.log.start,
            self.store.log.end,
            self.store.state.confirmed,
        )

    async def stop(self) -> None:
        parts, broker = self.parts, self.broker
        broker.health.stopping = True
        broker.changes.flush_offsets()
        parts.tasks.close()
        broker.loop_watch.close()
        await parts.snapshots.close()
        await broker.log_repair.close()
        await broker.archiving.close()
        await broker.archive_reads.close()
        await broker.compaction.close()
        await broker.sites.close()
        await broker.registrar.close()
        parts.group_address.close()
        broker.delays.close()
        broker.transactions.close()
        broker.pop.close()
        await broker.replication.stop()
        await parts.forwarder.close()
        await parts.relays.close()
        await parts.relayed.close()
        await parts.processor.close()
        await parts.ports.close(0.5)
        await parts.http.close()
        await self.tls.close()
        await self.client.close()
        await self.source.close()
        try:
            parts.snapshots.save_now()
            self.store.close()
        finally:
            if self.store.state.failed is not None:
                broker.replication.disk_failed()
        broker.replication.mark_clean()
        log.info("%s stopped%s", self.config.name, " cleanly" if self.store.state.failed is None else "")

    async def __aenter__(self) -> BrokerProcess:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


async def run(config: BrokerConfig, followed: Path | None = None) -> None:
    """Run until a signal. `followed`: the config file whose log level and fence count from now on."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    fence = fencing.Fence(followed, config.fenced)
    following = [] if followed is None else [asyncio.create_task(work) for work in (follow(followed), fence.follow())]
    try:
        while await _one_life(config, stopped, fence, followed):
            log.info("%s starts again", config.name)
    finally:
        for task in following:
            task.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)


async def _one_life(
    config: BrokerConfig, stopped: asyncio.Event, fence: fencing.Fence, followed: Path | None = None
) -> bool:
    """Run until a signal, a fence, or another part of the cluster in a pair of sites; True: start once more.
    `followed`: the config file.
    """
    if fence.up.is_set() and not await _until(fencing.wait(config, fence), stopped):
        return False
    prepare_disk(config.data_dir, load_site(config.data_dir, follows=config.follow is not None))
    if restoring.is_wanted(config) and not await _until(restoring.restore_first(config, followed), stopped):
        return False
    if migrating.is_wanted(config):
        guarding = Guarding(config, followed)
        if not await _until(migrating.migrate_first(config, guarding), stopped):
            return False
        config = guarding.of(config)
    process = BrokerProcess(config)
    await process.start()
    gc.collect()
    gc.freeze()
    again = process.broker.sites.must_restart
    events = (stopped, process.broker.health.must_end, again, fence.up)
    ends = [asyncio.ensure_future(event.wait()) for event in events]
    use = process.broker.registrar.use_sources
    had = config.source_name_servers
    servers = None if followed is None else asyncio.create_task(source_servers.follow(followed, had, use))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        await end_tasks(servers)
        await process.stop()
    if process.store.state.failed is not None:
        raise FlushFailed(f"the disk failed: {process.store.state.failed}; a start opens the store again")
    return (again.is_set() or fence.up.is_set()) and not stopped.is_set()


async def _until(filling: Coroutine[None, None, None], stopped: asyncio.Event) -> bool:
    """Fill the disk; False: a signal ended it. Raises OSError, StoreError."""
    work, end = asyncio.create_task(filling), asyncio.create_task(stopped.wait())
    await asyncio.wait((work, end), return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if not work.done():
        await end_tasks(work)
        return False
    work.result()
    return True


def main() -> int:
    descriptors.allow_all()
    keep_freed_memory()
    share_one_heap()
    parser = argparse.ArgumentParser(prog="python -m gantry_broker.broker", description="One member of a broker group.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see gantry_broker.config.BrokerConfig")
    parser.add_argument("--log-level", choices=LEVELS, help="Default: log_level of the config, which is followed.")
    arguments = parser.parse_args()
    logs.configure(arguments.log_level or level_in(arguments.config) or "INFO")
    try:
        config = BrokerConfig.load(arguments.config)
    except (OSError, ValidationError) as error:
        log.error("the configuration %s cannot be used: %s", arguments.config, error)
        return 2
    try:
        uvloop.run(run(config, None if arguments.log_level else arguments.config))
    except (ArchiveError, OSError, StoreError, StateError, TlsError) as error:
        log.error("%s cannot run: %s", config.name, error)
        return 1
    return 0
