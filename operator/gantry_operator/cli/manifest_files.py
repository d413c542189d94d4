"""The manifest that a command gets as a file: it says in one way what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import Documents, ManifestError, load_documents, load_manifest
from gantry_operator.cli.errors import CliError, Exit

Read = TypeVar("Read")


def read_manifest(file: Path) -> BrokerCluster:
    """Read the manifest of one cluster. Raises CliError."""
    return _read(load_manifest, file)


def read_documents(file: Path) -> Documents:
    """Read the manifest of a cluster with the resources beside it. Raises CliError."""
    return _read(load_documents, file)


def _read(load: Callable[[Path], Read], file: Path) -> Read:
    try:
        return load(file)
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}", Exit.USAGE) from None
    except ManifestError as error:
        raise CliError(str(error).replace("\n", "\nerror: "), Exit.USAGE) from None
