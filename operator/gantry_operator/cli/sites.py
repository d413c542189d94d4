"""`gantry demote` and `gantry promote`: two sites that share one archive exchange their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import print_json, say
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import run_async

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target


def demote(target: Target, accept_loss: bool, timeout_s: float, as_json: bool) -> None:
    """End writes at this site. Raises CliError."""
    with Progress("ending writes, archiving the last byte"):
        token = run_async(target.demote(accept_loss, timeout_s))
    if as_json:
        print_json({"token": token})
    elif token:
        say(f"the cluster is a standby now; at the other site: gantry promote --token {token}")
    else:
        say("the cluster is a standby now: it follows the archive of the one that was promoted")


def promote(target: Target, token: str, accept_loss: bool, timeout_s: float, as_json: bool) -> None:
    """Make this site the cluster. Raises CliError."""
    if token and accept_loss:
        raise CliError("--token and --accept-loss are both there: write one of them", Exit.USAGE)
    with Progress("taking the archive over"):
        run_async(target.promote(token, accept_loss, timeout_s))
    if as_json:
        print_json({"promoted": True})
    else:
        say("the cluster takes writes now, and owns the archive")
