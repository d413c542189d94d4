"""The table of mutants, one for each rule of docs/replication.md.

Where the simulation models the part that keeps a rule (the registry, the disk, the operator's choices), the mutant
edits that model. Texts are short, because each must be in its module exactly once.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager

from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_broker.replication import core, follower, leader, raft, raft_leader, replica

from tests.simulation import machine, model_log, operators, raft_world, scenario, world
from tests.simulation.mutants.planting import Edit, Mutant, plant

_MUTANTS = (
    Mutant(
        1,
        "ack_on_same_log",
        (
            Edit(core, "if fetch.epoch != leader.epoch:", "if False:"),
            Edit(leader, "if on_my_log < fetch.end:", "if False:"),
        ),
    ),
    Mutant(2, "answer_fits_asker", (Edit(follower, "if not fits:", "if False:"),)),
    Mutant(
        3,
        "confirm_after_apply",
        (
            Edit(
                follower,
                "self.leader_end = answer.leader_end",
                "self.leader_end = answer.leader_end; self._log.confirm(min(answer.confirmed, self._log.end))",
            ),
            Edit(follower, "if divergence_offset >= self._log.confirmed or", "if True or"),
        ),
    ),
    Mutant(
        4,
        "fresh_ack_table",
        (
            Edit(
                core,
                "self.leader = None\n            self.waiters",
                "self.former, self.leader = self.leader.followers, None\n            self.waiters",
            ),
            Edit(
                replica,
                'self.reason = ""\n        self._confirm()',
                'self.reason = ""; self.leader.followers.update(vars(self).get("former", {}))\n        self._confirm()',
            ),
        ),
    ),
    Mutant(
        5,
        "durable_cut",
        (
            Edit(model_log, "del self.file[to - self.start :]", "return self._power.step()"),
            Edit(model_log, "del self.file[index:]", "pass"),
            Edit(model_log, "self.end)\n        self._count()", "self.end)"),
        ),
    ),
    Mutant(
        6,
        "record_borders",
        (
            Edit(
                leader,
                "self._log.read_raw(fetch.end, fetch.max_bytes)",
                "(whole := self._log.read_raw(fetch.end, fetch.max_bytes))[: len(whole) * 2 // 3]",
            ),
            Edit(model_log, "if decode(data, 0, at) is None:", "if False:"),
        ),
    ),
    Mutant(
        7,
        "epoch_starts_with_record",
        (Edit(replica, "self._log.begin_epoch(", "if not self._log.leader_epochs: self._log.begin_epoch("),),
    ),
    Mutant(
        8,
        "confirm_by_whole_set",
        (
            Edit(
                leader,
                "lowest = self.own_end",
                "return min(self.own_end, max((v.acked for v in self.followers.values()), default=self.own_end))",
            ),
        ),
    ),
    Mutant(9, "read_confirmed_only", (Edit(world, "return self.log.confirmed", "return self.log.end"),)),
    Mutant(
        10,
        "answer_waiters_first",
        (
            Edit(core, "self.waiters.fail(SendStatus.FLUSH_SLAVE_TIMEOUT)", "pass"),
            Edit(core, "return applied", "self.waiters.reached(self._log.confirmed); return applied"),
        ),
    ),
    Mutant(
        11,
        "ack_on_disk",
        (
            Edit(leader, "if self._options.sync_flush:", "if False:"),
            Edit(leader, "fetch.flushed if self._options.sync_flush else fetch.end", "fetch.end"),
        ),
    ),
    Mutant(12, "refuse_absurd_ack", (Edit(leader, "if self._is_impossible(fetch):", "if False:"),)),
    Mutant(
        13,
        "swap_whole_record",
        (
            Edit(
                world,
                "if expected != self.leadership:",
                "if (expected and expected.epoch) != (self.leadership and self.leadership.epoch):",
            ),
            Edit(world, "self.checker.swapped(new)", "pass"),
            # The operator assigns a record that the registry may never have.
            Edit(
                operators,
                "if not self._world.registry.swap(",
                "self.leadership = plan.leadership\n        if not self._world.registry.swap(",
            ),
        ),
    ),
    Mutant(
        14,
        "ordered_assignments",
        (
            Edit(replica, "if leadership.order < held.order:", "if leadership.epoch < held.epoch:"),
            Edit(replica, "if leadership.order == held.order and", "if False and"),
            Edit(replica, "self._highest_seen_epoch = epoch\n", "self._highest_seen_epoch = epoch; return\n"),
        ),
    ),
    Mutant(
        15,
        "durable_assignment",
        (Edit(replica, "self._disk.save(state)", "pass"), Edit(replica, "if leadership.epoch < newest:", "if False:")),
    ),
    Mutant(
        16,
        "incarnations",
        (
            Edit(replica, "return master == self.me", "return master.member == self.me.member"),
            Edit(world, "if not log_trusted:", "if False:"),
            Edit(machine, "if self.world.options.sync_flush or leadership is None:", "if True:"),
            Edit(
                operators,
                "return report.member in leadership.in_sync",
                "return any(report.member.member == m.member for m in leadership.in_sync)",
            ),
            Edit(
                scenario,
                "known = held.in_sync\n",
                "known = held.in_sync | {self._id(str(m.member)) for m in held.in_sync}\n",
            ),
        ),
    ),
    Mutant(
        17,
        "master_adds",
        (
            Edit(operators, "makers = [", "from tests.simulation.mutants.rules import add_by_lag; makers = ["),
            Edit(operators, "self._remove]", "self._remove, lambda *given: add_by_lag(self, *given)]"),
            Edit(operators, "if not based:", "if False:"),
            Edit(scenario, "if in_sync != held.in_sync:", "if False:"),
        ),
    ),
    Mutant(18, "wait_for_asked", (Edit(leader, "members = self.recorded\n", "return self.recorded\n"),)),
    Mutant(19, "propose_caught_up", (Edit(leader, "if view.acked >= self._log.confirmed and", "if True or"),)),
    Mutant(
        20,
        "subset_promotion",
        (
            Edit(
                operators,
                "others = sorted(leadership.in_sync - {new.member})",
                "others = sorted({r.member for r in self.reports.values()} - {new.member})",
            ),
            Edit(scenario, "if not in_sync <= known:", "if False:"),
        ),
    ),
    Mutant(
        21,
        "new_epoch_after_restart",
        (
            Edit(
                replica,
                "if not self._is_me(leadership.master):\n",
                "if self._is_me(leadership.master): self._lead(now_ms)\n        elif True:\n",
            ),
            Edit(replica, "if not new_epoch:", "if False:"),
        ),
    ),
    Mutant(
        22,
        "record_outlives",
        (
            Edit(
                operators,
                "if len(reports) < len(self._world.members) or not all(r.empty for r in reports):",
                "if not reports:",
            ),
            Edit(world, "self.checker.swapped(new)", "pass"),
        ),
    ),
    Mutant(
        23,
        "park_before_swap",
        (
            Edit(core, "return self.leader is not None and self.leader.pause_writes is not None", "return False"),
            Edit(world, "if core.handed_over():", "if True:"),
        ),
    ),
    Mutant(24, "durable_vote", (Edit(raft, "self._disk.save(state)", "pass"),)),
    Mutant(25, "commit_own_epoch", (Edit(raft_leader, "if upto < self.control_end:", "if False:"),)),
    Mutant(
        26,
        "learners",
        (
            Edit(raft, "return self.me in ids(self.members)", "return True"),
            Edit(raft_leader, "return self._log.flushed", "return self._log.end"),
            Edit(
                raft_leader,
                "upto = majority_offset(map(self._acked, ids(self._members())))",
                "numbers = {m.member for m in ids(self._members())}\n"
                "        counted = ids(self._members()) | {m for m in self.followers if m.member in numbers}\n"
                "        upto = majority_offset(sorted(map(self._acked, counted), reverse=True)[: len(numbers)])",
            ),
        ),
    ),
    Mutant(
        27,
        "single_changes",
        (
            Edit(raft_leader, "if self._log.confirmed < self.control_end:", "if False:"),
            Edit(raft_leader, "if changes and changes[-1].end > self._log.confirmed:", "if False:"),
            Edit(raft_leader, "if not differ_by_one(before, members):", "if False:"),
            Edit(
                raft_world,
                "if len(left) >= 2 or len(self.world.members) < 3:",
                "if self.rng.random() < 0.7:\n"
                "            left = tuple(v for v in core.members if v.id == core.me or self.rng.random() < 0.4)\n"
                "        if True:",
            ),
        ),
    ),
)

RULES = {mutant.rule: mutant for mutant in _MUTANTS}
"""By the number of the broken rule."""


def planted(*rules: int) -> AbstractContextManager[None]:
    """Within this, the rules with these numbers are broken. Raises ValueError for a number that no rule has."""
    unknown = [rule for rule in rules if rule not in RULES]
    if unknown:
        raise ValueError(f"no rule {', '.join(map(str, unknown))}: they are 1 to {max(RULES)}")
    return plant(*(RULES[rule] for rule in rules))


def add_by_lag(
    operator: operators.ModelOperator, leadership: LeadershipRecord, rng: random.Random
) -> operators.Plan | None:
    """Without rule 17: the operator adds a member that seems to have everything, and the master learns of it later."""
    master = operator.reports.get(leadership.master.member) if leadership.master is not None else None
    near = [
        r.member
        for r in operator.reports.values()
        if r.member not in leadership.in_sync and master is not None and r.position[1] >= master.position[1]
    ]
    return (
        operators.Plan(leadership, leadership.with_set(leadership.in_sync | {rng.choice(near)}), "add by lag")
        if near
        else None
    )
