"""A mutant changes the code that it names, is gone afterwards, and is an error when its text is missing."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

import pytest
from gantry_broker.replication import core, leader

from tests.simulation.mutants import RULES, Edit, Mutant, StaleMutant, plant, planted


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions of a module and the methods of its classes."""
    for one in vars(module).values():
        if not isinstance(one, type | FunctionType) or one.__module__ != module.__name__:
            continue
        for found in vars(one).values() if isinstance(one, type) else (one,):
            function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            if isinstance(function, FunctionType):
                yield function


def codes(mutant: Mutant) -> dict[str, CodeType]:
    modules = {edit.module for edit in mutant.edits}
    return {f"{m.__name__}.{f.__qualname__}": f.__code__ for m in modules for f in functions(m)}


def does(code: CodeType) -> tuple[object, ...]:
    """The effect of a function, independent of its line numbers."""
    parts = (does(part) if isinstance(part, CodeType) else part for part in code.co_consts)
    return (code.co_code, code.co_names, code.co_varnames, *parts)


def test_every_rule_has_a_mutant() -> None:
    assert sorted(RULES) == list(range(1, 28))
    assert len({mutant.name for mutant in RULES.values()}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(RULES[rule]))
def test_a_mutant_changes_code_in_each_module_that_it_names_and_is_gone_afterwards(rule: int) -> None:
    before = codes(RULES[rule])
    with planted(rule):
        within = codes(RULES[rule])
        changed = {name for name, code in within.items() if does(code) != does(before[name])}
    for edit in RULES[rule].edits:
        assert any(name.startswith(f"{edit.module.__name__}.") for name in changed), edit
    assert codes(RULES[rule]) == before


def test_a_mutant_is_gone_after_an_error() -> None:
    before = codes(RULES[8])
    with pytest.raises(KeyError), planted(8):
        raise KeyError
    assert codes(RULES[8]) == before


def test_two_mutants_of_one_module_are_planted_together() -> None:
    before = leader.Leader.acknowledge.__code__, leader.Leader.confirmable.__code__
    with planted(8, 12):
        within = leader.Leader.acknowledge.__code__, leader.Leader.confirmable.__code__
    assert all(one != other for one, other in zip(before, within, strict=True))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("no such text", "pass", "is 0 times in gantry_broker.replication.leader, not once"),
        ("return", "pass", "times in gantry_broker.replication.leader, not once"),
        ("catch_up_ms: int = 1_000", "catch_up_ms: int = 1", "is not within a function"),
        ("if self._is_impossible(fetch):", "if", "is no Python"),
    ],
)
def test_a_mutant_whose_text_does_not_fit_is_an_error_and_changes_nothing(before: str, after: str, why: str) -> None:
    fits = Edit(core, "return applied", "return True")
    stale = Mutant(99, "stale", (fits, Edit(leader, before, after)))
    code = core.MemberCore.answered.__code__
    with pytest.raises(StaleMutant, match=rf"^rule_99_stale: .*{why}"), plant(stale):
        pytest.fail("it was planted")
    assert core.MemberCore.answered.__code__ is code


def test_an_unknown_rule_number_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no rule 28: they are 1 to 27"):
        planted(28)
