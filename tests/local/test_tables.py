"""Tables as a user works with them: by a command, and by a resource that the supervisor carries out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.cli.app import app
from gantry_operator.cli.errors import CliError
from gantry_operator.platforms.local.topics import changed_resources
from typer.testing import CliRunner

from tests.local.cluster import Cluster, one_group, running
from tests.local.test_cluster import assert_imports

pytestmark = pytest.mark.timeout(300)

ORDERS = BrokerTopic.make("orders", "t", topicName="Orders")
PRICES = BrokerTopic.make("prices", "t", topicName="Prices", table={"mode": "Upsert", "every": "1s"})


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, **one_group(1), tables={"namespace": "shop"})
    texts = [made.file.read_text()]
    texts += [r.model_dump_json(exclude={"status"}, exclude_none=True) for r in (ORDERS, PRICES)]
    made.file.write_text("\n---\n".join(texts))
    with running(made):
        yield made


def test_a_topic_becomes_a_table(small: Cluster, tmp_path: Path) -> None:
    where = ("--dir", str(small.folder.root))

    def table(*words: str, **more: Any) -> Any:
        """A command, in this process: each start of another one takes seconds."""
        done = CliRunner().invoke(app, ["table", *words, *where, "-o", "json"], **more)
        if isinstance(done.exception, CliError):
            return str(done.exception)
        return json.loads(done.stdout) if done.exit_code == 0 else done.output

    lines = "".join(f'{{"id": {n}, "price": {n}.5}}\n' for n in range(20))
    small.gantry("produce", "Orders", "-", "--keys", "k{n}", *where, stdin=lines + "no json\n")
    assert "have the fields id integer, price number; no table is made before the schema is frozen" in table(
        "run", "Orders", "--schema", "inferred"
    )
    assert "there is no table Orders" in table("describe", "Orders")
    assert table("run", "Orders", "--schema", "inferred", "--freeze") == {
        "table": "Orders", "commits": 1, "rows": 20, "rejected": 1, "lost": [],
    }  # fmt: skip
    assert table("run", "Orders", "--schema", "inferred")["commits"] == 0
    row = next(one for one in table("list") if one["name"] == "Orders")
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

    assert table("run", "Prices", "--format", "parquet")["commits"] == 0
    assert table("run", "Orders", "--format", "parquet")["rows"] == 21
    found = {(one["name"], one["format"]): one["rows"] for one in table("list")}
    assert (found["Orders", "Iceberg"], found["Orders", "Parquet"]) == (20, 21)

    # What is known of the tables answers without PyIceberg, also after runs.
    for words in (("table", "list"), ("table", "describe", "Orders")):
        arguments = [sys.executable, "-X", "importtime", "-m", "gantry_operator.cli", *words, *where, "-o", "json"]
        done = subprocess.run(arguments, capture_output=True, text=True, env=small.environment, check=True)
        assert_imports(done.stderr, ("pyiceberg", "sqlalchemy", "pyarrow", "numpy", "httpx"))
        assert json.loads(done.stdout) == table(*words[1:])

    small.gantry("produce", "Orders", "--body", '{"id": 20}', *where)
    assert next(one for one in table("list") if one["name"] == "Orders")["behindRecords"] == 1
    assert table("run", "Orders", "--schema", "inferred")["rows"] == 1
    done = table("maintain", "Orders", "--snapshots", "1d")
    assert (done["merged"], done["removedRows"], done["expiredSnapshots"], done["skipped"]) == (2, 0, 0, "")
    assert table("rebuild", "Orders", "--yes")["rows"] == 21
    price = {"type": "object", "properties": {"price": {"type": "string"}}}
    (tmp_path / "price.json").write_text(json.dumps(price))
    rebuilt = table("rebuild", "Orders", "--yes", "--schema", str(tmp_path / "price.json"))
    assert (rebuilt["rows"], rebuilt["rejected"]) == (1, 21), "a number is no text; one message has no price"
    assert table("rebuild", "Orders", "--yes", "--schema", "inferred")["rows"] == 21
    for words, error in (
        (("run", "Orders"), "has gantry.schema-kind = Inferred, not Raw: rebuild it"),
        (("run", "Nothing"), "topic Nothing does not exist"),
        (("run", "Orders", "--every", "soon"), "--every: 'soon'; write a number with s, m, h or d"),
        (("run", "Orders", "--on-bad-record", "ignore"), "onBadRecord 'Ignore'; write Reject or Suspend"),
        (("maintain", "Orders", "--snapshots", "0"), "--snapshots: '0'; write a number"),
        (("run", "Orders", "--schema", str(tmp_path / "none")), "write raw, inferred or a file"),
        (("describe", "Nothing"), "there is no table Nothing; the catalog has Orders"),
        (("query", "select"), "the query fails"),
        (("query", "select * from read_csv('/etc/passwd')"), "file system operations are disabled"),
        (("list", "--catalog", str(tmp_path / "none")), "cannot be read"),
        (("list", "--table-namespace", "A-b"), "--table-namespace: 'A-b'; write lower-case letters"),
    ):
        assert error in table(*words), words

    # The supervisor keeps the table of the other topic up with it.
    def prices() -> dict[str, Any]:
        status = json.loads(small.folder.resources_status.read_text())
        found: dict[str, Any] = status["BrokerTopic"]["prices"]
        return found

    small.gantry("produce", "Prices", "-", "--keys", "k{n}", *where, stdin="1\n2\n3\n")
    small.until("the table has three rows", lambda: (prices().get("table") or {}).get("rows") == 3, 60)
    current = next(c for c in prices()["conditions"] if c["type"] == "TableCurrent")
    assert (current["status"], current["reason"]) == ("True", "Current")
    assert prices()["table"]["name"] == "shop.Prices"
    assert {one["name"] for one in table("list")} == {"Orders", "Prices"}, "those in the namespace of the cluster"
    assert table("list", "--table-namespace", "rocketmq") == []
    (shown,) = small.resource()["status"]["tables"]
    assert (shown["topic"], shown["current"], shown["rows"]) == ("Prices", "True", 3)
    assert table("query", "select count(*) as n from Prices") == [{"n": 3}]
    small.gantry("produce", "Prices", "--body", "4", "--keys", "k9", *where)
    small.until("a further commit", lambda: prices()["table"]["rows"] == 4, 60)
    small.gantry("produce", "Prices", "--body", "", "--keys", "k9", *where)
    small.until("a row is deleted", lambda: prices()["table"]["rows"] == 3, 60)

    # A setting that the table cannot take, until it is rebuilt.
    with changed_resources(small.folder) as known:
        known.topics["prices"].spec.table = PRICES.spec.table.model_copy(update={"mode": "Append"})  # type: ignore[union-attr]
    small.gantry("produce", "Prices", "--body", "5", "--keys", "k0", *where)

    def reason() -> str:
        return str(next(c for c in prices()["conditions"] if c["type"] == "TableCurrent")["reason"])

    small.until("the table stands still", lambda: reason() == "BadSchema", 60)
    assert table("rebuild", "Prices", "--yes")["rows"] == 6
    small.gantry("produce", "Prices", "--body", "6", "--keys", "k0", *where)
    small.until("it goes on", lambda: (reason(), prices()["table"]["rows"]) == ("Current", 7), 60)
