"""Holds a pod's stop until its broker is not master any more: `python -m gantry_broker.http.prestop --url URL`.

Kubernetes runs this before it stops the broker. Whoever decides on masters sees that the pod is to go and has another
member take over; this waits for that, so that no client sees an error. Only the standard library, to start fast.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request


def is_master(url: str) -> bool:
    """What GET /v1/status says. False also when it does not answer: then there is nothing to hand over."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(json.load(answer).get("role") == "Master")
    except (OSError, ValueError):
        return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gantry_broker.http.prestop", description=__doc__)
    parser.add_argument("--url", required=True, help="of the broker's status, http://127.0.0.1:PORT/v1/status")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait at most (default: 30)")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.timeout
    while is_master(options.url) and time.monotonic() < deadline:
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
