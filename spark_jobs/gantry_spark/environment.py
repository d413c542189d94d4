"""The data of a report besides the log: consumer offsets, disks and retention."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gantry_broker.settings import BrokerSettings
from gantry_broker.store.files import is_there

from gantry_spark import remoting
from gantry_spark.compacted import Compacted
from gantry_spark.directory import DirectoryLog
from gantry_spark.errors import SourceError
from gantry_spark.forecast import DEVICE_PREFIX, Disk
from gantry_spark.remote import RemoteLog, base_url, fetch_status, fetch_tables
from gantry_spark.summary import GroupOffset


@dataclass
class Environment:
    """Consumer offsets, disks and retention of the logs. `notes` names everything that is missing."""

    missing: list[str] = field(default_factory=list)
    """The parts of the report that are missing, for programs and for the status: `consumer groups of a`."""

    offsets: list[GroupOffset] = field(default_factory=list)
    without_offsets: set[str] = field(default_factory=set)
    """Logs whose consumer offsets could not be read."""
    compacted: dict[str, Compacted] = field(default_factory=dict)
    """By topic: what the brokers' own compaction has done, of all groups."""
    disks: list[Disk] = field(default_factory=list)
    reserved_hours: int = BrokerSettings.model_fields["fileReservedTime"].default
    notes: list[str] = field(default_factory=list)


def read_environment(logs: Sequence[Any], token_file: str | None) -> Environment:
    """Read the environment from the brokers, or from the files beside the log."""
    environment = Environment()
    for log in logs:
        if isinstance(log, DirectoryLog):
            _from_directory(environment, log)
        elif isinstance(log, RemoteLog):
            _from_cluster(environment, log, token_file)
    return environment


def _add(environment: Environment, log: str, table: dict[tuple[str, str, int], int]) -> None:
    environment.offsets += [
        GroupOffset(group, log, topic, queue, offset) for (group, topic, queue), offset in table.items()
    ]


def _from_directory(environment: Environment, log: DirectoryLog) -> None:
    root: Path = log.files.root
    if log.files.unrelated:
        listed = ", ".join(log.files.unrelated[:5]) + (" and more" if len(log.files.unrelated) > 5 else "")
        environment.notes.append(f"{log.name}: ignored files, not part of the log: {listed}")
    usage = shutil.disk_usage(root)
    environment.disks.append(Disk(log.name, usage.total, usage.free, f"{DEVICE_PREFIX}{root.stat().st_dev}"))
    path = root / "config" / "consumerOffset.json"
    try:
        if not is_there(path):
            environment.notes.append(f"{log.name}: no {path.name} beside the log: the report has no consumer groups")
            environment.missing.append(f"consumer groups of {log.name}")
            environment.without_offsets.add(log.name)
            return
        _add(environment, log.name, remoting.parse_offsets(path.read_bytes(), str(path)))
    except (OSError, SourceError) as error:
        environment.notes.append(f"{log.name}: {error}")
        environment.missing.append(f"consumer groups of {log.name}")
        environment.without_offsets.add(log.name)


def _from_cluster(environment: Environment, log: RemoteLog, token_file: str | None) -> None:
    """Each part by itself: one that cannot be read does not take the others with it."""
    try:
        master = fetch_status(log.master, token_file, log.trust)
        if master.disk is not None:
            machine = urlsplit(base_url(log.master)).hostname or ""
            environment.disks.append(Disk(log.name, master.disk.total_bytes, master.disk.free_bytes, machine))
    except SourceError as error:
        environment.notes.append(f"{log.name}: the disk is not known: {error}")
        environment.missing.append(f"disk of {log.name}")
    try:
        tables = fetch_tables(log.master, token_file, log.trust)
        _add(environment, log.name, tables.offsets)
        for topic, counts in tables.compacted.items():
            before = environment.compacted.get(topic, Compacted())
            environment.compacted[topic] = Compacted._make(map(add, before, counts))
    except SourceError as error:
        environment.notes.append(f"{log.name}: the lag of consumer groups is not known: {error}")
        environment.missing.append(f"consumer groups of {log.name}")
        environment.without_offsets.add(log.name)
    if log.reserved_hours is not None:
        environment.reserved_hours = log.reserved_hours
