"""The access table of one NameServer. Brokers send it over the registration port.

A NameServer knows no records and changes no users. It keeps the table beside its configuration if it has a folder.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import orjson

from gantry_broker.access.building import beside_loop
from gantry_broker.access.decide import Policy
from gantry_broker.access.gate import Gate
from gantry_broker.store.files import atomic_write
from gantry_broker.store.sealed import seal, unseal

log = logging.getLogger(__name__)

SECRET: Final = 0o600
"""Mode of the file."""


class NoRecords:
    """A NameServer has no log (`protocol.rights.Records`)."""

    def topic_at(self, offset: int) -> str:
        return ""

    def target_at(self, offset: int) -> str:
        return ""


class NameServerAccess:
    """What this NameServer holds of the access table. `path`: its file; None: it is kept in memory only."""

    def __init__(self, cluster: str, mode: str, path: Path | None = None) -> None:
        self.gate = Gate(cluster, mode, NoRecords())
        self._mode = mode
        self._stale = False
        """The table in the file is less strict than the configuration, whose mode counts until a table comes."""
        self._path = path
        self._lock = asyncio.Lock()

    @property
    def version(self) -> int:
        """Of the table; 0: there is none, or a stale one."""
        return 0 if self.gate.policy is None or self._stale else self.gate.policy.version

    def load(self) -> None:
        """Read the file, before the ports open. A damaged one counts as none: brokers send the table again."""
        if self._path is None:
            return
        try:
            policy = read_policy(unseal(self._path.read_bytes()))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.error("%s cannot be used, brokers send the table again: %s", self._path, error)
            return
        strict = policy.at_least(self._mode)
        self._stale = strict is not policy
        self.gate.set_policy(strict)

    async def put(self, body: bytes) -> int:
        """Take a table in force if it is a newer one; returns the version that is held then.

        Raises ValueError for what is no table, OSError when it is in force but cannot be kept.
        """
        policy = await beside_loop(lambda: read_policy(body))
        async with self._lock:
            held = self.gate.policy
            if held is not None and policy.version < held.version + (not self._stale):
                return held.version
            self._stale = False
            self.gate.set_policy(policy)
            log.info("access table %d: %s, %d users", policy.version, policy.mode, len(policy.users))
            if (path := self._path) is not None:
                await asyncio.to_thread(lambda: atomic_write(path, seal(body), mode=SECRET))
            return self.version


def read_policy(body: bytes) -> Policy:
    """Read a table. Raises ValueError; its text has nothing of the body."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ValueError("this is no access table: it is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("this is no access table: it is no JSON object")
    return Policy.of(value)
