"""The access table of one broker: its file, its changes by mqadmin, and the check of requests before they are taken.

`access/` decides, here are the clock, the disk and the connections. The table comes from the control plane by
`PUT /v1/access`; what mqadmin changes at this member counts here at once, and waits in a file until a table has it.
Both files are readable for the owner only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantry_broker.access.building import beside_loop
from gantry_broker.access.decide import DISABLED, Policy
from gantry_broker.access.gate import Gate
from gantry_broker.access.table import (
    MAX_CHANGES,
    AccessTable,
    Change,
    Changes,
    Operation,
    User,
    read_table,
    table_json,
)
from gantry_broker.broker.metadata.topics import TIMER_TOPIC
from gantry_broker.protocol.codes import (
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    Prop,
)
from gantry_broker.protocol.message import Record, RecordError, decode_record, parse_properties
from gantry_broker.protocol.rights import PUB, TOPIC
from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import atomic_write
from gantry_broker.store.sealed import seal, unseal

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)

TABLE_FILE: Final = "access.json"
CHANGES_FILE: Final = "accessChanges.json"
SECRET: Final = 0o600
"""Mode of both files."""
CHANGES_BYTES: Final = 512 * 1024
"""Bytes of changes that the control plane gets at a time. One user may have more."""
WAITING_TOPICS: Final = frozenset({TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics whose messages are for another one, which they name."""


class TooManyChanges(Exception):
    """No change can be taken before the control plane has merged some."""


