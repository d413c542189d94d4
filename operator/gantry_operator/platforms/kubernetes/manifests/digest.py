"""A short hash of a pod's configuration. A new hash causes a new pod."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits. The order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
