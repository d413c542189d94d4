"""`gantry up`: checks the manifest, then becomes the supervisor, starts one, or sends the running one a new spec."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import Documents
from gantry_operator.api.user import BrokerUser
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.examples import QUICKSTART, examples
from gantry_operator.cli.manifest_files import read_documents
from gantry_operator.cli.output import note, say
from gantry_operator.cli.progress import Progress
from gantry_operator.platforms.local import control
from gantry_operator.platforms.local.folder import (
    ClusterFolder,
    default_folder,
    known_clusters,
    make_private,
    read_json,
)
from gantry_operator.platforms.local.proxies import with_proxies
from gantry_operator.platforms.local.supervisor_lock import AlreadySupervised, take_lock
from gantry_operator.registry.disk_errors import in_words

POLL_S = 0.05


def up(
    file: Path | None,
    directory: Path | None,
    detach: bool,
    timeout: float,
    tls: bool = False,
    proxies: int | None = None,
    *,
    wait: bool = True,
) -> None:
    """Run a cluster. Raises CliError. In the foreground it does not return: this process becomes the supervisor.

    `tls`: clients need TLS, whatever the manifest says. `proxies`: how many, whatever the manifest says; None: as it
    says, and one if it says nothing. `wait`: until clients can send and read.
    """
    os.umask(0o077)  # Also for the supervisor and all processes that it starts: their files are for this user alone.
    documents = read_documents(file or default_manifest(directory))
    cluster = documents.cluster
    if tls:
        cluster.spec.security.tls.mode = "Required"
    cluster = with_proxies(cluster, proxies)
    folder = default_folder(cluster.name) if directory is None else ClusterFolder(directory.expanduser().resolve())
    _refuse_foreign(folder, cluster, directory)
    supervised = control.supervisor_of(folder)
    if supervised is not None:
        _keep_users(folder, documents.users)
        _apply(folder, cluster)
        _keep_resources(folder, documents)
        say(f"`gantry up` (process {supervised.pid}) supervises {cluster.name} already and has the manifest now")
        if wait:
            _wait_ready(folder, timeout, None)
        return
    with _claim(folder) as lock:
        _prepare(folder, cluster)
        _keep_users(folder, documents.users)
        _keep_resources(folder, documents)
        # The supervisor keeps the lock, so no other command can take it in between.
        argv = [
            sys.executable,
            "-P",
            "-m",
            "gantry_operator.platforms.local.supervisor",
            str(folder.root),
            str(lock.fileno()),
        ]
        if not detach:
            sys.stdout.flush()
            os.set_inheritable(lock.fileno(), True)
            os.execv(sys.executable, argv)
        with open(folder.supervisor_log, "ab") as out:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder.root, start_new_session=True,
                pass_fds=(lock.fileno(),),
            )  # fmt: skip
    if wait:
        _wait_ready(folder, timeout, child)


def default_manifest(directory: Path | None) -> Path:
    """Return the manifest for `gantry up` without a file: the one that the folder was started with, else the
    quickstart.
    """
    quickstart = Path(str(examples()[QUICKSTART]))
    if directory is None:
        saved = default_folder(read_documents(quickstart).cluster.name).manifest
    else:
        saved = ClusterFolder(directory.expanduser().resolve()).manifest
    return saved if saved.exists() else quickstart


def _refuse_foreign(folder: ClusterFolder, cluster: BrokerCluster, directory: Path | None) -> None:
    """Refuse a folder of another cluster, and a name that runs elsewhere. Raises CliError.

    A folder without a manifest, after a full disk for example, is recognised by its lock.
    """
    saved = read_json(folder.manifest)
    if isinstance(saved, dict):
        before = saved.get("metadata", {}).get("name")
        if before != cluster.name:
            raise CliError(f"{folder.root} holds the cluster {before!r}: use another --dir", Exit.USAGE)
    elif folder.root.is_dir() and any(folder.root.iterdir()) and not folder.lock.exists():
        raise CliError(f"{folder.root} is not empty and holds no cluster: use another --dir", Exit.USAGE)
    if directory is None:
        elsewhere = [f for n, f in known_clusters() if n == cluster.name and f.root != folder.root]
        if elsewhere:
            raise CliError(
                f"{cluster.name} runs in {elsewhere[0].root}: use --dir {elsewhere[0].root}, or another metadata.name",
                Exit.USAGE,
            )


def _claim(folder: ClusterFolder) -> IO[str]:
    """Take the lock before writing any other file. Raises CliError."""
    try:
        make_private(folder.root)
        return take_lock(folder)
    except AlreadySupervised:
        raise CliError(
            "another command uses this cluster, or another `gantry up` is just starting: try again"
        ) from None
    except OSError as error:
        raise CliError(f"{folder.root} cannot be used: {in_words(error)}") from None


def _prepare(folder: ClusterFolder, cluster: BrokerCluster) -> None:
    from pydantic import ValidationError

    from gantry_operator.platforms.local.manifest import load_saved, refuse_change, refuse_elsewhere, save_manifest

    try:
        refuse_elsewhere(cluster)
        folder.make()
        if folder.manifest.exists():
            refuse_change(load_saved(folder), cluster)
        save_manifest(folder, cluster)
        folder.remember(cluster.name)
    except control.ControlError as error:
        raise CliError(str(error), Exit.USAGE) from None
    except ValidationError as error:
        if any(e["type"] == "json_invalid" for e in error.errors()):
            raise CliError(
                f"{folder.manifest} is damaged: move it away, and start with the manifest that the cluster had"
            ) from None
        fields = ", ".join(".".join(map(str, e["loc"])) for e in error.errors())
        raise CliError(
            f"{folder.manifest} was written by another version of gantry ({fields} cannot be read): use that "
            "version, or use another --dir"
        ) from None
    except OSError as error:
        raise CliError(f"{folder.root} cannot be used: {in_words(error)}") from None


def _keep_users(folder: ClusterFolder, users: Sequence[BrokerUser]) -> None:
    """Add or change the users of the manifest. Others stay, as with `kubectl apply`. Raises CliError."""
    if not users:
        return
    from gantry_operator.actions.local_users import keep_local

    keep_local(folder, users)


def _keep_resources(folder: ClusterFolder, documents: Documents) -> None:
    """Add or change the topics and groups of the manifest. Others stay. Raises CliError."""
    if not documents.topics and not documents.groups:
        return
    from gantry_operator.actions.local_resources import keep_local

    for remark in keep_local(folder, documents.topics, documents.groups):
        note(remark)


def _apply(folder: ClusterFolder, cluster: BrokerCluster) -> None:
    manifest: dict[str, Any] = cluster.model_dump(mode="json", exclude={"status"}, exclude_none=True)
    try:
        asyncio.run(control.ask(folder, "apply", 10, manifest=manifest))
    except control.ControlError as error:
        raise CliError(str(error), Exit.USAGE) from None


def _wait_ready(folder: ClusterFolder, timeout: float, child: subprocess.Popen[bytes] | None) -> None:
    """Wait until a client can send and read. Raises CliError with the missing condition."""
    deadline = time.monotonic() + timeout
    missing = "the supervisor has not started"
    with Progress("starting") as progress:
        while time.monotonic() < deadline:
            if child is not None and child.poll() is not None:
                last = _last_line(folder.supervisor_log)
                raise CliError(f"it could not be started, see {folder.supervisor_log}: {last}")
            try:
                info = asyncio.run(control.ask(folder, "info", 5))
            except control.ControlError as error:
                missing = str(error)
            else:
                missing = info["notReady"] or info["rolling"]
                if info["ready"] and not info["rolling"]:
                    break
            progress.say(missing)
            time.sleep(POLL_S)
        else:
            raise CliError(
                f"not ready after {timeout:g} s: {missing}. It keeps trying: see `gantry status`", Exit.NOT_IN_TIME
            )
    say(info["describe"])


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it printed nothing"
