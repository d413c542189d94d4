"""`gantry table` as a user works with it: a topic becomes a table, which SQL reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.cluster import Cluster, take_down


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, nameServers={"replicas": 1}, brokerGroups=[{"name": "a", "members": 1}])
    try:
        made.up()
        yield made
    finally:
        take_down(made)


def test_a_topic_becomes_a_table(small: Cluster, tmp_path: Path) -> None:
    where = ("--dir", str(small.folder.root))

    def table(*words: str, **more: Any) -> Any:
        done = small.gantry("table", *words, *where, "-o", "json", **more)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    small.gantry("topic", "create", "Orders", *where)
    lines = "".join(f'{{"id": {n}, "price": {n}.5}}\n' for n in range(20))
    small.gantry("produce", "Orders", "-", "--keys", "k{n}", *where, stdin=lines + "no json\n")
    assert table("list") == []
    assert table("run", "Orders", "--schema", "inferred") == {
        "table": "Orders", "commits": 1, "rows": 20, "rejected": 1, "lost": [],
    }  # fmt: skip
    assert table("run", "Orders", "--schema", "inferred")["commits"] == 0
    (row,) = table("list")
    assert (row["rows"], row["rejected"], row["behindRecords"], row["problem"]) == (20, 1, 0, None)
    found = table("describe", "Orders")
    assert {c["name"]: c["type"] for c in found["columns"] if c["name"] != "rocketmq"} == {
        "id": "long",
        "price": "double",
    }
    assert sum(found["offsets"]["Orders"].values()) == 21
    rows = table("query", "select sum(id) as ids, count(distinct rocketmq.key) as keys from Orders where price > 5")
    assert rows == [{"ids": sum(range(5, 20)), "keys": 15}]
    rejected = table("query", 'select reason, value from "Orders__rejected"')
    assert rejected[0]["value"] == "no json"

    small.gantry("produce", "Orders", "--body", '{"id": 20}', *where)
    assert table("list")[0]["behindRecords"] == 1
    assert table("rebuild", "Orders", "--yes")["rows"] == 21
    for words, error in (
        (("run", "Orders"), "has gantry.schema-kind = Inferred, not Raw: rebuild it"),
        (("run", "Nothing"), "topic Nothing does not exist"),
        (("run", "Orders", "--every", "soon"), "--every: 'soon'; write a number with s, m or h"),
        (("run", "Orders", "--schema", str(tmp_path / "none")), "write raw, inferred or a file"),
        (("describe", "Nothing"), "there is no table Nothing; the catalog has Orders"),
        (("query", "select"), "the query fails"),
        (("query", "select * from read_csv('/etc/passwd')"), "file system operations are disabled"),
        (("list", "--catalog", str(tmp_path / "none")), "cannot be read"),
    ):
        assert error in table(*words, check=False)
