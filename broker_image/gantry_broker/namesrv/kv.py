"""The NameServer's key-value configuration: namespaces of texts, kept as `kvConfig.json` in RocketMQ's form."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from gantry_broker.store.files import atomic_write
from gantry_broker.store.sealed import fault_of, seal, unseal

MAX_VALUE = 1024 * 1024
"""Most characters of a value."""
MAX_NAME = 1024
"""Most characters of a namespace or key."""
MAX_ENTRIES = 20_000
"""Entries of all namespaces; each change writes all of them."""
MAX_CHARACTERS = 4 * 1024 * 1024
"""Most characters of all keys and values together."""


class KvFull(Exception):
    """The table is full."""


class KvConfig:
    """The table. A change is on disk before the call returns, and readers see it then. Changes happen one at a time; a
    thread writes, so that no reader waits for the disk. Raises OSError when the write fails.
    """

    def __init__(self, path: Path | None) -> None:
        """`path` None: in memory only. Raises ValueError when the file holds no such table."""
        self._path = path
        self._lock = asyncio.Lock()
        self._tables: dict[str, dict[str, str]] = {}
        self._owners: dict[tuple[str, str], str] = {}
        """Who wrote an entry since the start."""
        if path is None:
            return
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return
        self._tables = _read(path, raw)

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str] | None:
        return self._tables.get(namespace)

    async def put(self, namespace: str, key: str, value: str, owner: str | None = None) -> None:
        """Store a value. `owner`: the user or address that asks, which may use as much as is free; None: this program.
        Raises KvFull for a new entry beyond the limits, and OSError.
        """
        async with self._lock:
            await self._save(self._with(namespace, key, value, owner))
            if owner is not None:
                self._owners[namespace, key] = owner

    async def delete(self, namespace: str, key: str) -> None:
        async with self._lock:
            if self.get(namespace, key) is None:
                return
            table = {name: value for name, value in self._tables[namespace].items() if name != key}
            rest = {name: other for name, other in self._tables.items() if name != namespace}
            await self._save({**rest, namespace: table} if table else rest)
            self._owners.pop((namespace, key), None)

    def _with(self, namespace: str, key: str, value: str, owner: str | None) -> dict[str, dict[str, str]]:
        if len(namespace) > MAX_NAME or len(key) > MAX_NAME:
            raise KvFull(f"namespace and key have at most {MAX_NAME} characters, not {max(len(namespace), len(key))}")
        if self.get(namespace, key) is None and sum(map(len, self._tables.values())) >= MAX_ENTRIES:
            raise KvFull(f"{MAX_ENTRIES} entries are kept; delete some first")
        table = self._tables.get(namespace, {})
        size = sum(len(k) + len(v) for table in self._tables.values() for k, v in table.items())
        size += len(key) + len(value) - (len(key) + len(table[key]) if key in table else 0)
        if size > MAX_CHARACTERS:
            raise KvFull(
                f"keys and values would have {size} characters, the limit is {MAX_CHARACTERS}; delete some first"
            )
        if owner is not None:
            self._check_share(namespace, key, value, owner, size)
        return {**self._tables, namespace: {**table, key: value}}

    def _check_share(self, namespace: str, key: str, value: str, owner: str, size: int) -> None:
        """Raise KvFull if an owner would have more than is free, with `size` characters in all."""
        mine = [place for place, other in self._owners.items() if other == owner and place != (namespace, key)]
        others = sum(map(len, self._tables.values())) - (self.get(namespace, key) is not None)
        if len(mine) >= MAX_ENTRIES - others:
            raise KvFull(f"{owner} has written {len(mine)} entries, and {MAX_ENTRIES - others} are free")
        own = len(key) + len(value)
        used = own + sum(len(name) + len(self._tables[space][name]) for space, name in mine)
        free = MAX_CHARACTERS - (size - own)
        if mine and used > free:
            raise KvFull(f"{owner} would have {used} characters of keys and values, and {free} are free")

    async def _save(self, tables: dict[str, dict[str, str]]) -> None:
        if self._path is not None:
            await asyncio.to_thread(_write, self._path, tables)
        self._tables = tables


def _write(path: Path, tables: dict[str, dict[str, str]]) -> None:
    atomic_write(path, seal(orjson.dumps({"configTable": tables}, option=orjson.OPT_INDENT_2)))


def _read(path: Path, raw: bytes) -> dict[str, dict[str, str]]:
    try:
        value: Any = orjson.loads(unseal(raw))
        tables = value["configTable"]
        return {
            str(namespace): {str(key): str(item) for key, item in table.items()} for namespace, table in tables.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = fault_of(error)
        raise ValueError(f"{path} is not a KV configuration ({why}); repair it or move it away") from None
