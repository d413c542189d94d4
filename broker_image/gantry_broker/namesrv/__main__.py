"""`python -m gantry_broker.namesrv --config FILE`: one NameServer process; SIGTERM and SIGINT end it cleanly."""

from __future__ import annotations

import json
import sys

from gantry_broker.starting import importing


def run() -> int:
    if not _speaks_tls(sys.argv):
        # asyncio imports ssl if it can, which costs 3 MB.
        sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    with importing():
        from gantry_broker.namesrv.process import main

    return main()


def _speaks_tls(words: list[str]) -> bool:
    """Return whether the configuration asks for TLS. One that cannot be read is refused later, with a message."""
    try:
        with open(words[words.index("--config") + 1], "rb") as file:
            config = json.load(file)
        return bool(config.get("tls") or config.get("internal_tls"))
    except (ValueError, IndexError, AttributeError, OSError):
        return "--config=" in " ".join(words)


if __name__ == "__main__":
    sys.exit(run())
