"""Changes of the tables in words."""

from __future__ import annotations

from gantry_broker.broker.describe import describe_tables
from gantry_broker.broker.metadata.tables import Tables, encode_change
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig


def test_a_change_names_its_subject() -> None:
    change = {
        "topics": [TopicConfig("T").to_json()],
        "groups": [SubscriptionGroup("g").to_json()],
        "offsets": {"T@g": {"0": 5, "1": 7}},
        "settings": {"maxTopics": ["300", ""]},
    }
    assert describe_tables(encode_change(change)) == (
        "sets topics T; sets groups g; consumer offsets T@g (0: 5, 1: 7); sets settings maxTopics 300"
    )
    assert describe_tables(encode_change({"dropTopics": ["T"], "dropData": 40})) == (
        "deletes topics T; hides their records below 40"
    )
    assert describe_tables(encode_change({"dropTopics": [f"T{n}" for n in range(9)]})) == (
        "deletes topics T0, T1, T2, T3, T4 and 4 more"
    )
    assert describe_tables(encode_change({"at": 1})) == "changes nothing"
    assert describe_tables(b'{"kind":"epoch"}') is None
    assert describe_tables(b"\xff") is None
    assert describe_tables(encode_change({"topics": 7, "offsets": "x", "dropGroups": {"a": [1]}})) is not None


def test_all_changes_of_full_tables_are_described() -> None:
    tables = Tables(topics={"T": TopicConfig("T")}, offsets={"T@g": {0: 1}}, delay={1: 2}, timer={3: 4})
    said = [describe_tables(encode_change(change)) or "" for change in tables.all_changes(5)]
    joined = "; ".join(said)
    for part in ("sets topics T", "consumer offsets T@g", "progress of delay levels 1 2", "progress of timers 3 4"):
        assert part in joined
