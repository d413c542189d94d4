"""The users of a cluster of this machine, for `gantry user` and `gantry up`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gantry_operator.access.wanted import ACCESS_KEY, ADMIN, secret_name
from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.local_resources import readable
from gantry_operator.actions.managed import merged
from gantry_operator.api.manifest import problems_of
from gantry_operator.api.user import ROTATE, BrokerUser
from gantry_operator.platforms.local import control, users
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.key_files import key_file, read_secret

READ_S = 10.0
"""Seconds to wait until the supervisor has read a change."""
POLL_S = 0.1


def ready_of(user: Mapping[str, Any]) -> tuple[str, str, str]:
    """Status, reason and message of the condition Ready."""
    conditions = (user.get("status") or {}).get("conditions") or []
    ready: dict[str, Any] = next((c for c in conditions if c.get("type") == "Ready"), {})
    return str(ready.get("status", "")), str(ready.get("reason", "")), str(ready.get("message", ""))


class LocalUsers:
    """The users of a cluster of this machine."""

    namespace = "default"

    def __init__(self, folder: ClusterFolder, cluster: str) -> None:
        self.cluster = cluster
        self._folder = folder

    async def list(self) -> list[dict[str, Any]]:
        answer = await self._asked()
        with readable(self._folder.users):
            return users.described(users.load_users(self._folder), answer)

    async def taken(self) -> Collection[str]:
        """Return the names that no new user can have."""
        with readable(self._folder.users):
            return set(users.load_users(self._folder).users)

    async def create(self, user: BrokerUser) -> None:
        with readable(self._folder.users), users.changed_users(self._folder) as users_file:
            if user.name in users_file.users:
                raise ActionError(f"{user.name} exists already: delete it first, or change it in your manifest")
            users_file.users[user.name] = user

    async def change(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change fields of the spec (a merge patch). Raises ActionError."""
        with readable(self._folder.users), users.changed_users(self._folder) as users_file:
            former = users_file.users.get(name)
            if former is None:
                raise ActionError(f"there is no user {name}, but {', '.join(sorted(users_file.users)) or 'none'}")
            spec = merged(former.spec.model_dump(mode="json", exclude_none=True), changes)
            try:
                changed = BrokerUser.make(name, spec.pop("cluster"), former.metadata.namespace, **spec)
            except ValidationError as error:
                problems = "; ".join(map(str, problems_of(error.errors(), BrokerUser)))
                raise ActionError(problems, Cause.BAD_INPUT) from None
            changed.metadata = former.metadata
            users_file.users[name] = changed
        await self._read_by_supervisor()

    async def delete(self, name: str) -> None:
        with readable(self._folder.users), users.changed_users(self._folder) as users_file:
            user = users_file.users.pop(name, None)
            if user is None:
                raise ActionError(f"there is no user {name}, but {', '.join(sorted(users_file.users)) or 'none'}")
        if user.spec.secret is None:
            key_file(self._folder, secret_name(self.cluster, name)).unlink(missing_ok=True)
        await self._read_by_supervisor()

    async def rotate(self, name: str, request: str) -> None:
        if await self._asked() is None:
            raise ActionError("no `gantry up` runs: a key is rotated while one does")
        with readable(self._folder.users), users.changed_users(self._folder) as users_file:
            if name == ADMIN:
                users_file.rotateAdmin = request
                return
            if name not in users_file.users:
                raise ActionError(f"there is no user {name}, but {', '.join(sorted(users_file.users)) or 'none'}")
            users_file.users[name].metadata.annotations[ROTATE] = request

    async def key(self, name: str) -> tuple[str, str]:
        with readable(self._folder.users):
            file, key = self._place(name)
            secret = read_secret(file)
        if key not in secret:
            raise ActionError(f"{file} holds no {key}: `gantry up` writes it")
        return secret.get(ACCESS_KEY, ADMIN if name == ADMIN else name), secret[key]

    async def key_place(self, name: str) -> str:
        with readable(self._folder.users):
            return str(self._place(name)[0])

    def _place(self, name: str) -> tuple[Path, str]:
        try:
            secret, key = users.secret_of(self._folder, self.cluster, name)
        except KeyError:
            raise ActionError(f"there is no user {name}") from None
        return key_file(self._folder, secret), key

    async def put_secret(self, name: str, content: Mapping[str, str]) -> None:
        users.write_key(self._folder, name, content)

    async def state(self, name: str) -> tuple[str, str, str] | None:
        """Status, reason and message of a user; None: no supervisor runs."""
        answer = await self._asked()
        if answer is None:
            return None
        if not answer.get("current"):
            return "", "Waiting", str(answer.get("problem") or "")
        status = (answer.get("users") or {}).get(name)
        return ("", "Waiting", str(answer.get("problem") or "")) if status is None else ready_of({"status": status})

    async def why_not(self, name: str) -> str:
        state = await self.state(name)
        return "" if state is None else state[2]

    async def _read_by_supervisor(self) -> None:
        """Wait until the supervisor has read the last change."""
        deadline = time.monotonic() + READ_S
        while time.monotonic() < deadline:
            answer = await self._asked()
            if answer is None or answer.get("current"):
                return
            await asyncio.sleep(POLL_S)

    async def _asked(self) -> dict[str, Any] | None:
        if control.supervisor_of(self._folder) is None:
            return None
        try:
            return await control.ask(self._folder, "users", 5)
        except control.ControlError as error:
            if control.supervisor_of(self._folder) is None:
                return None
            raise ActionError(str(error)) from None


def keep_local(folder: ClusterFolder, users_of_manifest: Sequence[BrokerUser]) -> None:
    """Add or change users of a manifest. Raises ActionError."""
    with readable(folder.users), users.changed_users(folder) as users_file:
        for user in users_of_manifest:
            former = users_file.users.get(user.name)
            if former is not None:
                # A request for a rotation stays answered.
                user.metadata.annotations = former.metadata.annotations | user.metadata.annotations
            users_file.users[user.name] = user
