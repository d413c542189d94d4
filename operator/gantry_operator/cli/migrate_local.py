"""A migration on this machine: the source that a manifest names, and the records in the cluster's folder."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gantry_operator.cli.errors import CliError, Exit

if TYPE_CHECKING:
    from gantry_broker.client import Credentials

    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.api.migration import FromRocketMQ
    from gantry_operator.migration import rollback_steps
    from gantry_operator.migration.cutover_edge import Edge, SourcePlace
    from gantry_operator.migration.cutover_steps import Record
    from gantry_operator.platforms.local.folder import ClusterFolder

RECORD = "migration.json"
"""In the cluster's folder: the record of the cutover. The supervisor reads it, too (`platform.MIGRATION`)."""
ROLLBACK = "rollback.json"
"""The record of a rollback."""
ROLLBACK_COPY = "rollback-copy.json"
"""What a rollback has copied."""


def load(file: Path) -> tuple[BrokerCluster, FromRocketMQ]:
    from gantry_operator.cli.manifest_files import read_manifest

    cluster = read_manifest(file)
    return cluster, source_of(cluster, str(file))


def source_of(cluster: BrokerCluster, where: str) -> FromRocketMQ:
    source = None if cluster.spec.bootstrap is None else cluster.spec.bootstrap.fromRocketMQ
    if source is None:
        raise CliError(
            f"{where} has no spec.bootstrap.fromRocketMQ: write the addresses of the source's NameServers there",
            Exit.USAGE,
        )
    return source


def brokers_of(cluster: BrokerCluster, source: FromRocketMQ) -> list[str]:
    """Return the source's brokerNames."""
    return [source.broker_of(group.name, group.broker_name) for group in cluster.spec.brokerGroups]


def place_of(source: FromRocketMQ) -> SourcePlace:
    """Secrets of this machine are folders. Raises CliError for a missing one."""
    from gantry_operator.platforms.local import source_config

    keys_of(source.accessKeySecret)
    return source_config.place_of(source)


def keys_of(secret: str | None) -> Credentials | None:
    """Return the keys in a Secret, which is a folder on this machine. Raises CliError."""
    from gantry_broker.client import Credentials

    from gantry_operator.platforms.local.folder import secret_folder

    if secret is None:
        return None
    folder = secret_folder(secret)
    try:
        return Credentials((folder / "accessKey").read_text().strip(), (folder / "secretKey").read_text().strip())
    except (OSError, ValueError) as error:
        raise CliError(f"Secret {secret}: {error}: write the files accessKey and secretKey in {folder}") from None


@asynccontextmanager
async def open_edge(folder: ClusterFolder) -> AsyncIterator[Edge]:
    from gantry_operator.cluster.member_http import make_client
    from gantry_operator.migration.cutover_edge import Edge, GroupPlace
    from gantry_operator.plan.plan import plan
    from gantry_operator.platforms.local.certificates import read_authorities, scheme
    from gantry_operator.platforms.local.manifest import load_saved
    from gantry_operator.platforms.local.ports import Ports

    cluster = load_saved(folder)
    source = source_of(cluster, f"the cluster {cluster.name}")
    ports = Ports.load(folder.ports)
    groups = []
    for group in plan(cluster).groups:
        urls = [f"{scheme(cluster)}://127.0.0.1:{ports[f'{m.name}/http']}" for m in group.members]
        broker = source.broker_of(group.name, cluster.broker_name(group.name))
        groups.append(GroupPlace(group.name, broker, ports.address(f"group/{group.name}"), partial(tuple, urls)))
    async with (
        make_client(folder.token.read, lambda: read_authorities(folder)) as http,
        Edge(place_of(source), groups, http) as edge,
    ):
        yield edge


def read_record(folder: ClusterFolder) -> Record:
    """Read the record of a migration. Raises CliError for an invalid file."""
    from gantry_operator.migration.cutover_steps import Record

    path = folder.root / RECORD
    try:
        return Record.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return Record()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CliError(f"{path} cannot be read: {error!r}") from None


