"""Every query of the dashboards, the alerts and the KEDA example has data on a real Prometheus with a real cluster."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from helm.dashboards.boards import BOARDS
from tests.dashboards.programs import program
from tests.dashboards.rig import NAMESPACE, Prometheus, expanded, rig
from tests.dashboards.test_alerts import FILE, RULES

ROOT: Final = Path(__file__).parents[2]
WAIT_S: Final = 90

NO_DATA: Final = {
    "gantry_operator_archive_verification_overdue": "an archive that is verified on a schedule has it",
    "gantry_certificate_expiry_timestamp_seconds": "brokers without TLS have no certificate",
    "gantry_proxy_refused_total": "a reason has a series once a proxy refused for it",
    "gantry_sends_refused_total": "a code has a series once a send was refused with it",
    'gantry_operator_reconciles_total{outcome="error"}': "an outcome has a series once a pass ended with it",
}
"""Series of alerts that a healthy cluster does not have without TLS and without a schedule for its archive."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A cluster with three members under load, after a switchover and with a dead letter, and its Prometheus."""
    program("prometheus")
    ready, end = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    async def run() -> None:
        async with rig(tmp_path_factory.mktemp("live"), rules=FILE, each=0.05) as (cluster, prometheus):
            await asyncio.to_thread(cluster.gantry, "switchover", "a", "--dir", str(cluster.folder.root))
            found["prometheus"] = prometheus
            ready.set()
            await asyncio.to_thread(end.wait)

    def thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            found["error"] = error
        finally:
            ready.set()

    runs = threading.Thread(target=thread)
    runs.start()
    ready.wait()
    try:
        if "prometheus" in found:
            yield found["prometheus"]
    finally:
        end.set()
        runs.join()
        if "error" in found:
            raise found["error"]


def has_data(asked: Prometheus, expr: str) -> bool:
    return any(not math.isnan(float(series["value"][1])) for series in asked.query(expr))


def without_data(asked: Prometheus, queries: dict[Any, str], expected: Set[Any] = frozenset()) -> set[Any]:
    """Waits until all queries but the expected ones have data. Returns those that have none."""
    deadline = time.monotonic() + WAIT_S
    missing = set(queries)
    while True:
        missing = {key for key in missing if not has_data(asked, queries[key])}
        if missing <= expected or time.monotonic() > deadline:
            return missing
        time.sleep(1)


def test_every_process_is_scraped(asked: Prometheus) -> None:
    assert without_data(asked, {"up": "sum(up) == 6"}) == set()
    assert asked.targets_up() == (6, 6)


def test_every_panel_has_data(asked: Prometheus) -> None:
    """Those that a healthy cluster leaves empty say why in the description."""
    queries = {
        (name, panel.title, query.name): expanded(query.expr)
        for name, board in BOARDS.items()
        for panel in board.panels()
        for query in panel.queries
    }
    excused = {
        (name, panel.title, query.name)
        for name, board in BOARDS.items()
        for panel in board.panels()
        if panel.may_be_empty
        for query in panel.queries
    }
    assert without_data(asked, queries, excused) == excused


def test_every_choice_has_values(asked: Prometheus) -> None:
    queries = {
        (name, variable.name): f"count by ({variable.name}) ({expanded(variable.metric)}) and on () vector(1)"
        for name, board in BOARDS.items()
        for variable in board.variables
    }
    assert without_data(asked, queries) == set()
    for (name, label), expr in queries.items():
        values = {series["metric"].get(label, "") for series in asked.query(expr.removesuffix(" and on () vector(1)"))}
        assert values - {""}, f"{name}: {label}"


def selectors(expr: str) -> set[str]:
    return set(re.findall(r"\b(?:gantry|rocketmq)_\w+(?:\{[^}]*\})?", expr))


def test_every_series_of_an_alert_exists(asked: Prometheus) -> None:
    wanted = {selector: selector for rule in RULES for selector in selectors(rule["expr"])}
    assert len(wanted) > 25
    assert without_data(asked, wanted, set(NO_DATA)) == set(NO_DATA)


def test_prometheus_evaluates_every_alert_and_a_healthy_cluster_raises_none(asked: Prometheus) -> None:
    rules = [rule for group in asked.get("rules")["groups"] for rule in group["rules"]]
    assert sorted(rule["name"] for rule in rules) == sorted(rule["alert"] for rule in RULES)
    assert {rule["health"] for rule in rules} == {"ok"}, [r.get("lastError") for r in rules]
    assert [alert for alert in asked.get("alerts")["alerts"] if alert["state"] == "firing"] == []


def test_the_query_of_the_keda_example_is_the_lag_of_its_group(asked: Prometheus) -> None:
    example = yaml.safe_load((ROOT / "examples" / "keda" / "scaled-object.yaml").read_text())
    (trigger,) = example["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    query = trigger["metadata"]["query"].strip()
    assert re.findall(r'(\w+)="', query) == ["namespace", "cluster", "consumer_group"]
    # KEDA takes one value, and the example's names are those of this cluster but for the cluster's own.
    (series,) = asked.query(query.replace('cluster="demo"', 'cluster="t"'))
    assert NAMESPACE == "shop"
    assert float(series["value"][1]) >= 0
    behind = query.replace('cluster="demo"', 'cluster="t"').replace('"billing"', '"archive"')
    assert without_data(asked, {"behind": f"{behind} > 20"}) == set(), "a group that does not read falls behind"
