"""What the config file says of a migration now: how the source is reached, and whether its protection may be lost.

The file has what the manifest says, and a change of either restarts no member. A source that asks for signatures is
followed where the new cluster asks for them, too, or its manifest drops that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.migration.source import guarded
from gantry_broker.config import MigrateConfig

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig

ENABLED: Final = "Enabled"
MODES: Final = (ENABLED, "Permissive", "Disabled")
REFUSED: Final = (
    "the source asks for signatures, and this cluster would let everybody do everything: write "
    "spec.security.authentication: Enabled and run gantry migrate users, or accept it with "
    "spec.bootstrap.fromRocketMQ.dropAccessControl: true"
)


class Guarding:
    """What the config says of the source, and of the new cluster's access control."""

    def __init__(self, config: BrokerConfig, file: Path | None = None) -> None:
        """`file`: the config file, which is read again at each check; None: `config` stays as it is."""
        self._file = file
        self.authentication = config.authentication
        self.wanted = config.migrate
        """The source, and how it is reached."""

    async def read(self) -> None:
        """Take what the file says now."""
        if self._file is not None:
            self._take(await asyncio.to_thread(_read, self._file))

    async def check(self, settings: Mapping[str, str]) -> None:
        """Raise MigrationError for a source whose settings protect it, when the new cluster would not be protected."""
        await self.read()
        dropped = self.wanted is not None and self.wanted.drop_access_control
        if guarded(settings) and self.authentication != ENABLED and not dropped:
            raise MigrationError(REFUSED)

    def _take(self, value: Any) -> None:
        """Take what a config file says. One that cannot be read, or names another broker, changes nothing."""
        try:
            wanted = MigrateConfig.model_validate(value["migrate"])
        except (KeyError, TypeError, ValueError):
            return
        if self.wanted is None or wanted.broker != self.wanted.broker:
            return
        self.wanted = wanted
        if (mode := value.get("authentication")) in MODES:
            self.authentication = mode

    def of(self, config: BrokerConfig) -> BrokerConfig:
        """Return the config with what the file names now: the authentication, and the source's NameServers."""
        changes: dict[str, Any] = {"authentication": self.authentication}
        if self.wanted is not None and self.wanted != config.migrate:
            changes |= {
                "migrate": self.wanted,
                "source_name_servers": list(self.wanted.name_servers),
                "source_ca_file": self.wanted.ca_file,
            }
        return config.model_copy(update=changes)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
