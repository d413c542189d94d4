"""The versions that `status.version` shows."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Final

PROTOCOL_VERSION: Final = "4.9.7"
"""RocketMQ's version whose remoting protocol the brokers speak."""
PACKAGE: Final = "gantry-mq"


VERSION: Final = "0.1.0"
"""Of this source tree. Images have no metadata of the package."""


@cache
def package_version() -> str:
    """Return the version of this installation."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return VERSION
