"""The queues of topics by broker group, and the safe order of changes."""

from __future__ import annotations

import random

from gantry_broker.protocol.bodies import TopicConfig
from gantry_operator.drain.rebalance import changes, proposal, spread, surplus_is_empty


def test_queues_are_spread_evenly_and_none_moves_without_need() -> None:
    assert spread(8, "abcd", {"a": 4, "b": 4}) == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert spread(5, "ab", {"b": 5}) == {"b": 3, "a": 2}
    assert spread(1, "abc", {}) == {"a": 1, "b": 1, "c": 1}


def test_changes_are_made_in_the_safe_order_and_may_be_repeated() -> None:
    topics = {"T": {"a": TopicConfig("T", 8, 8), "b": TopicConfig("T", 2, 2)}}
    rows = proposal(topics, ["a", "b", "c"])
    assert {r.group: r.wanted for r in rows} == {"a": 4, "b": 3, "c": 3}
    add, close, take = changes(topics, rows)
    assert [(c.group, c.config.write_queues, c.config.read_queues) for c in add] == [("b", 3, 3), ("c", 3, 3)]
    assert [(c.group, c.config.write_queues, c.config.read_queues) for c in close] == [("a", 4, 8)]
    assert [(c.group, c.config.read_queues) for c in take] == [("a", 4)]
    for change in [*add, *close]:
        topics["T"][change.group] = change.config
    add, close, take = changes(topics, proposal(topics, ["a", "b", "c"]))
    assert (add, close, len(take)) == ([], [], 1)


def test_a_queue_is_empty_when_every_consumer_group_has_read_it() -> None:
    config = TopicConfig("T", 2, 2)
    ends = {0: (0, 9), 1: (0, 9), 2: (0, 5), 3: (4, 4)}
    assert surplus_is_empty(config, ends, [{2: 5}])
    assert not surplus_is_empty(config, ends, [{2: 5}, {2: 4}])
    assert not surplus_is_empty(config, ends, [{2: 5}, {}])
    assert not surplus_is_empty(config, ends, [])
    assert surplus_is_empty(config, {**ends, 2: (5, 5)}, [])


def test_random_topics_end_settled_without_losing_a_queue_that_is_needed() -> None:
    for seed in range(300):
        rand = random.Random(seed)
        groups = list("abcd")[: rand.randint(1, 4)]
        topics = {
            f"T{i}": {g: TopicConfig(f"T{i}", n, n) for g in groups for n in [rand.randint(0, 9)] if n}
            for i in range(3)
        }
        topics = {name: configs for name, configs in topics.items() if configs}
        before = {name: sum(c.write_queues for c in configs.values()) for name, configs in topics.items()}
        rows = proposal(topics, groups)
        for step, waits_for_empty in zip(changes(topics, rows), (False, False, True), strict=True):
            for change in step:
                known = topics[change.config.name].get(change.group)
                if known is not None and not waits_for_empty:
                    assert change.config.read_queues >= known.read_queues, "only empty queues go"
                topics[change.config.name][change.group] = change.config
            for name, configs in topics.items():
                assert any(c.write_queues for c in configs.values()), f"producers of {name} have a queue"
        assert all(row.settled for row in proposal(topics, groups))
        for name, configs in topics.items():
            assert sum(c.write_queues for c in configs.values()) == max(before[name], len(groups))
