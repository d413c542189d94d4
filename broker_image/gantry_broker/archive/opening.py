"""Opens the archive that a configuration names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gantry_broker.archive.chain import Archive
from gantry_broker.archive.errors import ArchiveError
from gantry_broker.archive.objects import PATIENT, Location, ObjectStore, Patience
from gantry_broker.archive.sealing import sealer

if TYPE_CHECKING:
    from gantry_broker.config import ArchivePlace


def open_archive(place: ArchivePlace, patience: Patience = PATIENT) -> Archive:
    """Return the archive; nothing is read from it yet. Raises ArchiveError."""
    location = Location(place.url, place.endpoint, place.credentials, place.region)
    return Archive(ObjectStore(location, patience), sealer(_key(place.key_file)))


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArchiveError(f"the encryption key: cannot read {path}: {error}") from error
