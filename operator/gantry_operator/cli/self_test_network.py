"""`gantry self-test --cluster NAME`: the network between the members of a cluster, as they see it themselves."""

from __future__ import annotations

from dataclasses import asdict

from gantry_operator.actions.target import Target
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.output import note, print_json, print_table
from gantry_operator.cli.target import run_async
from gantry_operator.cluster.network import Link, verdict


def run(target: Target, limit_ms: float, as_json: bool) -> None:
    """Ask all members and print. Raises CliError where a member does not reach another."""
    links = run_async(target.network(limit_ms))
    summary = verdict(links)
    if as_json:
        print_json({"verdict": summary, "limitMs": limit_ms, "links": [asdict(link) for link in links]})
    else:
        print_table(("FROM", "TO", "VERDICT", "ROUND TRIP", "MEANING"), [_row(link) for link in links])
        note(summary)
    if any(link.level == "bad" for link in links):
        raise CliError(summary)


def _row(link: Link) -> tuple[str, ...]:
    rtt = "" if link.rtt_ms is None else f"{link.rtt_ms:.2f} ms"
    return link.one, link.other, link.level, rtt, link.words
