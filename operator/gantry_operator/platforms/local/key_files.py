"""The files of a local cluster that stand for Secrets: `access/keys/SECRET.json`, which only this user can read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gantry_operator.platforms.local.folder import ClusterFolder, read_json

MAX_KEY_FILE: Final = 65_536


def key_file(folder: ClusterFolder, secret: str) -> Path:
    """Return the file that stands for a Secret."""
    return folder.keys / f"{secret}.json"


def read_secret(path: Path) -> dict[str, str]:
    """Return the content of such a file; empty: it does not exist or holds something else."""
    try:
        if path.stat().st_size > MAX_KEY_FILE:
            return {}
    except OSError:
        return {}
    content = read_json(path)
    return {k: v for k, v in content.items() if isinstance(v, str)} if isinstance(content, dict) else {}
