"""The users of a local cluster: files in its folder that only this user can read.

`access/users.json` holds the BrokerUsers, `access/keys/SECRET.json` the keys of each, `access/state.json` the state of
the access table. Commands change the first one under a lock, and the supervisor follows the files.
"""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gantry_operator.access.decide import Observed, UserResult
from gantry_operator.access.state import AccessState
from gantry_operator.access.wanted import (
    ADMIN,
    ADMIN_NAME,
    PROXY_NAME,
    SECRET_KEY,
    secret_name,
    wanted_admin,
    wanted_proxy,
    wanted_user,
)
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.security import Authentication
from gantry_operator.api.user import BrokerUser
from gantry_operator.cluster.store_unavailable import StoreUnavailable
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.local.folder import ClusterFolder, make_private
from gantry_operator.platforms.local.key_files import key_file, read_secret
from gantry_operator.platforms.local.ports import on_loopback
from gantry_operator.registry.file import write_durably

if TYPE_CHECKING:
    from gantry_broker.client.credentials import Credentials

log = logging.getLogger(__name__)


class Users(BaseModel):
    """The file with the users."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    users: dict[str, BrokerUser] = Field(default_factory=dict)
    rotateAdmin: str = ""
    """The last request for a new key of the super user."""


def authentication(cluster: BrokerCluster) -> Authentication:
    """Return the authentication of a local cluster."""
    return cluster.spec.security.mode(loopback=on_loopback())


def prepare(folder: ClusterFolder) -> None:
    """Create the folders. Raises OSError."""
    make_private(folder.access)
    make_private(folder.keys)


def load_users(folder: ClusterFolder) -> Users:
    """Read the users of the folder. Raises OSError, and ValidationError for a file that was damaged or is of another
    version.
    """
    try:
        return Users.model_validate_json(folder.users.read_bytes())
    except FileNotFoundError:
        return Users()


@contextmanager
def changed_users(folder: ClusterFolder) -> Iterator[Users]:
    """Change the users: they are written at the end of the block. One program at a time. Raises like `load_users`."""
    prepare(folder)
    with open(folder.access / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users = load_users(folder)
        yield users
        write_durably(folder.users, users.model_dump_json(exclude={"users": {"__all__": {"status"}}}, indent=1))


def write_key(folder: ClusterFolder, secret: str, content: Mapping[str, str]) -> Path:
    """Write such a file. Raises OSError."""
    prepare(folder)
    path = key_file(folder, secret)
    write_durably(path, json.dumps(dict(content), indent=1))
    return path


class LocalAccessStore:
    """The durable side of the access table of a local cluster."""

    def __init__(
        self, folder: ClusterFolder, cluster: BrokerCluster, event: Callable[[str, str, str, str], None]
    ) -> None:
        """`event`: kind, reason, message and the thing that it is about."""
        self.cluster = cluster
        self.shown: dict[str, tuple[UserResult, bool]] = {}
        """By user: the outcome, and whether the members that answer know it."""
        self._folder = folder
        self._event = event
        self._seen: object = None
        self._table: bytes | None = None
        """As written last."""

    def changed(self) -> bool:
        """Whether a file has changed since the last call."""
        now = [_mark(self._folder.users), *sorted(map(_mark, self._folder.keys.glob("*.json")))]
        changed, self._seen = now != self._seen, now
        return changed

    def observe(self) -> Observed | None:
        try:
            users = load_users(self._folder)
        except (OSError, ValidationError) as error:
            raise StoreUnavailable(f"{self._folder.users} cannot be read: {error}") from error
        users_ = [wanted_admin(self.cluster.name, users.rotateAdmin), *map(wanted_user, users.users.values())]
        if self._has_proxies():
            users_.append(wanted_proxy(self.cluster.name))
        secrets = {w.secret: read_secret(key_file(self._folder, w.secret)) for w in users_}
        own = secret_name(self.cluster.name, PROXY_NAME)
        if secrets.get(own) and not self._folder.proxy_key.exists():
            secrets[own] = {}  # Then it is written again, with this file.
        security = self.cluster.spec.security
        readable = {name: content for name, content in secrets.items() if content}
        return Observed(self.cluster.name, authentication(self.cluster), security, users_, readable)

    async def load(self) -> AccessState:
        try:
            return AccessState.model_validate_json(self._folder.access_state.read_bytes())
        except FileNotFoundError:
            return AccessState()
        except ValidationError:
            self._event("Warning", "AccessStateLost", f"{self._folder.access_state} cannot be read", self.cluster.name)
            return AccessState()
        except OSError as error:
            raise StoreUnavailable(f"{self._folder.access_state} cannot be read: {error}") from error

    async def save(self, state: AccessState) -> None:
        self._write(self._folder.access_state, state.model_dump_json(indent=1))

    async def write_secret(self, name: str, content: Mapping[str, str]) -> None:
        if name == secret_name(self.cluster.name, PROXY_NAME):
            self._write(self._folder.proxy_key, content[SECRET_KEY])
        self._write(key_file(self._folder, name), json.dumps(dict(content), indent=1))

    async def write_table(self, table: bytes) -> None:
        if not self._has_proxies() or (table is self._table and self._folder.access_table.exists()):
            return
        self._write(self._folder.access_table, table.decode())
        self._table = table

    def _has_proxies(self) -> bool:
        return self.cluster.spec.proxy is not None and self.cluster.spec.proxy.replicas > 0

    def _write(self, path: Path, text: str) -> None:
        try:
            prepare(self._folder)
            write_durably(path, text)
        except OSError as error:
            raise StoreUnavailable(f"the state of the users is not kept: {error}") from error

    async def report(self, results: Mapping[str, UserResult], in_force: Callable[[str], bool]) -> None:
        shown = {name: (result, result.accepted and in_force(name)) for name, result in results.items()}
        for name, (result, _) in shown.items():
            former = self.shown.get(name)
            if not result.accepted and (former is None or former[0] != result):
                self._event("Warning", result.reason, result.message, f"user {name}")
        self.shown = shown

    def note(self, kind: str, reason: str, message: str, user: str) -> None:
        self._event(kind, reason, message, f"user {user.strip() or ADMIN}")


def _mark(path: Path) -> tuple[str, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return path.name, 0, 0
    return path.name, stat.st_mtime_ns, stat.st_ino


def described(users: Users, answer: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the users as resources, with the status that the supervisor reports; None: none runs."""
    out = []
    for user in sorted(users.users.values(), key=lambda u: u.name):
        obj = user.model_dump(mode="json", exclude={"status"}, exclude_none=True)
        status = None if answer is None else (answer.get("users") or {}).get(user.name)
        obj["status"] = {"accessKey": user.access_key} | (status or {})
        out.append(obj)
    return out


