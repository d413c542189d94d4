"""What it means that no `gantry up` answers, for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unsupervised(status: Mapping[str, Any]) -> str:
    """Return the sentence about a cluster of this machine whose supervisor does not answer. `status`: of the resource,
    with `supervisor` as `Silence.to_json` has it.
    """
    reason = (status.get("supervisor") or {}).get("message") or "`gantry up` is not running"
    return f"{reason}: nothing is restarted and no failover happens"
