"""Unpacks the recorded stores."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a .tar.gz into a folder. Python before 3.11.4 has no filters, and later ones want one."""
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(folder, filter="data")
        else:
            opened.extractall(folder)
