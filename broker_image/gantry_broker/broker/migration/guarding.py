"""A source that asks for signatures is followed where the new cluster asks for them, too, or its manifest drops that.

The config file has what the manifest says now: neither change restarts a member.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.migration.source import guarded

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
    """What the config says of the new cluster's access control."""

    def __init__(self, config: BrokerConfig, file: Path | None = None) -> None:
        """`file`: the config file, which is read again at each check; None: `config` stays as it is."""
        self._file = file
        self.authentication = config.authentication
        self._dropped = config.migrate is not None and config.migrate.drop_access_control

    async def check(self, settings: Mapping[str, str]) -> None:
        """Raise MigrationError for a source whose settings protect it, when the new cluster would not be protected."""
        if self._file is not None:
            self._take(await asyncio.to_thread(_read, self._file))
        if guarded(settings) and self.authentication != ENABLED and not self._dropped:
            raise MigrationError(REFUSED)

    def _take(self, value: Any) -> None:
        """Take what a config file says. One that cannot be read changes nothing."""
        if not isinstance(value, dict) or not isinstance(wanted := value.get("migrate"), dict):
            return
        if (mode := value.get("authentication")) in MODES:
            self.authentication = mode
        self._dropped = wanted.get("drop_access_control") is True

    def of(self, config: BrokerConfig) -> BrokerConfig:
        """Return the config with the authentication that the file names now."""
        return config.model_copy(update={"authentication": self.authentication})


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