class StoredTopics:
    """The topics of records in the log (`protocol.rights.Records`)."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.archived: Callable[[int], str] = lambda offset: ""
        """Returns the topic of a record that only the archive has, if it was read a moment ago."""

    def topic_at(self, offset: int) -> str:
        try:
            return self._store.reader.named_record(offset).topic
        except (StoreError, OSError, ValueError):
            return self.archived(offset)

    def target_at(self, offset: int) -> str:
        record = self._perhaps_unconfirmed(offset)
        if record is None:
            return ""
        if record.topic not in WAITING_TOPICS:
            return record.topic
        return parse_properties(record.properties).get(Prop.REAL_TOPIC, "")

    def _perhaps_unconfirmed(self, offset: int) -> Record | None:
        """Return the record there, confirmed or not: a producer may decide before this member confirms."""
        store = self._store
        try:
            if not store.state.confirmed <= offset < store.log.end:
                return store.reader.named_record(offset)
            record = decode_record(store.log.read_raw(offset, 1))
        except (StoreError, RecordError, OSError, ValueError):
            return None
        return record if record.phys_offset == offset else None


class AccessControl:
    """What this member holds of the access table, and the gate before its ports for clients."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self._folder: Path = config.data_dir / "config"
        self._name = config.name
        self._default_mode = config.authentication
        self.stored_topics = StoredTopics(store)
        self.gate = Gate(config.cluster, config.authentication, self.stored_topics)
        self.table: AccessTable | None = None
        self.table_json = b""
        """The table for NameServers; empty: there is none."""
        self.changes: list[Change] = []
        self._number = 0
        self._stale = False
        """The table in the file is less strict than the configuration: it was changed while this member was down.
        Until a table comes, the configuration's mode counts, and this member has no version to show."""
        self._lock = asyncio.Lock()
        self.editing = asyncio.Lock()
        """Held from reading the users to the change that depends on them."""
        self.on_changed: list[Callable[[], object]] = []
        """Called after a change of the table or of users came into force."""

    @property
    def version(self) -> int:
        """Of the table; 0: there is none, or a stale one."""
        return 0 if self.table is None or self._stale else self.table.version

    @property
    def users(self) -> dict[str, User]:
        """The users in force, by name: the table's, with the changes of this member."""
        users = {} if self.table is None else {user.name: user for user in self.table.users}
        for change in self.changes:
            if change.user is None:
                users.pop(change.name, None)
            else:
                users[change.name] = change.user
        return users

    def load(self) -> None:
        """Read both files, before the ports open. A damaged file counts as none: then no one is let in."""
        for name, take in ((TABLE_FILE, self._take_table), (CHANGES_FILE, self._take_changes)):
            path = self._folder / name
            try:
                take(unseal(path.read_bytes()))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                # A text of pydantic may not name keys: `hide_input_in_errors`.
                log.error("%s cannot be used, the control plane sends the table again: %s", path, error)
        if self.table is not None:
            policy = _policy(self.table, self.users)
            strict = policy.at_least(self._default_mode)
            if strict is not policy:
                self._stale = True
                log.warning(
                    "access table %d has mode %s, the configuration %s: the stricter one counts until a table comes",
                    policy.version, policy.mode, strict.mode,
                )  # fmt: skip
            self.gate.set_policy(strict)

    def _take_table(self, data: bytes) -> None:
        self.table = read_table(data)
        self.table_json = data

    def _take_changes(self, data: bytes) -> None:
        read = Changes.model_validate_json(data)
        self.changes, self._number = list(read.changes), read.number

    # ---- changes

    async def put(self, body: bytes) -> int:
        """Take a table (JSON) in force and keep it. Returns the version that this member holds then.

        A version that is not higher is ignored. Raises ValueError, and OSError: in force, but not kept.
        """
        table = await beside_loop(lambda: read_table(body))
        async with self._lock:
            if self.table is not None and table.version < self.table.version + (not self._stale):
                return self.table.version
            merged = table.merged.get(self._name, 0)
            left = [change for change in self.changes if change.number > merged]
            before = self.table, self.changes
            self.table, self.changes = table, left
            try:
                users = self.users
                policy = await beside_loop(lambda: _policy(table, users))
            except ValueError:
                self.table, self.changes = before
                raise
            self._stale = False
            self.table_json = await beside_loop(lambda: table_json(table))
            self._in_force(policy)
            log.info("access table %d: %s, %d users", table.version, table.mode, len(table.users))
            await self._keep(TABLE_FILE, self.table_json)
            if len(left) != len(before[1]):
                await self._keep_changes()
            return self.version

    async def change(self, op: Operation, name: str, user: User | None, by: str) -> None:
        """Change a user at this member: in force at once, and kept. Raises TooManyChanges, OSError."""
        async with self._lock:
            if len(self.changes) >= MAX_CHANGES:
                raise TooManyChanges(f"{MAX_CHANGES} changes of users wait for the control plane, which is the limit")
            # A member whose volume was lost knows its former changes by the table alone.
            merged = 0 if self.table is None else self.table.merged.get(self._name, 0)
            self._number = max(self._number, merged) + 1
            new = Change(number=self._number, op=op, name=name, user=user, by=by, at_ms=time.time_ns() // 1_000_000)
            self.changes = [*self.changes, new]
            if (table := self.table) is not None:
                users = self.users
                policy = await beside_loop(lambda: _policy(table, users))
                self._in_force(policy.at_least(self._default_mode) if self._stale else policy)
            await self._keep_changes()

    def next_waiting(self) -> Changes:
        """Return the oldest changes that wait, as many as `CHANGES_BYTES` hold, and one at least: the next ones follow
        when the control plane has merged these.
        """
        size, count = 0, 0
        for change in self.changes:
            size += len(change.model_dump_json())
            if count and size > CHANGES_BYTES:
                break
            count += 1
        return Changes(version=self.version, number=self._number, changes=tuple(self.changes[:count]))

    def waiting(self) -> Changes:
        return Changes(version=self.version, number=self._number, changes=tuple(self.changes))

    def _in_force(self, policy: Policy) -> None:
        self.gate.set_policy(policy)
        for call in self.on_changed:
            call()

    async def _keep_changes(self) -> None:
        await self._keep(CHANGES_FILE, self.waiting().model_dump_json().encode())

    async def _keep(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(lambda: atomic_write(self._folder / name, seal(data), mode=SECRET))

    # ---- requests

    def may_decide(self, link: object, topic: str) -> bool:
        """Whether a producer's connection may be asked about a half message for this topic, which it is sent then."""
        caller = getattr(link, "attrs", {}).get("caller")
        return self.gate.may_be_asked(caller, TOPIC, topic, (PUB,))

    @property
    def is_on(self) -> bool:
        """Whether users are known by their signatures."""
        return self.gate.mode != DISABLED


def _policy(table: AccessTable, users: dict[str, User]) -> Policy:
    value = table.model_dump(mode="python", exclude={"users", "merged"})
    value["users"] = [user.model_dump(mode="python") for user in users.values()]
    return Policy.of(value)
