"""The operator's metrics: what they count, and that a deleted cluster leaves no series behind."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gantry_operator.api.status import BrokerClusterStatus
from gantry_operator.cluster.observed import ObservedMember
from gantry_operator.cluster.platform import Change, Event
from gantry_operator.platforms.kubernetes.api.client import POD, ApiError
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.monitoring.cluster_figures import ClusterFigures, families
from gantry_operator.platforms.kubernetes.monitoring.health_server import HealthServer
from prometheus_client.parser import text_string_to_metric_families

from tests.kubernetes.fake_api import FakeApi
from tests.kubernetes.test_cluster_controller import kept
from tests.support.running import until

C = {"namespace": "mq", "cluster": "demo"}
A = {**C, "group": "a"}


def value(name: str, labels: dict[str, str]) -> float | None:
    return metrics.REGISTRY.get_sample_value(f"gantry_operator_{name}", labels)


def page() -> dict[str, set[str]]:
    """The names of all samples, each with the clusters that it is about."""
    found: dict[str, set[str]] = {}
    text = HealthServer(0)._metrics().body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).add(sample.labels.get("cluster", ""))
    return found


def member(number: int, **fields: Any) -> ObservedMember:
    role = "Master" if number == 0 else "Slave"
    status = {"role": role, "epoch": 7, "dead_letters": 0, "disk": {}} | fields
    return ObservedMember(f"demo-a-{number}", "a", number, status, True, in_sync=True, master=number == 0)


def change(kind: Any, ms: int) -> Change:
    return Change("a", "demo-a-0", "demo-a-1", "it is gone", 8, 1_700_000_000_000, ms, kind == "handover", kind)


@pytest.fixture
def figures() -> Any:
    shown = ClusterFigures("mq", "demo")
    metrics.SHOWN.show(shown)
    yield shown
    metrics.SHOWN.hide(shown)


def status(**fields: Any) -> BrokerClusterStatus:
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Because"}
    rows = [
        {"name": "demo-a-0", "group": "a", "role": "Master", "epoch": 7, "inSync": True, "ready": True},
        {"name": "demo-a-1", "group": "a", "role": "Slave", "epoch": 6, "inSync": False, "ready": False},
        {"name": "demo-a-2", "group": "a", "role": "Slave", "epoch": 7, "inSync": True, "ready": True},
    ]
    made: dict[str, Any] = {
        "members": rows,
        "nameServerMembers": [{"name": "n-0", "address": "h:1", "ready": True}, {"name": "n-1", "address": "h:2"}],
        "conditions": [
            {"type": "Available", "status": "True", **since},
            {"type": "Degraded", "status": "True", **since},
            {"type": "Progressing", "status": "Unknown", **since},
        ],
    }
    return BrokerClusterStatus.model_validate(made | fields)


def test_members_masters_and_conditions_are_those_of_the_status(figures: ClusterFigures) -> None:
    figures.saw(status(), [])
    assert [value(f"members{kind}", A) for kind in ("", "_ready", "_degraded")] == [3, 2, 1]
    assert (value("in_sync_members", A), value("group_master", A), value("leader_epoch", A)) == (2, 1, 7)
    assert (value("name_servers", C), value("name_servers_ready", C)) == (2, 1)
    assert value("failovers_total", {**A, "planned": "false", "reason": "failover"}) == 0
    assert value("in_sync_changes_total", {**A, "change": "shrunk"}) == 0
    assert value("cluster_available", C) == 1
    conditions = {
        c: value("cluster_condition", {**C, "condition": c}) for c in ("Available", "Degraded", "Progressing")
    }
    assert conditions == {"Available": 1, "Degraded": 1, "Progressing": 0}
    rows = [row.model_copy(update={"role": "Waiting"}) for row in status().members]
    figures.saw(status(members=rows, conditions=[]), [])
    assert (value("group_master", A), value("leader_epoch", A), value("cluster_available", C)) == (0, 7, 0)


def test_changes_of_a_master_count_by_reason_with_their_duration(figures: ClusterFigures) -> None:
    for kind, ms in (("failover", 400), ("failover", 4000), ("handover", 20)):
        figures.changed(change(kind, ms))
    lost = {"planned": "false", "reason": "failover"}
    handed = {"planned": "true", "reason": "handover"}
    assert (value("failovers_total", {**A, **lost}), value("failovers_total", {**A, **handed})) == (2, 1)
    duration = "failover_duration_seconds"
    assert value(f"{duration}_sum", {**C, **lost}) == pytest.approx(4.4)
    assert value(f"{duration}_bucket", {**C, **lost, "le": "0.5"}) == 1
    assert value(f"{duration}_bucket", {**C, **lost, "le": "+Inf"}) == 2
    assert value("last_failover_duration_seconds", {**A, **handed}) == 0.02
    assert value("last_failover_timestamp_seconds", {**A, **handed}) == 1_700_000_000
    assert value("last_failover_duration_seconds", {**A, **lost}) is None, "one series a group"


def test_changes_of_the_in_sync_set_count_by_kind(figures: ClusterFigures) -> None:
    for reason in ("InSyncSetShrunk", "InSyncSetExpanded", "InSyncSetShrunk", "FailoverStarted"):
        figures.heard(Event("Normal", reason, "", "a"))
    found = {kind: value("in_sync_changes_total", {**A, "change": kind}) for kind in ("shrunk", "expanded")}
    assert found == {"shrunk": 2, "expanded": 1}


def test_figures_that_a_member_reports_are_taken_only_if_they_are_possible(figures: ClusterFigures) -> None:
    forecast = [{**A, "member": f"demo-a-{n}"} for n in range(4)]
    figures.members = [
        member(0, dead_letters=5, disk={"full_in_s": 90}),
        member(1, dead_letters=9, disk={"full_in_s": -1}),
        member(2, disk=None),
        ObservedMember("demo-a-3", "a", 3, None, False),
    ]
    assert value("dead_letters", A) == 5, "the master's"
    assert [value("disk_full_forecast_seconds", f) for f in forecast] == [90, math.inf, math.inf, None]
    for wrong in (-1, True, "5", 2**70, None, [5]):
        figures.members = [member(0, dead_letters=wrong, disk={"full_in_s": wrong})]
        assert value("dead_letters", A) is None
        assert value("disk_full_forecast_seconds", forecast[0]) == math.inf


def test_the_last_report_is_what_the_status_says(figures: ClusterFigures) -> None:
    good = {
        "lastResult": "Succeeded", "lastSuccess": "2026-01-02T00:00:00Z", "durationSeconds": 28.5, "scannedBytes": 900,
        "topSavings": [{"topic": "Prices", "savedBytes": 700}, {"topic": "Orders", "savedBytes": 30}],
    }  # fmt: skip
    names = ("failed", "last_success_timestamp_seconds", "duration_seconds", "scanned_bytes")
    figures.saw(status(), [])
    assert [value(f"report_{name}", C) for name in names] == [None] * 4
    figures.saw(status(analytics=good), [])
    assert [value(f"report_{name}", C) for name in names] == [0, 1_767_312_000, 28.5, 900]
    assert [value("report_saved_bytes", {**C, "topic": topic}) for topic in ("Prices", "Orders")] == [700, 30]
    figures.saw(status(analytics=good | {"lastResult": "Failed", "lastSuccess": "soon"}), [])
    assert [value(f"report_{name}", C) for name in names] == [1, None, 28.5, 900], "the last good findings stay"


async def test_the_series_of_a_deleted_cluster_end(fake: FakeApi) -> None:
    async with kept(fake) as controller:
        figures = controller.platform.figures
        controller.platform._new_leader(change("failover", 400))
        controller.platform.event(Event("Warning", "InSyncSetShrunk", "too slow", "a"))
        await until(lambda: figures.status is not None and figures.status.members)
        during = page()
        assert {name for name, clusters in during.items() if "demo" in clusters} >= {
            "gantry_operator_cluster_available", "gantry_operator_members", "gantry_operator_failovers_total",
            "gantry_operator_failover_duration_seconds_bucket", "gantry_operator_in_sync_changes_total",
        }  # fmt: skip
        assert value("members", A) == len(figures.status.members)
    assert [name for name, clusters in page().items() if "demo" in clusters] == []


async def test_requests_to_the_api_count_by_verb_resource_and_status() -> None:
    counted: list[tuple[str, str, int | None]] = []
    async with FakeApi(on_answer=lambda *row: counted.append(row)) as fake:
        await fake.api.list(POD, "mq")
        assert await fake.api.get(POD, "mq", "nobody") is None
        with pytest.raises(ApiError):
            await fake.api.merge(POD, "mq", "nobody", {})
    assert counted == [("LIST", "pods", 200), ("GET", "pods", 404), ("PATCH", "pods", 404)]


def test_statuses_of_the_api_have_a_bounded_number_of_series() -> None:
    for status in (*range(100, 600), None):
        metrics.api_request("GET", "things", status)
    rows = [s.labels["code"] for m in metrics.API_REQUESTS.collect() for s in m.samples if s.name.endswith("_total")]
    assert len(set(rows)) == len(metrics.CODES) + 6
    assert value("api_requests_total", {"verb": "GET", "resource": "things", "code": "none"}) == 1
    assert value("api_requests_total", {"verb": "GET", "resource": "things", "code": "404"}) == 1


def test_every_family_has_a_row_only_with_data() -> None:
    assert [f.name for f in families([]) if f.rows or f.histograms] == []
