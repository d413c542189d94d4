"""Settings that `mqadmin updateBrokerConfig` changes while brokers run, for the whole group.

A change is a control record, like a change of a topic: it holds on every member, after restarts and after failovers.
RocketMQ writes such a change into its own file. The resource has the last word: each change carries the value that the
resource had then, and ends as soon as the resource has another value for that setting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from gantry_broker.broker.errors import NotWritable
from gantry_broker.broker.metadata.tables import Change, Metadata
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import StoreError

if TYPE_CHECKING:
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.role import RoleState

log = logging.getLogger(__name__)

FIXED: Final = frozenset(
    {
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "maxHashSlotNum",
        "maxIndexNum",
        "messageIndexEnable",
        "maxConnections",
        "messageDelayLevel",
        "traceTopicEnable",
    }
)
"""Settings that need a restart: the store's layout, or the shares of memory, depend on them."""


class BadSetting(ValueError):
    """A refused change; the text names the setting, the value and what to write."""


def text(value: Any) -> str:
    """Format a setting's value as in broker.conf."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def parse_changes(body: bytes) -> dict[str, str]:
    """Parse the `name=value` lines of UPDATE_BROKER_CONFIG. Raises BadSetting."""
    changes: dict[str, str] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise BadSetting(f"the body's line {line[:80]!r} is not name=value")
        changes[name.strip()] = value.strip()
    if not changes:
        raise BadSetting("the body names no setting; lines of name=value are expected")
    return changes


def change_of(declared: BrokerSettings, now: BrokerSettings, changes: Mapping[str, str]) -> Change:
    """Return the control record for a request. A value that the resource already has is none. Raises BadSetting."""
    for name in changes:
        if name not in BrokerSettings.model_fields:
            raise BadSetting(f"the setting {name[:80]} does not exist here; getBrokerConfig lists those that do")
        if name in FIXED:
            raise BadSetting(f"the setting {name} can only change with a restart: write it in spec.broker")
    settings = _valid({**now.model_dump(), **changes})
    kept, dropped = {}, []
    for name in changes:
        value, base = text(getattr(settings, name)), text(getattr(declared, name))
        if value == base:
            dropped.append(name)
        else:
            kept[name] = [value, base]
    return {"settings": kept, "dropSettings": dropped}


def effective(declared: BrokerSettings, changes: Mapping[str, tuple[str, str]]) -> BrokerSettings:
    """Return the settings in force: those of the resource, with the changes whose base value it still has."""
    live = {name: value for name, (value, base) in changes.items() if name not in stale(declared, changes)}
    try:
        return _valid({**declared.model_dump(), **live}) if live else declared
    except BadSetting as error:
        log.error("changed settings are left out: %s", error)
        return declared


def stale(declared: BrokerSettings, changes: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the changes that the resource has overruled, or that this version does not know."""
    return [
        name
        for name, (_, base) in changes.items()
        if name in FIXED or name not in BrokerSettings.model_fields or text(getattr(declared, name)) != base
    ]


def _valid(values: Mapping[str, Any]) -> BrokerSettings:
    try:
        return BrokerSettings.model_validate(values, strict=False)  # the values of a request are text
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadSetting(f"the setting {where}: {first['msg']}, not {str(first['input'])[:80]!r}") from None


class LiveSettings:
    """Keeps the settings in use equal to the tables, at every change of the tables."""

    def __init__(
        self,
        declared: BrokerSettings,
        settings: BrokerSettings,
        meta: Metadata,
        changes: MetadataChanges,
        role: RoleState,
        events: Events,
    ) -> None:
        """Take `settings` in use, and change them in place from now on. `declared`: those of the resource."""
        self._declared = declared.model_copy()
        self._settings = settings
        self._meta = meta
        self._changes = changes
        self._role = role
        events.tables_changed.subscribe(self.follow)

    def change(self, body: bytes) -> Change:
        """Return the control record for a request's body. Raises BadSetting."""
        return change_of(self._declared, self._settings, parse_changes(body))

    def follow(self) -> None:
        """Apply the tables' settings."""
        changes = self._meta.working.settings
        in_force = effective(self._declared, changes)
        for name in BrokerSettings.model_fields:
            value = getattr(in_force, name)
            if name not in FIXED and getattr(self._settings, name) != value:
                setattr(self._settings, name, value)
                log.info("setting %s is now %s", name, text(value))
        if self._role.may_append and stale(self._declared, changes):
            asyncio.get_running_loop().call_soon(self._drop_stale)

    def _drop_stale(self) -> None:
        names = stale(self._declared, self._meta.working.settings)
        if not names or not self._role.may_append:
            return
        try:
            self._changes.append({"dropSettings": names})
        except (NotWritable, StoreError) as error:
            log.warning("overruled settings stay in the tables for now: %s", error)
            return
        log.info("spec.broker overrules settings that were changed while running: %s", ", ".join(names))
