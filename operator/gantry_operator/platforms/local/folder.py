"""The folder of a local cluster, and the pointers by which commands find it.

One folder per cluster holds the manifest, ports, registry, configs, logs, data and process records. Its default
location is `$XDG_STATE_HOME/gantry/` (`~/.local/state/gantry/`). A small pointer file there for each started cluster,
also for one in another folder, lets every command find it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gantry_broker.contracts.token_file import TokenFile

from gantry_operator.api.base import OWNER
from gantry_operator.registry.file import write_durably

TOKEN_BYTES = 32
OTHERS = stat.S_IRWXG | stat.S_IRWXO


class ClusterNotFound(Exception):
    """No cluster, or several. The text says what to do."""


def state_home() -> Path:
    """Return the default location of the user's clusters."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".local" / "state") / "gantry"


def secret_folder(name: str) -> Path:
    """Return the folder of a Secret that a manifest names: one file for each key."""
    base = os.environ.get("XDG_CONFIG_HOME")
    home = Path(base) if base and os.path.isabs(base) else Path.home() / ".config"
    return home / "gantry" / "secrets" / name


def make_private(folder: Path) -> None:
    """Create a folder that only this user can enter, or restrict an existing one. Raises OSError.

    A folder of another user is refused: its owner could read keys in it, and replace files. Missing parents get the
    system's default mode.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owned = folder.stat()
    if owned.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to user {owned.st_uid}: use a folder of your own")
    mode = stat.S_IMODE(owned.st_mode)
    if mode & OTHERS:
        folder.chmod(mode & ~OTHERS)


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The paths of one cluster."""

    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / "cluster.json"

    def saved_name(self) -> str:
        """Return the name of the cluster in its manifest; empty: there is none that can be read."""
        saved = read_json(self.manifest)
        metadata = saved.get("metadata") if isinstance(saved, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return name if isinstance(name, str) else ""

    @property
    def ports(self) -> Path:
        return self.root / "ports.json"

    @property
    def registry(self) -> Path:
        return self.root / "registry"

    @property
    def token_file(self) -> Path:
        """The admin token of the members' HTTP interface."""
        return self.root / "token"

    @property
    def token(self) -> TokenFile:
        """A reader of the token. It returns the last token while the file cannot be read."""
        return TokenFile(self.token_file)

    @property
    def lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def supervisor(self) -> Path:
        """The record of the supervisor and its port."""
        return self.root / "supervisor.json"

    @property
    def supervisor_log(self) -> Path:
        return self.root / "log" / "supervisor.log"

    @property
    def tls(self) -> Path:
        """The cluster's certificates, if it uses TLS."""
        return self.root / "tls"

    @property
    def access(self) -> Path:
        """Users, their keys, and the state of the access table."""
        return self.root / "access"

    @property
    def users(self) -> Path:
        return self.access / "users.json"

    @property
    def keys(self) -> Path:
        return self.access / "keys"

    @property
    def access_state(self) -> Path:
        return self.access / "state.json"

    @property
    def access_table(self) -> Path:
        """The table for the proxies."""
        return self.access / "table.json"

    @property
    def proxy_key(self) -> Path:
        """The secret key of the proxies' user, alone."""
        return self.access / "proxy-key"

    @property
    def uid_file(self) -> Path:
        """The cluster's unique id: the owner of its archive. It goes with the data."""
        return self.root / "uid"

    @property
    def uid(self) -> str:
        """Raises OSError for a damaged file: by another id the cluster would not own its archive."""
        text = self.uid_file.read_text(errors="replace").strip()
        if re.fullmatch(OWNER, text) is None:
            raise OSError(
                f"{self.uid_file} is damaged: write the owner into it that the manifest in the archive names, or "
                "remove it if the cluster has no archive"
            )
        return text

    @property
    def site(self) -> Path:
        """The part of the cluster in a pair of sites."""
        return self.root / "site.json"

    @property
    def resources(self) -> Path:
        """Topics and consumer groups of the manifest and of commands."""
        return self.root / "resources.json"

    @property
    def resources_status(self) -> Path:
        """Their status, as the supervisor wrote it last."""
        return self.root / "resources-status.json"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def last_failover(self) -> Path:
        return self.root / "last-failover.json"

    @property
    def conditions(self) -> Path:
        """Conditions as last shown, with the times of their changes."""
        return self.root / "conditions.json"

    def process(self, name: str) -> Path:
        return self.running / f"{name}.json"

    def config(self, name: str) -> Path:
        return self.configs / f"{name}.json"

    def log(self, name: str) -> Path:
        return self.root / "log" / f"{name}.log"

    def data(self, name: str) -> Path:
        return self.root / "data" / name

    def make(self) -> None:
        """Create the subfolders, for this user alone, and the admin token. Raises OSError."""
        make_private(self.root)
        for part in ("run", "config", "log", "data", "registry", "access", "access/keys"):
            make_private(self.root / part)
        if not self.uid_file.exists():
            write_durably(self.uid_file, str(uuid.uuid4()))
        token = self.token
        if not self.token_file.exists() or token.read() is None:
            write_durably(self.token_file, secrets.token_urlsafe(TOKEN_BYTES))
        elif stat.S_IMODE(self.token_file.stat().st_mode) & OTHERS:
            self.token_file.chmod(0o600)

    @property
    def running(self) -> Path:
        """The names of processes with a record."""
        return self.root / "run"

    @property
    def configs(self) -> Path:
        """The names of the cluster's processes, running or not: each has a config."""
        return self.root / "config"

    @property
    def file_name(self) -> str:
        """The file about this cluster in a folder with files of all clusters."""
        return f"{hashlib.sha256(str(self.root).encode()).hexdigest()[:12]}.json"

    # ---- the pointer by which commands find it

    def _pointer(self) -> Path:
        return state_home() / "clusters" / self.file_name

    def remember(self, name: str) -> None:
        pointer = self._pointer()
        make_private(state_home())
        make_private(pointer.parent)
        write_durably(pointer, json.dumps({"name": name, "dir": str(self.root)}))

    def forget(self) -> None:
        self._pointer().unlink(missing_ok=True)


def default_folder(name: str) -> ClusterFolder:
    return ClusterFolder(state_home() / "data" / name)


def known_clusters() -> Iterator[tuple[str, ClusterFolder]]:
    """Yield started clusters that are not stopped, by name."""
    pointers = state_home() / "clusters"
    if not pointers.is_dir():
        return
    folders = []
    for path in pointers.glob("*.json"):
        pointer = read_json(path)
        if isinstance(pointer, dict) and "dir" in pointer and Path(pointer["dir"]).is_dir():
            folders.append((str(pointer.get("name", "")), ClusterFolder(Path(pointer["dir"]))))
    yield from sorted(folders, key=lambda pair: (pair[0], str(pair[1].root)))


def stopped_clusters() -> Iterator[tuple[str, ClusterFolder]]:
    """Find stopped clusters in the default location whose messages are kept, by name."""
    running = {folder.root for _, folder in known_clusters()}
    for root in sorted((state_home() / "data").glob("*")):
        if root not in running and ClusterFolder(root).manifest.exists():
            yield root.name, ClusterFolder(root)


def find_stopped(name: str | None) -> ClusterFolder | None:
    """Find the stopped cluster of that name, or the only one; None: there is none.

    Raises ClusterNotFound for several.
    """
    stopped = [(n, f) for n, f in stopped_clusters() if name is None or n == name]
    if len(stopped) > 1:
        names = " or --cluster ".join(n for n, _ in stopped)
        raise ClusterNotFound(f"several clusters are stopped, none is running: choose with --cluster {names}")
    return stopped[0][1] if stopped else None


def find_folder(directory: Path | None, name: str | None) -> ClusterFolder:
    """Find the cluster by folder, by name, or as the only one. Raises ClusterNotFound."""
    if directory is not None:
        folder = ClusterFolder(directory.expanduser().resolve())
        if not folder.manifest.exists():
            raise ClusterNotFound(f"{folder.root} holds no cluster; start one with: gantry up FILE --dir {directory}")
        return folder
    running = [(n, f) for n, f in known_clusters() if name is None or n == name]
    if len(running) == 1:
        return running[0][1]
    if not running:
        if name is not None:
            raise ClusterNotFound(f"no local cluster is called {name!r}; `gantry up FILE` starts one")
        raise ClusterNotFound("no local cluster is running; start one with: gantry up")
    if len({n for n, _ in running}) == len(running):
        raise ClusterNotFound(
            f"several clusters are running: choose with --cluster {' or --cluster '.join(n for n, _ in running)}"
        )
    dirs = " or --dir ".join(str(f.root) for _, f in running)
    raise ClusterNotFound(f"several clusters are running: choose with --dir {dirs}")


def read_json(path: Path) -> Any:
    """Return the JSON in a file; None: it is missing or holds no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None


PORTS: Final = range(1, 65_536)


def read_ports(path: Path) -> dict[str, int]:
    """Ports by use, see `ports.Ports`. Invalid values are left out, as if no port had been chosen yet."""
    stored = read_json(path)
    if not isinstance(stored, dict):
        return {}
    return {use: port for use, port in stored.items() if type(port) is int and port in PORTS}
