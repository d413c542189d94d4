"""Delays a pod's stop until its broker is not the master any more.

Usage: `python -m gantry_broker.http.prestop --config FILE`. Kubernetes runs it before it stops the broker. The operator
sees that the pod will stop and hands the role over; this waits for that, so that no client sees an error. It imports
only the standard library, to start fast.
"""

from __future__ import annotations

import argparse
import json
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

FETCHES_MS = 2_000
"""Seconds without a fetch after which a follower is away."""


def has_successor(status: dict[str, Any]) -> bool:
    """Return whether it is master, and a follower in sync could take over."""
    followers = status.get("followers") or []
    able = any(f.get("in_sync") and 0 <= f.get("last_fetch_ms", -1) < FETCHES_MS for f in followers)
    return status.get("role") == "Master" and able


def must_wait(config: dict[str, Any]) -> bool:
    """Query the broker. False also when it does not answer: then there is nothing to hand over."""
    internal = config.get("internal_tls")
    context = None
    request = urllib.request.Request(f"http{'s' if internal else ''}://127.0.0.1:{config['http_port']}/v1/status")
    try:
        if internal:
            # As `remoting.tls.client_context`: the default context of Python 3.13 refuses an authority without a key
            # identifier, and the pod would stop without a wait.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(internal["ca_file"])
            context.check_hostname = False  # The broker of this pod: its certificate names the pod.
        if config.get("token_file"):
            request.add_header("Authorization", f"Bearer {Path(config['token_file']).read_text().strip()}")
        with urllib.request.urlopen(request, timeout=2, context=context) as answer:
            return has_successor(json.load(answer))
    except (OSError, ValueError):
        return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gantry_broker.http.prestop", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the broker's own config file")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait at most (default: 30)")
    parser.add_argument(
        "--linger", type=float, default=2.0, help="seconds that clients need for the new route (default: 2)"
    )
    options = parser.parse_args(arguments)
    config = json.loads(options.config.read_bytes())
    deadline = time.monotonic() + options.timeout
    handed_over = False
    while must_wait(config) and time.monotonic() < deadline:
        handed_over = True
        time.sleep(0.1)
    if handed_over:
        # Meanwhile the broker forwards writes of the old route to the new master.
        time.sleep(options.linger)
    return 0


if __name__ == "__main__":
    sys.exit(main())
