"""Reads an archive back whole, and writes what it found into it: `python -m gantry_broker.archive.verifying`.

A schedule starts it (`spec.archive.verify`): a Job in Kubernetes, a process on one machine. It talks to no broker.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from gantry_broker import logs
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.errors import ArchiveError
from gantry_broker.archive.inspection import Verified, verify
from gantry_broker.archive.manifest import State
from gantry_broker.archive.opening import open_archive
from gantry_broker.archive.verified import MAX_DAMAGED, Verification, shortened
from gantry_broker.config import VerifyOrder

log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
"""The archive cannot be read as a whole: another try may succeed. Damage is a result, and no failure of the run."""
AGAIN_S: Final = 10.0
"""Seconds after which objects that seem to be damaged or missing are read once more."""


@dataclass(slots=True)
class Pace:
    """Waits after each object, so that a run reads no more than so many bytes a second."""

    rate: int
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    free_at: float = 0.0

    def __call__(self, size: int) -> None:
        now = self.clock()
        self.free_at = max(self.free_at, now - 1.0) + size / self.rate
        if self.free_at > now:
            self.sleep(self.free_at - now)


def result_of(state: State, verified: Verified, at_ms: int) -> Verification:
    """Return what is noted in the archive of a verification that ended at a time of the store's clock."""
    return Verification(
        at_ms=at_ms,
        end=state.end,
        until_ms=state.last_ms,
        objects=verified.parts,
        size=verified.bytes,
        records=verified.records,
        faults=len(verified.faults),
        first_faults=shortened(verified.faults),
        damaged=verified.damaged[:MAX_DAMAGED],
    )


def verify_group(archive: Archive, name: str, progress: Callable[[int], None]) -> Verified | None:
    """Read a group's archive whole, and note the result in it; None: it has no records. Raises ArchiveError."""
    group = archive.group(name)
    state = group.load()
    if not state.parts:
        return None
    verified = verify(group, state, progress, AGAIN_S)
    group.note_verification(result_of(state, verified, group.clock_ms()))
    return verified


def carry_out(order: VerifyOrder) -> int:
    """Verify all groups. Returns the exit code."""
    failed = False
    try:
        archive = open_archive(order)
        names = archive.groups()
    except ArchiveError as error:
        log.error("the archive %s: %s", order.url, error)
        return EXIT_FAILED
    for name in names:
        try:
            verified = verify_group(archive, name, Pace(order.rate_bytes))
        except ArchiveError as error:
            log.error("group %s: %s", name, error)
            failed = True
            continue
        if verified is None:
            continue
        log.info(
            "group %s: %d objects, %d records, %d faults", name, verified.parts, verified.records, len(verified.faults)
        )
        for fault in verified.faults:
            log.error("group %s: %s", name, fault)
    return EXIT_FAILED if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m gantry_broker.archive.verifying", description=__doc__)
    parser.add_argument("--order", required=True, help="VerifyOrder as JSON")
    args = parser.parse_args(argv)
    logs.configure("INFO")
    try:
        order = VerifyOrder.model_validate_json(args.order)
    except ValidationError as error:
        print(f"gantry: the order cannot be read: {error}", file=sys.stderr)
        return EXIT_FAILED
    return carry_out(order)


if __name__ == "__main__":
    sys.exit(main())
