"""The `gantry` command. `main` is the entry point. Each command imports its modules when it runs.

A new command is a function in `app.py`, or in the module of its group (`topic_commands.py`); CONTRIBUTING.md has the
steps.
"""

from __future__ import annotations

import sys

from gantry_broker.starting import importing


def main() -> None:
    """Run the command line and exit with its code (see `gantry --help`)."""
    try:
        with importing():
            from gantry_operator.cli.app import run

        run()
    except KeyboardInterrupt:  # While modules are imported. `run` itself turns it into the exit code.
        sys.exit(130)