def held_source(folder: ClusterFolder) -> str:
    """Return what a source lacks whose cutover is under way, and who gives it back; empty: nothing. Raises CliError."""
    from gantry_operator.migration.cutover_steps import Phase

    phase = read_record(folder).phase if (folder.root / RECORD).exists() else Phase.FOLLOWING
    if phase in (Phase.FOLLOWING, Phase.DONE):
        return ""
    command = "cutover" if phase in (Phase.FINISHING, Phase.TAKING) else "abort"
    return (
        f"the cutover from RocketMQ is in phase {phase.value}, and its clients may have no broker: run gantry migrate "
        f"{command} --dir {folder.root}"
    )


def lacking_brokers(folder: ClusterFolder, *, deleted: bool) -> str:
    """Return which of the source's brokers were away when an abort or a rollback gave the others their settings back,
    and the command for them; empty: none. `deleted`: the folder goes, with its manifest. Raises CliError.
    """
    from gantry_operator.migration import rollback_steps
    from gantry_operator.migration.cutover_steps import said_owed, still_owed

    left, event = still_owed(read_record(folder), {}), "abort"
    if not left:
        left, event = rollback_steps.still_owed(read_rollback(folder), {}), "rollback"
    return said_owed(left, release_command(folder, deleted=deleted), event=event) if left else ""


async def changing_of(folder: ClusterFolder) -> list[str]:
    """Return what the cluster does for a changed manifest, or waits for; nothing where no supervisor answers."""
    from gantry_operator.platforms.local.control import ControlError, ask

    try:
        return [str(text) for text in (await ask(folder, "info", 5)).get("changing") or ()]
    except ControlError:
        return []


def release_command(folder: ClusterFolder, *, deleted: bool = False) -> str:
    """Say which command gives the source what it lacks without the cluster, and without its folder if that is
    `deleted`. A manifest may have lost its source since.
    """
    from gantry_operator.migration.cutover_steps import RELEASE
    from gantry_operator.platforms.local.folder import secret_folder
    from gantry_operator.platforms.local.manifest import load_saved

    try:
        cluster = load_saved(folder)
        source = source_of(cluster, str(folder.manifest))
    except (CliError, OSError, ValueError):
        return RELEASE
    words = [str(folder.manifest)]
    if deleted:
        words = ["--name-servers", ";".join(source.nameServers), "--brokers", ",".join(brokers_of(cluster, source))]
        words += [] if source.accessKeySecret is None else ["--secret", source.accessKeySecret]
        words += [] if source.tls is None else ["--ca", str(secret_folder(source.tls.caSecret) / "ca.crt")]
    return f"run gantry migrate release {shlex.join(words)}"


def after_rollback(folder: ClusterFolder, left: dict[str, list[str]]) -> str:
    """Name the source's brokers that a rollback could not give back, and the command that does."""
    from gantry_operator.migration.cutover_steps import said_owed

    return said_owed(left, release_command(folder), event="rollback")


@contextlib.contextmanager
def alone(folder: ClusterFolder) -> Iterator[None]:
    """Let no other command make steps of a migration meanwhile: each has the record in its memory. Raises CliError."""
    import fcntl

    with (folder.root / "migrate.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CliError("another gantry migrate command is at work on this cluster: end it first") from None
        yield


def read_rollback(folder: ClusterFolder) -> rollback_steps.Record:
    """Read the record of a rollback. Raises CliError for an invalid file."""
    from gantry_operator.migration import rollback_steps

    path = folder.root / ROLLBACK
    try:
        return rollback_steps.Record.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return rollback_steps.Record()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CliError(f"{path} cannot be read: {error!r}") from None


async def save_record(folder: ClusterFolder, record: Record) -> None:
    _save(folder, RECORD, record.to_json())


async def save_rollback(folder: ClusterFolder, record: rollback_steps.Record) -> None:
    _save(folder, ROLLBACK, record.to_json())


def _save(folder: ClusterFolder, name: str, value: dict[str, Any]) -> None:
    from gantry_operator.registry.file import write_durably

    write_durably(folder.root / name, json.dumps(value))
