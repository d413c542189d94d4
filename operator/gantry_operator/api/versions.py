"""The versions that `status.version` shows."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Final

PROTOCOL_VERSION: Final = "4.9.7"
"""RocketMQ's version whose remoting protocol the brokers speak."""
PACKAGE: Final = "gantry-mq"


@cache
def package_version() -> str:
    """The version of this installation; empty: it is not installed, as in a source tree."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return ""
