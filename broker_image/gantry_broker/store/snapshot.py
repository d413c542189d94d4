"""The tables under `config/`: one JSON file each, in RocketMQ's format, with the previous content in `.bak`.

They are snapshots of the control records of the log at `confirmed`, never ahead of it. RocketMQ uses fastjson, which
leaves numeric keys unquoted. We read both forms and write plain JSON, which fastjson reads too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from gantry_broker.protocol import fastjson
from gantry_broker.store.files import atomic_write

_OPTIONS: Final = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
_log = logging.getLogger(__name__)


def load_snapshot(path: Path) -> dict[str, Any] | None:
    """The table in `path`, or in its `.bak` if `path` is missing or invalid; None without a valid one.

    Keys are strings. Raises OSError when the disk fails.
    """
    for candidate in (path, _bak(path)):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        try:
            table = orjson.loads(data)
        except orjson.JSONDecodeError:
            try:
                table = fastjson.loads(data)
            except ValueError as error:
                _log.warning("%s is invalid: %s", candidate, error)
                continue
        if isinstance(table, dict):
            return {str(key): _string_keys(item) for key, item in table.items()}
        _log.warning("%s is not a JSON object", candidate)
    return None


def save_snapshot(path: Path, table: Mapping[str, Any] | bytes, *, durable: bool = False) -> bool:
    """Replace the table, given as a mapping or as JSON, and keep the old one as `.bak`; False without a change.

    A reader, and a start after a crash, sees the old or the new table. Raises OSError (the old table stays), TypeError
    for values that JSON does not have.
    """
    data = table if isinstance(table, bytes) else orjson.dumps(table, option=_OPTIONS)
    try:
        before = path.read_bytes()
    except FileNotFoundError:
        before = None
    if before == data:
        return False
    if before is not None:
        bak = _bak(path)
        bak.unlink(missing_ok=True)
        os.link(path, bak)
    atomic_write(path, data, durable=durable)
    return True


def _bak(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _string_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _string_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_string_keys(item) for item in value]
    return value