def super_user(folder: ClusterFolder) -> Credentials | None:
    """Return the keys of the super user; None: they are not made yet."""
    from gantry_broker.client.credentials import Credentials

    secret = read_secret(key_file(folder, secret_name(folder.saved_name(), ADMIN_NAME)))
    key = secret.get(SECRET_KEY)
    return Credentials(ADMIN, key) if key else None


def user_status(result: UserResult, in_force: bool) -> dict[str, Any]:
    """Return the part of a user's status that the supervisor knows."""
    good = result.accepted and result.reason == "Accepted"
    reason = ("InForce" if in_force else "Waiting") if good else result.reason
    message = result.message or ("" if in_force else "some members do not have the user as the spec says yet")
    status: dict[str, Any] = {
        "secret": result.secret,
        "keys": result.keys,
        "conditions": [
            {"type": "Ready", "status": str(good and in_force), "reason": reason, "message": message}
        ],
    }  # fmt: skip
    if result.old_key_expires is not None:
        status["oldKeyExpires"] = utc(int(result.old_key_expires * 1000))
    return status


def secret_of(folder: ClusterFolder, cluster: str, user: str) -> tuple[str, str]:
    """Return the Secret of a user and the key in it. Raises KeyError for a user that does not exist, and like
    `load_users`.
    """
    if user == ADMIN:
        return secret_name(cluster, ADMIN_NAME), SECRET_KEY
    resource = load_users(folder).users[user]
    if resource.spec.secret is not None:
        return resource.spec.secret.name, resource.spec.secret.key
    return secret_name(cluster, user), SECRET_KEY
