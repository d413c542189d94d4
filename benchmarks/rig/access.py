"""When a change of a user holds at each process of a cluster, seen by signed requests to every one of them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gantry_broker.access.signature import ACCESS_KEY, SIGNATURE, sign
from gantry_broker.protocol.codes import RequestCode, ResponseCode

from .wire import Wire

Key = tuple[str, str]
"""Name and secret key."""
Administration = tuple[int, dict[str, str], object]
"""A request about users: code, fields, and what its body says."""
_ACCEPTED = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
_PAUSE_S = 0.01


class Change(NamedTuple):
    """By process, seconds: `held_s` from the change until it answers as it should; `wrong_s` from the change, or from
    its return if it was down, until its last answer by the former users.
    """

    held_s: dict[str, float]
    wrong_s: dict[str, float]

    @property
    def everywhere_s(self) -> float:
        return max(self.held_s.values())

    @property
    def longest_wrong_s(self) -> float:
        return max(self.wrong_s.values())


def creation(user: str, secret: str, topics: str) -> list[Administration]:
    """Returns createUser and createAcl of mqadmin, for a user that may publish to topics and read them."""
    rule = {"resource": f"Topic:{topics}", "actions": ["Pub", "Sub"], "decision": "Allow"}
    return [
        (RequestCode.AUTH_CREATE_USER, {"username": user}, _user_info(user, secret)),
        (RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{user}"}, {"policies": [{"entries": [rule]}]}),
    ]


def another_key(user: str, secret: str) -> Administration:
    """Returns updateUser of mqadmin."""
    return RequestCode.AUTH_UPDATE_USER, {"username": user}, _user_info(user, secret)


def deletion(user: str) -> Administration:
    """Returns deleteUser of mqadmin."""
    return RequestCode.AUTH_DELETE_USER, {"username": user}, None


def _user_info(user: str, secret: str) -> dict[str, str]:
    return {"username": user, "password": secret, "userType": "Normal"}


class Watched:
    """The processes of the local cluster in this folder, with the ports that clients use."""

    def __init__(self, folder: Path, topic: str) -> None:
        """`topic`: one that the users may read."""
        ports: dict[str, int] = json.loads((folder / "ports.json").read_text())
        self.addresses = {use: f"127.0.0.1:{port}" for use, port in ports.items() if "/" not in use}
        self.users = folder / "access" / "users.json"
        self._keys = folder / "access" / "keys"
        self._ext = {"topic": topic, "queueId": "0"}

    def key(self, cluster: str, user: str) -> Key | None:
        """Returns the newest key of a user, as clients get it; None: there is none yet."""
        try:
            content = json.loads((self._keys / self._file(cluster, user)).read_text())
        except (OSError, ValueError):
            return None
        return content["accessKey"], content["secretKey"]

    @staticmethod
    def _file(cluster: str, user: str) -> str:
        return f"{cluster}-admin-user.json" if user == "admin" else f"{cluster}-user-{user}.json"

    def change(
        self, act: Callable[[], float | None], key: Callable[[], Key | None], accepted: bool,
        within_s: float = 20.0, quiet_s: float = 0.3,
    ) -> Change:  # fmt: skip
        """Acts, and asks all processes until each accepts (or refuses) the key for `quiet_s` without an exception.

        `act` returns the Unix time of the change; None: the file of the cluster's users has it. `key` is asked for
        until it returns one. Raises AssertionError with the processes that lag after `within_s`.
        """
        right: dict[str, float | None] = dict.fromkeys(self.addresses)
        wrong: dict[str, float] = dict.fromkeys(self.addresses, 0.0)
        back: dict[str, float] = dict.fromkeys(self.addresses, 0.0)
        stop = threading.Event()

        def watch(name: str) -> None:
            wire: Wire | None = None
            while not stop.is_set():
                now = time.time()
                found = key()
                try:
                    if wire is None:
                        wire, back[name] = Wire(self.addresses[name], 2.0), now
                    code = None if found is None else self._ask(wire, name, found)
                except OSError:
                    code = None
                    if wire is not None:
                        wire.socket.close()
                    wire = None
                said = True if code in _ACCEPTED else False if code == ResponseCode.NO_PERMISSION else None
                if said is accepted:
                    right[name] = right[name] or now
                else:
                    right[name] = None
                    wrong[name] = wrong[name] if said is None else now
                time.sleep(_PAUSE_S)
            if wire is not None:
                wire.socket.close()

        before = self._written()
        threads = [threading.Thread(target=watch, args=(name,), daemon=True) for name in self.addresses]
        for thread in threads:
            thread.start()
        try:
            changed = act()
            deadline = time.time() + within_s
            while True:
                since = list(right.values())
                if all(at is not None and time.time() - at > quiet_s for at in since):
                    break
                if time.time() > deadline:
                    raise AssertionError(f"not within {within_s:g} s: {[n for n, at in right.items() if at is None]}")
                time.sleep(_PAUSE_S)
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)
        if changed is None:
            changed = self._written()
            if changed == before:
                raise AssertionError("nothing was changed")
        held = {name: max((at or 0.0) - changed, 0.0) for name, at in right.items()}
        return Change(held, {name: max(at - max(changed, back[name]), 0.0) for name, at in wrong.items()})

    def administer(self, admin: Key, member: str, *requests: Administration) -> float:
        """Sends requests about users to a member, as mqadmin does, and returns the Unix time of the last answer."""
        with Wire(self.addresses[member]) as wire:
            for code, ext, content in requests:
                body, named = json.dumps(content).encode(), ext | {ACCESS_KEY: admin[0]}
                wire.call(code, named | {SIGNATURE: sign(named, body, admin[1])}, body)
        return time.time()

    def _ask(self, wire: Wire, name: str, key: Key) -> int:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC if "-namesrv-" in name else RequestCode.GET_MAX_OFFSET
        ext = self._ext | {ACCESS_KEY: key[0]}
        return wire.ask(code, ext | {SIGNATURE: sign(ext, b"", key[1])}).code

    def _written(self) -> float:
        with contextlib.suppress(OSError):
            return self.users.stat().st_mtime
        return 0.0
