"""A seed is a plan, the same at every draw, and the seeds draw every kind of fault."""

from __future__ import annotations

from tests.chaos.episode import can_fill_disks, make_plan, not_here
from tests.chaos.faults import ALONE, FAULTS, MORE, MORE_FROM, NEEDS_OWN_NETWORK, STORE, STORE_FROM


def test_a_seed_is_a_plan() -> None:
    assert make_plan(4711) == make_plan(4711)
    assert {make_plan(seed).mode for seed in range(20)} == {"MasterSlave", "Raft"}
    assert {make_plan(seed).flush for seed in range(20)} == {"Async", "Sync"}


def test_every_fault_is_drawn() -> None:
    drawn = {step.kind for seed in range(60) for step in make_plan(seed).steps}
    assert drawn == set(FAULTS) - not_here()


def test_async_replication_has_plans_of_its_own() -> None:
    plans = [make_plan(seed, replication="Async") for seed in range(60)]
    assert {plan.mode for plan in plans} == {"MasterSlave"}
    assert {plan.flush for plan in plans} == {"Async", "Sync"}
    assert {plan.min_in_sync for plan in plans} == {1, 2}
    assert {step.kind for plan in plans for step in plan.steps} == {*FAULTS, *ALONE} - not_here()


def test_later_seeds_draw_more() -> None:
    for replication, kinds in (("Sync", {*FAULTS, *MORE}), ("Async", {*FAULTS, *MORE, *ALONE})):
        plans = [make_plan(MORE_FROM + seed, replication=replication) for seed in range(60)]
        assert {step.kind for plan in plans for step in plan.steps} == kinds - not_here()


def test_the_latest_seeds_draw_faults_of_the_object_store_too() -> None:
    for replication, kinds in (("Sync", {*FAULTS, *MORE}), ("Async", {*FAULTS, *MORE, *ALONE})):
        plans = [make_plan(STORE_FROM + seed, replication=replication) for seed in range(60)]
        assert {step.kind for plan in plans for step in plan.steps} == (kinds | {*STORE}) - not_here()
        assert {plan.archives for plan in plans} == ({True, False} if STORE.keys() - not_here() else {False})


def test_the_plans_of_seeds_for_sync_and_raft_stay() -> None:
    """Recorded results refer to them."""
    assert [str(make_plan(seed)) for seed in (5, 6, 7)] == [
        "seed 5: Raft, flush Sync, minInSyncReplicas 1",
        "seed 6: MasterSlave, flush Sync, minInSyncReplicas 2",
        "seed 7: Raft, flush Async, minInSyncReplicas 2",
    ]
    if can_fill_disks():
        assert [step.kind for step in make_plan(4711).steps] == [
            "kill-in-bad-weather", "bad-weather", "hand-over", "hand-over",
            "cut-off", "kill-twice", "clients-cut", "kill",
        ]  # fmt: skip
    if not NEEDS_OWN_NETWORK & not_here() and can_fill_disks():
        assert [step.kind for step in make_plan(MORE_FROM + 6).steps] == [
            "kill", "kill-in-bad-weather", "corrupted", "resets",
            "name-server-killed", "cut-from-peers", "name-server-killed", "name-server-killed",
        ]  # fmt: skip
    assert len(FAULTS) == 22, "one more kind for every plan changes them all"
