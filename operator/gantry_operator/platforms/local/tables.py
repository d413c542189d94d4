"""Runs of tables on one machine: a process that outlives the supervisor, its order and its report in the folder."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gantry_broker.contracts.table_runs import RunOrder, TableOrder, from_text

from gantry_operator.access.wanted import secret_name
from gantry_operator.api.archive import ENCRYPTION_KEY
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.table import Tables
from gantry_operator.cluster.platform import TableRun
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.platforms.local.certificates import client_options
from gantry_operator.platforms.local.folder import ClusterFolder, make_private, read_json, secret_folder
from gantry_operator.platforms.local.key_files import key_file, read_secret
from gantry_operator.platforms.local.process import ProcessRecord, load_record, reap, save_record, send, start
from gantry_operator.platforms.local.table_catalog import local_catalog, tables_folder
from gantry_operator.platforms.local.users import authentication, super_user
from gantry_operator.registry.file import write_durably, write_whole
from gantry_operator.tables.schedule import started_ms

MODULE: Final = "gantry_spark.tables.run"
PROCESS: Final = "tables"
"""The name of the process in the folder."""
NEED: Final = "tables need more packages: pip install 'gantry-mq[spark,tables]'"
MAX_REPORT: Final = 2_097_152
NO_ARCHIVE: Final = "spec.tables.source is Archive, and the cluster has no spec.archive: write it, or source: Brokers"


class LocalTableRuns:
    """The runs of one cluster."""

    def __init__(
        self, folder: ClusterFolder, cluster: Callable[[], BrokerCluster], servers: Callable[[], Sequence[str]]
    ) -> None:
        """`servers`: the addresses of the NameServers."""
        self._folder = folder
        self._cluster = cluster
        self._servers = servers

    @property
    def _place(self) -> Path:
        return tables_folder(self._folder)

    async def newest(self) -> TableRun | None:
        return await asyncio.to_thread(self._newest)

    def _newest(self) -> TableRun | None:
        run_file = read_json(self._place / "run.json")
        record = self._running()
        if not isinstance(run_file, dict):
            return None if record is None else TableRun("", True, 0, frozenset())
        report = None
        path = self._place / "report.json"
        try:
            if path.stat().st_size <= MAX_REPORT:
                report = from_text(path.read_text())
        except (OSError, ValueError):
            pass
        name = str(run_file.get("run", ""))
        if report is not None and report.run != name:
            report = None
        topics = run_file.get("topics")
        started = run_file.get("startedMs")
        return TableRun(
            name,
            running=record is not None,
            started_ms=started if isinstance(started, int) else 0,
            topics=frozenset(map(str, topics)) if isinstance(topics, list) else frozenset(),
            report=report,
            problem="" if record is not None else f"the process ended early: see {self._folder.log(PROCESS)}",
        )

    def _running(self) -> ProcessRecord | None:
        path = self._folder.process(PROCESS)
        process = read_json(path)
        if isinstance(process, dict) and isinstance(process.get("pid"), int):
            reap(process["pid"])
        return load_record(path)

    async def start(self, name: str, tables: Sequence[TableOrder], spec: Tables, lasts_s: float) -> None:
        if importlib.util.find_spec("pyiceberg") is None or importlib.util.find_spec("gantry_spark") is None:
            raise StoreUnavailable(NEED)
        try:
            await asyncio.to_thread(self._start, name, tables, spec, lasts_s)
        except OSError as error:
            raise StoreUnavailable(f"the run cannot be started: {error}") from error

    def _start(self, name: str, tables: Sequence[TableOrder], spec: Tables, lasts_s: float) -> None:
        if self._running() is not None:
            raise StoreUnavailable("a run is active already")
        cluster, folder = self._cluster(), self._folder
        catalog = local_catalog(folder, spec)
        make_private(self._place)
        order = RunOrder(
            run=name,
            name_servers=";".join(self._servers()),
            tables=list(tables),
            catalog=catalog,
            namespace=spec.namespace,
            credentials=self._credentials(cluster, spec),
            spark=spec.executors > 0,
            conf=dict(spec.sparkConf),
            archive=_archive(cluster) if spec.source == "Archive" else {},
            lasts_s=lasts_s,
            report=str(self._place / "report.json"),
            **_tls(cluster, folder),
        )
        # The order has the properties of the catalog's Secret.
        path = self._place / "order.json"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(order.model_dump_json())
        (self._place / "report.json").unlink(missing_ok=True)
        began = {"run": name, "startedMs": started_ms(name), "topics": [t.topic for t in tables]}
        write_durably(self._place / "run.json", json.dumps(began))
        argv = [sys.executable, "-P", "-m", MODULE, "--order-file", str(path)]
        record = start(PROCESS, argv, config="", log=folder.log(PROCESS), cwd=folder.root)
        save_record(folder.process(PROCESS), record)

    def _credentials(self, cluster: BrokerCluster, spec: Tables) -> str | None:
        """Return a folder with the keys of the user that reads; None: the cluster has no authentication."""
        if authentication(cluster) == "Disabled" and spec.user is None:
            return None
        if spec.user is None:
            admin = super_user(self._folder)
            keys = {} if admin is None else {"accessKey": admin.access_key, "secretKey": admin.secret_key}
        else:
            keys = read_secret(key_file(self._folder, secret_name(cluster.name, spec.user)))
        if not keys.get("secretKey"):
            raise StoreUnavailable(
                f"user {spec.user or 'admin'} of spec.tables has no keys yet: add it with gantry user add"
            )
        place = self._place / "credentials"
        make_private(place)
        for key, value in keys.items():
            write_whole(place / key, value)
        return str(place)

    async def stop(self) -> None:
        record = await asyncio.to_thread(self._running)
        if record is not None:
            send(record, 15)


def _archive(cluster: BrokerCluster) -> dict[str, str]:
    """Return how a run reaches the archive, as options of the source. Raises StoreUnavailable."""
    archive = cluster.spec.archive
    if archive is None:
        raise StoreUnavailable(
            "spec.tables.source is Archive, and the cluster has no spec.archive: write it, or Brokers"
        )
    given = {
        "archive": archive.url,
        "endpoint": archive.endpoint,
        "region": archive.region,
        "credentials": archive.credentialsSecret and str(secret_folder(archive.credentialsSecret)),
        "keyFile": archive.encryption and str(secret_folder(archive.encryption.secretName) / ENCRYPTION_KEY),
    }
    return {name: value for name, value in given.items() if value}


def _tls(cluster: BrokerCluster, folder: ClusterFolder) -> dict[str, Any]:
    options = client_options(cluster, folder)
    if options is None:
        return {}
    return {"tls": True, "ca_file": None if options.ca_file is None else str(options.ca_file)}
