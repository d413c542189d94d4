"""Bytes to bytes: the functions whose cost grows with messages. Pure: no I/O, no clock, no rights, no roles.

Each has two bodies of one contract. `_python` is the specification, and runs where nothing else is there; the Rust
sources beside it are compiled to `gantry_core_native`, which costs a fraction (docs/adr/0013-compiled-core.md). The
environment variable `GANTRY_CORE` chooses: `python`, `rust` (an ImportError without it), or nothing: what is there.

A compiled module names the sources that it was made from. One of other sources is never used.
"""

from __future__ import annotations

import os
import zlib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

_HERE: Final = Path(__file__).parent
MODULES: Final = ("gantry_core.gantry_core_native", "gantry_core_native")
"""Where the compiled module may be: beside the sources, or installed from its wheel."""


def _sources() -> str | None:
    """The CRC-32 of the Rust sources; None where they are not there, as in an image."""
    files = sorted((_HERE / "src").glob("*.rs"))
    crc = 0
    for file in files:
        crc = zlib.crc32(file.read_bytes(), crc)
    return f"{crc:08x}" if files else None


def _missing() -> str:
    """Why the compiled module is not used; empty: it is."""
    choice = os.environ.get("GANTRY_CORE", "")
    if choice not in ("", "python", "rust"):
        raise ImportError(f"GANTRY_CORE is {choice!r}; python, rust or nothing is expected")
    if choice == "python":
        return "GANTRY_CORE is python"
    why = "it is not built"
    for name in MODULES:
        try:
            module = import_module(name)
        except ImportError as error:
            if not isinstance(error, ModuleNotFoundError):
                why = str(error)
            continue
        if _sources() in (None, module.SOURCES):
            globals()["_native"] = module
            return ""
        why = f"{module.__file__} is of other sources"
    if choice == "rust":
        raise ImportError(f"GANTRY_CORE is rust, but there is no compiled core: {why}")
    return why


WHY_PYTHON: Final = _missing()
"""Why the Python body runs; empty: the compiled one does."""
NAME: Final = "python" if WHY_PYTHON else "rust"

if TYPE_CHECKING or WHY_PYTHON:
    from gantry_core._python import (
        BatchRules,
        SendRules,
        SignatureKeys,
        archived_columns,
        archived_keys,
        archived_records,
        batch_records,
        checked_records,
        entry_sizes,
        gather_records,
        index_entries,
        key_hash,
        key_times,
        message_ids,
        near_records,
        place_sends,
        plain_records,
        record_rows,
        records_named,
        records_whole,
        row_maps,
        row_properties,
        row_slices,
        send_answers,
        set_slots,
        size_of_whole,
        wanted_records,
    )
else:
    _native = globals()["_native"]
    BatchRules = _native.BatchRules
    SendRules = _native.SendRules
    SignatureKeys = _native.SignatureKeys
    archived_columns = _native.archived_columns
    archived_keys = _native.archived_keys
    archived_records = _native.archived_records
    checked_records = _native.checked_records
    batch_records = _native.batch_records
    entry_sizes = _native.entry_sizes
    gather_records = _native.gather_records
    index_entries = _native.index_entries
    key_hash = _native.key_hash
    key_times = _native.key_times
    message_ids = _native.message_ids
    near_records = _native.near_records
    place_sends = _native.place_sends
    plain_records = _native.plain_records
    record_rows = _native.record_rows
    records_named = _native.records_named
    records_whole = _native.records_whole
    row_maps = _native.row_maps
    row_properties = _native.row_properties
    row_slices = _native.row_slices
    send_answers = _native.send_answers
    size_of_whole = _native.size_of_whole
    set_slots = _native.set_slots
    wanted_records = _native.wanted_records

__all__ = [
    "NAME",
    "WHY_PYTHON",
    "BatchRules",
    "SendRules",
    "SignatureKeys",
    "archived_columns",
    "archived_keys",
    "archived_records",
    "batch_records",
    "checked_records",
    "entry_sizes",
    "gather_records",
    "index_entries",
    "key_hash",
    "key_times",
    "message_ids",
    "near_records",
    "place_sends",
    "plain_records",
    "record_rows",
    "records_named",
    "records_whole",
    "row_maps",
    "row_properties",
    "row_slices",
    "send_answers",
    "set_slots",
    "size_of_whole",
    "wanted_records",
]
