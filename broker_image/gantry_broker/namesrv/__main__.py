"""`python -m gantry_broker.namesrv --config FILE`: one NameServer process; SIGTERM and SIGINT end it cleanly."""

from __future__ import annotations

import sys


def run() -> int:
    # asyncio imports ssl if it can, which costs 3 MB. This process speaks no TLS and does not need it.
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    from gantry_broker.namesrv.process import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
