"""What a drain says in a cluster in which no member leads."""

from __future__ import annotations

from gantry_operator.drain.machine import LeavingGroup, Progress, decide


def test_a_standby_says_that_it_drains_after_its_promotion() -> None:
    _, step = decide(Progress(), LeavingGroup(1.0, None, None, standby=True))
    assert (step.action, [o.message for o in step.obstacles]) == (
        "wait", ["the cluster is a standby: it drains after `gantry promote`"],
    )  # fmt: skip
    _, step = decide(Progress(), LeavingGroup(1.0, None, None))
    assert [o.message for o in step.obstacles] == ["its master does not answer"]
