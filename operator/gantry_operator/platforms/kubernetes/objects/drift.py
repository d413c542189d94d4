"""Compares an object in the API with the desired object, so that equal objects are not written. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gantry_operator.api.base import parse_quantity

EXACT = ("selector", "matchLabels", "data")
"""Maps without additions by others: an additional label in a selector disables a Service."""

POLICY = (".spec.ingress", ".spec.podSelector")
"""Parts of a NetworkPolicy without additions: a peer with one more selector, or a port with an `endPort`, admits more.
Each has one owner as a whole, so its owners do not show additions.
"""

CLAIM_TEMPLATES = ".spec.volumeClaimTemplates"


def _is_exact(path: str) -> bool:
    last = path.rsplit(".", 1)[-1]
    return last in EXACT or (path.startswith(CLAIM_TEMPLATES) and last in ("labels", "annotations"))


def differences(rendered: Any, live: Any, path: str = "") -> list[str]:
    """Paths at which `live` lacks or contradicts `rendered`. Additions by others or the API server are ignored."""
    if isinstance(rendered, Mapping):
        if not isinstance(live, Mapping):
            return [path] if rendered else []
        out = [d for k, v in rendered.items() for d in differences(v, live.get(k), f"{path}.{k}")]
        if path.startswith(POLICY) or (_is_exact(path) and "matchLabels" not in rendered):
            out += [f"{path}.{k}" for k in live if k not in rendered]
        return out
    if isinstance(rendered, Sequence) and not isinstance(rendered, str):
        if not rendered and live is None:
            return []
        if not isinstance(live, Sequence) or len(live) != len(rendered):
            return [path]
        return [d for i, v in enumerate(rendered) for d in differences(v, live[i], f"{path}[{i}]")]
    if ".resources." in path and _same_amount(rendered, live):
        return []  # The API server writes 500m for 0.5.
    if live is None and (rendered is None or rendered is False):
        # The API server leaves out what is false by default.
        return []
    return [] if rendered == live else [path]


def _same_amount(rendered: Any, live: Any) -> bool:
    try:
        return parse_quantity(str(rendered)) == parse_quantity(str(live))
    except ValueError:
        return False


def outdated(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Like `differences`, for whole objects: labels, annotations and owners count, identifying fields do not."""
    out: list[str] = []
    for part in wanted:
        if part in ("apiVersion", "kind", "status"):
            continue
        if part == "metadata":
            meta, have = wanted["metadata"], live["metadata"]
            for key in ("labels", "annotations"):
                out += differences(meta.get(key) or {}, have.get(key) or {}, f".metadata.{key}")
            owners = {o["uid"] for o in have.get("ownerReferences") or []}
            out += [".metadata.ownerReferences" for o in meta.get("ownerReferences") or [] if o["uid"] not in owners]
        else:
            out += differences(wanted[part], live.get(part), f".{part}")
    return out


def classes_removed(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Paths of storage classes that a StatefulSet's claim templates have and should not have any more.

    The list of templates has one owner as a whole, so its owners do not show it.
    """
    path = "volumeClaimTemplates"
    pairs = zip(wanted.get("spec", {}).get(path) or [], live.get("spec", {}).get(path) or [], strict=False)
    return [
        f".spec.{path}[{i}].spec.storageClassName"
        for i, (template, there) in enumerate(pairs)
        if "storageClassName" in there["spec"] and "storageClassName" not in template["spec"]
    ]


def owned_by(obj: Mapping[str, Any], uid: str) -> bool:
    return any(o.get("uid") == uid for o in obj["metadata"].get("ownerReferences") or [])
