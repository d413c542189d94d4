"""What `gantry migrate` prints: copies by group, the steps of a cutover and of a rollback, phases as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gantry_operator.cli.output import note, print_table, say
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_operator.migration import rollback_steps
    from gantry_operator.migration.cutover_steps import Limits, Phase, Record


class Copied(NamedTuple):
    """What a line of the table says of one group."""

    state: str | None
    end: int | None
    lag: int | None
    problem: str
    copy: dict[str, Any]


def print_copies(groups: dict[str, Copied]) -> None:
    rows = []
    for name, group in groups.items():
        rate = group.copy.get("rate")
        rows.append(
            [
                name,
                group.state or "-",
                "-" if group.end is None else size(group.end - (group.copy.get("start") or 0)),
                "-" if group.lag is None else size(group.lag),
                "-" if rate is None else f"{size(rate)}/s",
                group.copy.get("topics") or "-",
                group.copy.get("groups") or "-",
                group.problem or "-",
            ]
        )
    print_table(
        ["GROUP", "STATE", "COPIED", "MISSING", "RATE", "TOPICS", "GROUPS", "PROBLEM"], rows,
        right=["COPIED", "MISSING", "RATE", "TOPICS", "GROUPS"],
    )  # fmt: skip


class Phases:
    """Prints each phase once, with its time."""

    def __init__(self) -> None:
        self._phase: Phase | rollback_steps.Phase | None = None
        self._since = time.monotonic()
        self._named: set[str] = set()

    def __call__(self, phase: Phase | rollback_steps.Phase, waits: str) -> None:
        if phase is not self._phase:
            now = time.monotonic()
            if self._phase is not None:
                say(f"{self._phase.value}: {now - self._since:.1f} s")
            self._phase, self._since = phase, now

    def warn(self, problem: str) -> None:
        """Name a problem once."""
        if problem not in self._named:
            self._named.add(problem)
            note(f"{problem}; tried again")

    def end(self, took: float) -> None:
        say(f"done after {took:.1f} s")


def show_steps(record: Record, limits: Limits, lags: dict[str, int]) -> None:
    groups = ", ".join(record.groups)
    say(f"groups: {groups}; missing now: {', '.join(f'{n} {size(lag)}' for n, lag in lags.items())}")
    print_table(
        ["STEP", "SECONDS", "WHAT HAPPENS", "BACK"],
        [
            *(
                [
                    ["routing", "1 to 5", "routes give Gantry's address, which leads to the source", "abort"],
                    ["routed", f"{limits.routes:g}", "clients learn it", "abort"],
                ]
                if record.carried
                else []
            ),
            ["readers-off", f"{limits.settle:g}", "consumers get nothing, and commit what they have had", "abort"],
            ["writes-off", f"{limits.quiet:g} to {limits.quiet_at_most:g}", "producers are refused; the end arrives",
             "abort"],
            ["finishing", "2 to 5", "each group leads", "no"],
            ["taking", "1 to 30", "the source's NameServers give Gantry's addresses", "no"],
        ],
        right=["SECONDS"],
    )  # fmt: skip
    note("nothing was changed")


def show_rollback(groups: Sequence[str], limits: rollback_steps.Limits) -> None:
    silent = f"1 to {limits.silent:g}"
    say(f"groups: {', '.join(groups)}")
    print_table(
        ["STEP", "SECONDS", "WHAT HAPPENS", "BACK"],
        [
            ["copying-back", f"until {limits.lag} messages are missing", "the source gets what was written since",
             "--abort"],
            ["gantry-writes-off", f"1 to {limits.quiet_at_most:g}", "producers are refused; the rest is copied",
             "--abort"],
            ["gantry-readers-off", f"{limits.settle:g}", "consumers get nothing, and commit what they have had",
             "--abort"],
            ["offsets", "1", "the source gets the offsets of all groups", "--abort"],
            ["leaving", silent, "Gantry leaves the source's NameServers", "--abort"],
            ["returning", silent, "the source leads again", "no"],
        ],
        right=["SECONDS"],
    )  # fmt: skip
    note("nothing was changed")
