"""The rules of replication by name, and the one seam through which a test can take one away.

docs/replication.md tells each rule, why it is there and where it is kept; in the code a rule's number stands as a
comment where it is kept. Production code always runs with `ALL`. The simulation builds a core without one of them (a
planted bug) and must then find the record that is lost, undone or shown twice: that is how we know that it looks.
"""

from __future__ import annotations

from enum import IntEnum


class Rule(IntEnum):
    """The numbers are those of docs/replication.md."""

    ACK_ON_SAME_LOG = 1
    ANSWER_FITS_ASKER = 2
    CONFIRM_AFTER_APPLY = 3
    FRESH_ACK_TABLE = 4
    DURABLE_CUT = 5
    RECORD_BORDERS = 6
    EPOCH_STARTS_WITH_RECORD = 7
    CONFIRM_BY_WHOLE_SET = 8
    READ_CONFIRMED_ONLY = 9
    ANSWER_WAITERS_FIRST = 10
    ACK_ON_DISK = 11
    REFUSE_ABSURD_ACK = 12
    SWAP_WHOLE_CELL = 13
    ORDERED_ASSIGNMENTS = 14
    DURABLE_ASSIGNMENT = 15
    INCARNATIONS = 16
    MASTER_ADDS = 17
    WAIT_FOR_ASKED = 18
    PROPOSE_CAUGHT_UP = 19
    SUBSET_PROMOTION = 20
    NEW_EPOCH_AFTER_RESTART = 21
    CELL_OUTLIVES = 22
    PARK_BEFORE_SWAP = 23
    DURABLE_VOTE = 24
    COMMIT_OWN_EPOCH = 25
    LEARNERS = 26
    SINGLE_CHANGES = 27


Rules = frozenset[Rule]

ALL: Rules = frozenset(Rule)
"""What production code runs with."""


def without(*rules: Rule) -> Rules:
    """Every rule but these: for the tests that prove that the simulation finds what each rule prevents."""
    return ALL - set(rules)
