"""Every file of examples/ is a cluster that starts here and accepts messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.local.cluster import Cluster, running

BEGIN_WITH_OTHERS_DATA = ("restore", "second-site", "migrate")
EXAMPLES = sorted(
    path for path in (Path(__file__).parents[2] / "examples").glob("*.yaml") if path.stem not in BEGIN_WITH_OTHERS_DATA
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_starts_and_takes_messages(example: Path, tmp_path: Path) -> None:
    with running(Cluster(tmp_path, **next(yaml.safe_load_all(example.read_text()))["spec"])) as cluster:
        cluster.gantry("topic", "create", "Orders")
        cluster.gantry("produce", "Orders", "--count", "50", "--size", "30")
        cluster.gantry("consume", "Orders", "--group", "g", "--count", "50", "--timeout", "20", "-q")
        cluster.until("all members are in sync", lambda: all(m.get("inSync") for m in cluster.members().values()))
