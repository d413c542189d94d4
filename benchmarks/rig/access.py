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
_ACCEPTED = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
_PAUSE_S = 0.01


class Change(NamedTuple):
    """`held_s`: by process, seconds from the change until the process did not behave otherwise any more."""

    held_s: dict[str, float]

    @property
    def everywhere_s(self) -> float:
        return max(self.held_s.values())


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
            content = json.loads((self._keys / f"{cluster}-user-{user}.json").read_text())
        except (OSError, ValueError):
            return None
        return content["accessKey"], content["secretKey"]

    def change(
        self, act: Callable[[], object], key: Callable[[], Key | None], accepted: bool,
        within_s: float = 20.0, quiet_s: float = 0.3,
    ) -> Change:  # fmt: skip
        """Acts, and asks all processes until each accepts (or refuses) the key for `quiet_s` without an exception.

        `key` is asked for until it returns one. Raises AssertionError with the processes that lag after `within_s`.
        """
        right: dict[str, float | None] = dict.fromkeys(self.addresses)
        stop = threading.Event()

        def watch(name: str) -> None:
            wire: Wire | None = None
            while not stop.is_set():
                now = time.time()
                found = key()
                try:
                    if wire is None:
                        wire = Wire(self.addresses[name], 2.0)
                    code = None if found is None else self._ask(wire, name, found)
                except OSError:
                    code = None
                    if wire is not None:
                        wire.socket.close()
                    wire = None
                wanted = code in _ACCEPTED if accepted else code == ResponseCode.NO_PERMISSION
                if wanted:
                    right[name] = right[name] or now
                else:
                    right[name] = None
                time.sleep(_PAUSE_S)
            if wire is not None:
                wire.socket.close()

        before = self._written()
        threads = [threading.Thread(target=watch, args=(name,), daemon=True) for name in self.addresses]
        for thread in threads:
            thread.start()
        try:
            act()
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
        written = self._written()
        if written == before:
            raise AssertionError("nothing was changed")
        return Change({name: max((at or 0.0) - written, 0.0) for name, at in right.items()})

    def _ask(self, wire: Wire, name: str, key: Key) -> int:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC if "-namesrv-" in name else RequestCode.GET_MAX_OFFSET
        ext = self._ext | {ACCESS_KEY: key[0]}
        return wire.ask(code, ext | {SIGNATURE: sign(ext, b"", key[1])}).code

    def _written(self) -> float:
        with contextlib.suppress(OSError):
            return self.users.stat().st_mtime
        return 0.0
