"""Names that other programs read: on the wire, in status, in metrics, in Kubernetes. They change on purpose only.

`python -m tests.api.test_frozen_names` writes `tests/data/frozen_names.json`. Read the diff before you commit it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.tables import Metadata, Tables
from gantry_broker.contracts import models
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_broker.protocol.codes import GantryCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.replication import wire
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, Position
from gantry_broker.replication.raft_messages import RaftRequest, RaftRequestKind, RaftResponse
from gantry_broker.replication.state import HardState
from gantry_broker.store.log.epochs import EpochStart
from gantry_operator.api import status
from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "tests" / "data" / "frozen_names.json"
METRIC = re.compile(
    r'"(gantry_[a-z_]+_(?:total|bytes|seconds|epoch|members|full|writable|topics|groups|pulls|places|master|leader|clusters|available|connections|requests|pending|condition|ready|degraded|servers|letters|series|holds|failed))"'
)
ANNOTATION = re.compile(r"(gantry\.dev/[a-z][a-z-]+)")
A = MemberId(0, "a")


def fields_of(module: Any) -> dict[str, list[str]]:
    """The field names of every model that a module defines."""
    found = {}
    for name, value in vars(module).items():
        if not isinstance(value, type) or not issubclass(value, BaseModel) or name.startswith("_"):
            continue
        if value.__module__ == module.__name__:
            found[name] = sorted(value.model_fields)
    return found


def in_sources(pattern: re.Pattern[str]) -> list[str]:
    """The names in string literals of the product's sources."""
    found: set[str] = set()
    for package in ("broker_image", "operator", "spark_jobs"):
        for path in (ROOT / package).rglob("*.py"):
            found.update(pattern.findall(path.read_text()))
    return sorted(found)


def names() -> dict[str, Any]:
    """All frozen names of this tree."""
    epochs = (EpochStart(1, 0),)
    fetch = wire.fetch_frame(Fetch(1, A, 0, 0, epochs, 0, 1, "h:1", A))
    answer = FetchAnswer(AnswerKind.TRUNCATE, 1, Position(0, 0), 0, 0, 1, 1, b"", epochs, "why")
    request = wire.raft_request_frame(RaftRequest(RaftRequestKind.VOTE, 1, A, "h:1"), "c/g", "h:2")
    response = wire.raft_response_frame(Frame(GantryCode.RAFT), RaftResponse(RaftRequestKind.VOTE, 1, A, 1))
    return {
        "codes": {code.name: int(code) for code in GantryCode},
        "answer kinds": sorted(kind.value for kind in AnswerKind),
        "fetch": sorted(fetch.ext),
        "fetch answer": sorted(wire.answer_frame(fetch, answer).ext),
        "raft request": [sorted(request.ext), sorted(orjson.loads(request.body))],
        "raft kinds": sorted(kind.value for kind in RaftRequestKind),
        "raft response": sorted(orjson.loads(response.body)),
        "replica.json": sorted(HardState(A).to_json()),
        "gantryTables.json": sorted(orjson.loads(snapshots.render(Metadata(Tables()), ())[snapshots.OWN])),
        "leadership record": sorted(LeadershipRecord(1, 1, A, frozenset({A})).to_json()),
        "HTTP": fields_of(models),
        "BrokerCluster status": fields_of(status),
        "metrics": in_sources(METRIC),
        "labels and annotations": in_sources(ANNOTATION),
    }


def test_names_that_others_read_do_not_change() -> None:
    frozen = json.loads(FROZEN.read_text())
    now = json.loads(json.dumps(names()))
    assert now == frozen, "if this is on purpose: python -m tests.api.test_frozen_names"


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(names(), indent=1, sort_keys=True) + "\n")
