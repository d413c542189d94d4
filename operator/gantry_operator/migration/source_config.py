"""The key-value configuration of a source's NameServers goes to those of the new cluster, and is kept up to date.

The new cluster's NameServers keep what came from the source in a namespace of their own (`NOTES`): an entry that the
source has no more goes only if it came from there and is as it came. What a user has written stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from gantry_broker.client import Admin, BrokerError
from gantry_broker.protocol.codes import ResponseCode

from gantry_operator.migration.cutover_steps import Refused

NOTES: Final = "GANTRY_FROM_SOURCE"
"""The namespace of the notes: by namespace and key, what came from the source."""
CONFIG_S: Final = 30.0
"""Seconds between two copies while the source is followed."""
END_S: Final = 20.0
"""Seconds for the last copy, behind a cutover."""
AGAIN_S: Final = 0.5
MOST_ENTRIES: Final = 4_000
MOST_CHARACTERS: Final = 1 << 20
"""Of all keys and values of a source: a NameServer writes all that it has at each change."""


class NotYet(Refused):
    """The new cluster's NameServers know no users before a member leads: a cutover copies at its end, too."""


class Changes(NamedTuple):
    """What a NameServer lacks. `notes`: the new notes; None: one goes."""

    put: Mapping[str, str]
    delete: frozenset[str]
    notes: Mapping[str, str | None]


def note_of(value: str) -> str:
    """Return what is noted of a value."""
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def changes(theirs: Mapping[str, str], ours: Mapping[str, str], noted: Mapping[str, str]) -> Changes:
    """Compare a namespace of the source with that of the new cluster. `noted`: what came from the source, by key."""
    put = {key: value for key, value in theirs.items() if ours.get(key) != value}
    gone = noted.keys() - theirs.keys()
    delete = frozenset(key for key in gone if key in ours and note_of(ours[key]) == noted[key])
    notes: dict[str, str | None] = {key: note_of(value) for key, value in put.items()}
    return Changes(put, delete, notes | dict.fromkeys(gone))


def refuse_too_much(tables: Mapping[str, Mapping[str, str]]) -> None:
    """Raise Refused for more than a NameServer is to get."""
    entries = sum(map(len, tables.values()))
    size = sum(len(key) + len(value) for table in tables.values() for key, value in table.items())
    if entries > MOST_ENTRIES or size > MOST_CHARACTERS:
        raise Refused(
            f"the source's NameServers have {entries} entries of {size} characters in the namespaces to copy: up to "
            f"{MOST_ENTRIES} entries of {MOST_CHARACTERS} characters are copied"
        )


async def at_the_end(copy: Callable[[], Awaitable[object]], within_s: float = END_S) -> None:
    """Copy once Gantry leads: a NameServer has users a moment later. Raises as `copy` when it does not succeed within
    `within_s` seconds.
    """
    ends = time.monotonic() + within_s
    while True:
        try:
            await copy()
            return
        except NotYet:
            if time.monotonic() > ends:
                raise
        await asyncio.sleep(AGAIN_S)


async def bring(tables: Mapping[str, Mapping[str, str]], target: Admin, *, whole: bool = True) -> int:
    """Give the new cluster's NameServers these namespaces of the source; return how many entries differed. `whole`: all
    of the source's NameServers have answered, so what `tables` lacks is gone. Raises Refused, and errors of clients.
    """
    refuse_too_much(tables)
    try:
        noted = await target.kv_table(NOTES)
    except BrokerError as error:
        if error.code != ResponseCode.SYSTEM_BUSY:
            raise
        raise NotYet(f"the new cluster's NameServers have no users yet: {error}") from error
    count = 0
    for namespace, theirs in tables.items():
        prefix = f"{len(namespace)} {namespace}/"
        ours = await target.kv_table(namespace)
        mine = {name.removeprefix(prefix): note for name, note in noted.items() if name.startswith(prefix)}
        if not whole:
            mine = {key: note for key, note in mine.items() if key in theirs}
        found = changes(theirs, ours, mine)
        for key, note in found.notes.items():
            if note is not None:  # Before the entry: one that is not noted would stay for ever.
                await target.put_kv(NOTES, prefix + key, note)
        for key, value in found.put.items():
            await target.put_kv(namespace, key, value)
        for key in found.delete:
            await target.delete_kv(namespace, key)
        for key, note in found.notes.items():
            if note is None:
                await target.delete_kv(NOTES, prefix + key)
        count += len(found.put) + len(found.delete)
    return count
