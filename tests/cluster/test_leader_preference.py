"""Handovers for leader preference and balance, without a failure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gantry_operator.cluster.leader_preference import Move, Standing, next_move
from hypothesis import given
from hypothesis import strategies as st

from tests.support.present import present

NODES = {0: "n0", 1: "n1", 2: "n2"}


def test_the_preferred_member_leads_as_soon_as_it_can() -> None:
    away = Standing("a", 1, {1: "n1", 2: "n2"}, preferred=0)
    assert next_move([away]) is None
    move = next_move([replace(away, able=NODES)])
    assert move == Move("a", 0, "member 0 is preferred by the spec")
    assert next_move([replace(away, able=NODES, leader=0)]) is None


def test_leaders_on_one_node_are_spread() -> None:
    groups = [Standing(name, 0, NODES, spread=True) for name in "abc"]
    move = present(next_move(groups))
    assert (move.group, move.to) == ("a", 1)
    groups[0] = replace(groups[0], leader=1)
    move = present(next_move(groups))
    assert (move.group, move.to) == ("b", 2)
    groups[1] = replace(groups[1], leader=2)
    assert next_move(groups) is None


def test_without_nodes_or_without_the_preference_no_leader_moves() -> None:
    nowhere = dict.fromkeys(NODES, "")
    assert next_move([Standing(name, 0, nowhere, spread=True) for name in "abc"]) is None
    assert next_move([Standing(name, 0, NODES) for name in "abc"]) is None


GROUPS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 4), st.sampled_from(["n0", "n1", "n2", "n3"]), min_size=1),
        st.one_of(st.none(), st.integers(0, 4)),
        st.integers(0, 4),
    ),
    max_size=8,
)


@given(GROUPS)
def test_it_comes_to_rest_evenly(drawn: list[tuple[dict[int, str], int | None, int]]) -> None:
    groups = [
        Standing(f"g{i}", sorted(able)[first % len(able)], able, preferred, spread=True)
        for i, (able, preferred, first) in enumerate(drawn)
    ]
    for _ in range(3 * len(groups) + 1):
        move = next_move(groups)
        if move is None:
            break
        groups = [replace(g, leader=move.to) if g.group == move.group else g for g in groups]
    assert next_move(groups) is None
    leaders = Counter(g.able[g.leader] for g in groups)
    for g in groups:
        if g.preferred in g.able:
            assert g.leader == g.preferred
        elif g.preferred is None:
            assert all(leaders[g.able[g.leader]] <= leaders[node] + 1 for node in g.able.values())
