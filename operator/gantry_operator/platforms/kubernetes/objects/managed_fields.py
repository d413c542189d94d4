"""Fields of an object by their owners, from `metadata.managedFields` of the API server. Pure.

The format (FieldsV1): "f:name" is a field, 'k:{"name":"x"}' a list item by its keys, "v:x" an item of a set, "i:0" an
item by position, "." the object itself. See
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gantry_operator.platforms.kubernetes.names import FIELD_MANAGER

Path = tuple[str, ...]
"""Parts of a field's path, as FieldsV1 writes them."""

OTHERS_MAY_SET: Final[tuple[Path, ...]] = (
    ("f:metadata",),
    ("f:status",),
    ("f:spec", "f:template", "f:metadata", "f:annotations"),
    ("f:spec", "f:template", "f:metadata", "f:creationTimestamp"),
)
"""Parts that others may add to: `kubectl rollout restart` adds an annotation to the template, for example."""
_ATOMIC_MAPS: Final = ("f:nodeSelector", "f:matchLabels", "f:selector")
"""Other values with one owner as a whole may have defaults of the API server inside."""
_MISSING: Final = object()


def surplus(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> tuple[list[str], list[Path]]:
    """Fields that have an owner and are not in `wanted`.

    Returns two lists: paths as text of fields that this operator owns, and has to give up by an apply; and paths of
    fields that others added, which an apply leaves in place.
    """
    own: dict[Path, None] = {}
    others: dict[Path, None] = {}
    for entry in live["metadata"].get("managedFields") or []:
        ours = entry.get("manager") == FIELD_MANAGER
        if entry.get("subresource") or (ours and entry.get("operation") != "Apply"):
            continue  # A webhook's changes of this operator's requests have the operation Update.
        for path in _leaves(entry.get("fieldsV1") or {}, ()):
            if not ours and any(path[: len(part)] == part for part in OTHERS_MAY_SET):
                continue
            if ours and path[0] == "f:metadata":
                continue
            there = _at(live, path)
            if there is _MISSING:
                continue
            intended = _at(wanted, path)
            if intended is _MISSING or _has_more_keys(path, there, intended):
                (own if ours else others)[path] = None
    return [_text(path) for path in own], [path for path in others if path not in own]


def without(live: Mapping[str, Any], rendered: Mapping[str, Any], paths: Sequence[Path]) -> dict[str, Any]:
    """Return the parts of an object (`spec`, `data`) that differ without these fields.

    A field that is rendered gets that value. A map that becomes empty goes too, unless it is rendered.
    """
    parts: dict[str, Any] = copy.deepcopy({k: v for k, v in live.items() if k not in ("metadata", "status")})
    for path in paths:
        value = _at(rendered, path)
        if value is _MISSING:
            _remove(parts, rendered, path)
        elif _at(parts, path) is not _MISSING:
            _at(parts, path[:-1])[path[-1][2:]] = copy.deepcopy(value)
    return {k: v for k, v in parts.items() if v != live[k]}


def _remove(parts: Any, rendered: Mapping[str, Any], path: Path) -> None:
    parent, last = _at(parts, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent.pop(last[2:], None)
    elif isinstance(parent, list) and (item := _item(parent, last)) is not _MISSING:
        parent.remove(item)
    if len(path) > 2 and parent in ({}, []) and _at(rendered, path[:-1]) is _MISSING:
        _remove(parts, rendered, path[:-1])


def _leaves(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    """Return the paths of an owner's fields. An item of a list that is owned as a whole comes before its parts."""
    inner = [key for key in fields if key != "."]
    if path and (not inner or (path[-1][0] in "kv" and "." in fields)):
        yield path
    for key in inner:
        yield from _leaves(fields[key], (*path, key))


def _at(value: Any, path: Path) -> Any:
    for part in path:
        if part.startswith("f:"):
            if not isinstance(value, Mapping) or part[2:] not in value:
                return _MISSING
            value = value[part[2:]]
        else:
            value = _item(value, part)
        if value is _MISSING:
            return _MISSING
    return value


def _item(items: Any, part: str) -> Any:
    if not isinstance(items, Sequence) or isinstance(items, str):
        return _MISSING
    if part.startswith("k:"):
        keys = json.loads(part[2:])
        for item in items:
            # The API server adds defaults of keys, as protocol TCP.
            if isinstance(item, Mapping) and all(item.get(k, v) == v for k, v in keys.items()):
                return item
    elif part.startswith("v:"):
        value = json.loads(part[2:])
        return value if value in items else _MISSING
    elif part.startswith("i:") and int(part[2:]) < len(items):
        return items[int(part[2:])]
    return _MISSING


def _has_more_keys(path: Path, there: Any, intended: Any) -> bool:
    """Whether a map that has one owner as a whole has more keys than wanted."""
    return path[-1] in _ATOMIC_MAPS and not there.keys() <= intended.keys()


def _text(path: Path) -> str:
    return "".join(f".{part[2:]}" if part.startswith("f:") else f"[{part[2:]}]" for part in path)
