"""An archive is read back on a schedule: what is found is in the archive, and from there in the status."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.archive import archiver as archiving
from gantry_broker.archive.chain import VERIFICATIONS, Archive
from gantry_broker.archive.errors import ArchiveError, Damaged, Missing
from gantry_broker.archive.inspection import prune, verify
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.archive.sealing import Encrypted
from gantry_broker.archive.verified import MAX_FAULTS, Verification, shortened
from gantry_broker.archive.verifying import Pace, carry_out, verify_group
from gantry_broker.broker.http.archive_metrics import archive_families
from gantry_broker.config import ArchiveConfig, VerifyOrder
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import ArchiveRow, BrokerClusterStatus, GroupRow
from gantry_operator.cluster.archive_status import archive_condition, archive_row, with_schedule
from gantry_operator.platforms.kubernetes.manifests import verification
from gantry_operator.platforms.kubernetes.monitoring.cluster_figures import ClusterFigures, families
from gantry_operator.platforms.local.events import EventLog
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.verification import PROCESS, LocalVerification

from tests.archive.test_topic_restore import Log
from tests.support.present import present


def made(**archive: Any) -> BrokerCluster:
    return BrokerCluster.model_validate(
        {
            "apiVersion": "gantry.dev/v1alpha1",
            "kind": "BrokerCluster",
            "metadata": {"name": "shop", "namespace": "mq", "uid": "u"},
            "spec": {
                "brokerGroups": [{"name": "a", "members": 1}],
                "archive": {"url": "s3://shop/prod", **archive},
                "placement": {"nodeSelector": {"disk": "fast"}},
            },
        }
    )


def filled(folder: Path, objects: Any = None) -> Log:
    log = Log(folder)
    if objects is not None:
        log.archiver._archive = log.archive = objects
        log.archiver._group = objects.group("a")
    log.put("T", 0, 150)
    log.upload()
    return log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return filled(tmp_path)


def test_what_is_found_is_in_the_archive_and_the_uploading_member_reports_it(log: Log) -> None:
    archive, group = log.archive, log.archive.group("a")
    state, objects = group.load(), log.archive.objects
    objects.now_ms = log.now  # type: ignore[attr-defined]
    assert group.last_verification() is None
    assert present(verify_group(archive, "a", lambda size: None)).faults == ()
    known = present(group.last_verification())
    assert (known.end, known.objects, known.records, known.faults) == (state.end, len(state.parts), 151, 0)
    assert group.last_verification(known) is known
    broken, lost = (f"groups/a/parts/{state.parts[number].name}" for number in (0, 2))
    objects.objects[broken] = objects.objects[broken][:-100] + bytes(100)  # type: ignore[attr-defined]
    objects.delete(lost)
    for _ in range(VERIFICATIONS + 3):
        verify_group(archive, "a", lambda size: None)
    assert len(list(objects.list("groups/a/verified/"))) == VERIFICATIONS
    log.archiver._verified_at = -1e9
    log.archiver._look_for_verification()
    report = archiving.replace(log.archiver.report, known=True, verification=log.archiver._verification)
    report = archiving.of_manifest(report, state)
    families = archive_families(report, ArchiveConfig(url="file:///x", uid="u"), lambda value: [({}, value)])  # type: ignore[arg-type,return-value]
    values = {name: rows[0][1] for name, _, _, rows in families}
    assert values["gantry_archive_faults"] == 2
    assert values["gantry_archive_verified_timestamp_seconds"] > 1e9
    said = {
        "known": True, "end": state.end, "verified_ms": 5_000, "verified_until_ms": 4_000, "verified_end": 9,
        "faults": 2, "fault": "it is gone",
    }  # fmt: skip
    row = present(archive_row([{"known": True, "end": state.end}, said]))
    assert (row.verified, row.verifiedUntil, row.verifiedOffset) == ("1970-01-01T00:00:05Z", "1970-01-01T00:00:04Z", 9)
    condition = present(archive_condition([GroupRow(name="a", archive=row)], made()))
    assert condition[:2] == ("False", "Damaged")
    assert "group a: 2 objects are damaged or missing (verified 1970-01-01T00:00:05Z): it is gone" in condition[2]


@pytest.mark.parametrize("former", ["ahead", "behind"])
def test_the_last_result_counts_whatever_the_clocks_of_verifiers_say(
    log: Log, monkeypatch: pytest.MonkeyPatch, former: str
) -> None:
    """One machine's clock is 30 years ahead. Its result hides no later one, and has the time of the store."""
    group = log.archive.group("a")
    store_ms = log.archive.objects.now_ms = log.now  # type: ignore[attr-defined]
    clocks = [log.now + 30 * 365 * 86_400_000, log.now]
    for ms in clocks if former == "ahead" else reversed(clocks):
        monkeypatch.setattr(time, "time_ns", lambda ms=ms: ms * 1_000_000)
        verify_group(log.archive, "a", lambda size: None)
    first = present(group.last_verification())
    assert (first.at_ms, first.faults) == (store_ms, 0)
    log.archive.objects.delete(f"groups/a/parts/{group.load().parts[0].name}")
    verify_group(log.archive, "a", lambda size: None)
    last = present(group.last_verification(first))
    assert (last.number, last.faults) == (first.number + 1, 1)


def test_results_whose_names_are_times_are_continued(log: Log) -> None:
    """As former versions wrote them, one by a clock that was ahead."""
    group, objects = log.archive.group("a"), log.archive.objects
    for ms in (5_000, 99_999_999_999_999):
        name = f"groups/a/verified/{ms:016d}.json"
        objects.create(name, Verification(ms, 1, 1, 1, 1, 1, 7).to_json())
    objects.create("groups/a/verified/notes.txt", b"of somebody else")
    old = present(group.last_verification())
    assert (old.at_ms, old.faults) == (99_999_999_999_999, 7)
    verify_group(log.archive, "a", lambda size: None)
    found = present(group.last_verification(old))
    assert (found.number, found.faults) == (100_000_000_000_000, 0)
    for _ in range(VERIFICATIONS + 3):
        verify_group(log.archive, "a", lambda size: None)
    assert len(list(objects.list("groups/a/verified/"))) == VERIFICATIONS + 1
    assert present(group.last_verification()).number == 100_000_000_000_000 + VERIFICATIONS + 3


def test_two_verifications_that_end_at_once_both_stay(log: Log) -> None:
    """The listing of the second one lacks the result of the first."""
    group = log.archive.group("a")
    for faults in (0, 1):
        log.archive.objects.lag = 1  # type: ignore[attr-defined]
        group.note_verification(Verification(5, 1, 1, 1, 1, 1, faults))
    log.archive.objects.lag = 0  # type: ignore[attr-defined]
    found = present(group.last_verification())
    assert (found.number, found.faults) == (2, 1)


def test_a_part_that_leaves_the_archive_meanwhile_is_no_fault(log: Log) -> None:
    group = log.archive.group("a")
    before = group.load()
    gone = before.parts[0]
    log.archive.objects.now_ms = log.now + 100_000_000  # type: ignore[attr-defined]
    prune(log.archive, group, before, 1, log.now + 100_000_000)
    assert gone.name not in {part.name for part in group.load().parts}
    found = verify(group, before)
    assert found.faults == ()
    assert found.parts < len(before.parts)


def test_results_are_encrypted_and_a_damaged_one_stops_no_upload(tmp_path: Path) -> None:
    log = Log(tmp_path)
    sealed = Archive(log.archive.objects, Encrypted(bytes(32)))
    group = sealed.group("a")
    group.note_verification(Verification(7, 1, 1, 1, 1, 1, 1, ("topic Salaries is damaged",)))
    [name] = [found.name for found in log.archive.objects.list("groups/a/verified/")]
    assert b"Salaries" not in log.archive.objects.get(name)
    found = present(group.last_verification())
    assert found.first_faults == ("topic Salaries is damaged",)
    with pytest.raises(Damaged):
        log.archive.group("a").last_verification()
    log.archiver._look_for_verification()
    assert log.archiver._verification is None
    for text in (b"", b"[]", b'{"version":1}', b'{"version":1,"at_ms":-1}'):
        with pytest.raises(Damaged):
            Verification.from_json("x", text)
    with pytest.raises(ArchiveError, match="format version 2"):
        Verification.from_json("x", b'{"version":2}')
    assert len(shortened(["x" * 10_000] * 100)) == MAX_FAULTS


def test_a_run_keeps_its_pace() -> None:
    now, slept = [10.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 3))
        now[0] += seconds

    pace = Pace(100, sleep, lambda: now[0])
    for size in (50, 100, 200):
        pace(size)
    assert sum(slept) == pytest.approx(2.5), "350 bytes at 100 a second, of which one second is a credit"


def test_a_run_that_cannot_read_the_archive_fails_and_damage_does_not(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    store = ObjectStore(Location(url))
    log = filled(tmp_path / "log", Archive(store))
    assert carry_out(VerifyOrder(url=url)) == 0
    part = tmp_path / "store" / "groups" / "a" / "parts" / log.archive.group("a").load().parts[0].name
    part.write_bytes(part.read_bytes()[:-1])
    assert carry_out(VerifyOrder(url=url)) == 0
    assert present(log.archive.group("a").last_verification()).faults == 1
    entry = next((tmp_path / "store" / "groups" / "a" / "manifest").iterdir())
    entry.write_bytes(b"{}")
    assert carry_out(VerifyOrder(url=url)) == 1


@pytest.mark.parametrize(
    ("schedule", "since", "verified", "now", "overdue"),
    [
        # Weekly: it may take a day.
        ("0 3 * * 0", "2026-03-03T00:00:00Z", None, "2026-03-08T12:00:00Z", False),
        ("0 3 * * 0", "2026-03-03T00:00:00Z", None, "2026-03-09T04:00:00Z", True),
        ("0 3 * * 0", "2026-01-01T00:00:00Z", "2026-03-01T03:20:00Z", "2026-03-08T12:00:00Z", False),
        ("0 3 * * 0", "2026-01-01T00:00:00Z", "2026-03-01T03:20:00Z", "2026-03-09T04:00:00Z", True),
        ("0 3 * * 0", "2026-01-01T00:00:00Z", "2026-03-08T03:20:00Z", "2026-03-09T04:00:00Z", False),
        # What was due while the cluster slept, or had no schedule, is not missed.
        ("0 3 * * 0", "2026-03-08T12:00:00Z", "2026-02-01T03:20:00Z", "2026-03-10T00:00:00Z", False),
        # Hourly: it may take until the next one.
        ("0 * * * *", "2026-03-03T00:10:00Z", None, "2026-03-03T01:59:00Z", False),
        ("0 * * * *", "2026-03-03T00:10:00Z", None, "2026-03-03T02:01:00Z", True),
        ("0 * * * *", "2026-03-03T00:10:00Z", "2026-03-03T05:01:00Z", "2026-03-03T06:30:00Z", False),
        ("0 * * * *", "2026-03-03T00:10:00Z", "2026-03-03T05:01:00Z", "2026-03-03T07:01:00Z", True),
        # The clock of the verifier was 30 years ahead: nobody knows when that was.
        ("0 3 * * 0", "2026-03-03T00:00:00Z", "2056-03-01T03:20:00Z", "2026-03-09T04:00:00Z", True),
    ],
)
def test_a_verification_that_does_not_come_is_said(
    schedule: str, since: str, verified: str | None, now: str, overdue: bool
) -> None:
    """By one rule in the status, the condition and the operator's metric."""
    cluster = made(verify={"schedule": schedule})
    before = [GroupRow(name="a", archive=ArchiveRow(verifySince=since))]
    said = present(archive_row([{"known": True, "end": 5}]))
    said.verified = verified
    groups = with_schedule([GroupRow(name="a", archive=said)], before, cluster, now)
    row = present(groups[0].archive)
    assert (row.overdue, row.verifySince) == (overdue, since)
    condition = present(archive_condition(groups, cluster))
    assert condition[1] == ("NotVerified" if overdue else "UpToDate")
    assert (verified or "never") in condition[2] or not overdue
    figures = ClusterFigures("mq", "shop", BrokerClusterStatus(groups=groups))
    [family] = [f for f in families([figures]) if f.name == "gantry_operator_archive_verification_overdue"]
    assert [value for _, value in family.rows] == [overdue]


def test_the_time_of_a_schedule_begins_with_it_and_anew_after_a_sleep() -> None:
    group = GroupRow(name="a")
    assert with_schedule([group], [], made(), "2026-03-01T00:00:00Z") == [group]
    first = with_schedule([group], [], made(verify={"schedule": "0 3 * * 0"}), "2026-03-01T00:00:00Z")
    assert present(first[0].archive).verifySince == "2026-03-01T00:00:00Z"
    kept = with_schedule([group], first, made(verify={"schedule": "0 3 * * 0"}), "2026-04-01T00:00:00Z")
    assert kept[0].archive is not None, "a member that does not answer ends no wait"
    assert kept[0].archive.overdue
    asleep = made(verify={"schedule": "0 3 * * 0"})
    asleep.spec.hibernate = True
    assert with_schedule([group], kept, asleep, "2026-04-01T00:00:00Z") == [group]


def test_the_cron_job_has_the_brokers_image_account_and_only_the_archives_secrets() -> None:
    cluster = made(
        verify={"schedule": "30 2 * * 6", "timeZone": "Europe/Berlin", "rate": "8Mi"}, credentialsSecret="keys",
        encryption={"secretName": "key"}, endpoint="https://store:9000",
    )  # fmt: skip
    [job] = verification.objects(cluster, "registry/broker:1")
    assert job["metadata"]["name"] == "shop-verify"
    spec = job["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == ("30 2 * * 6", "Europe/Berlin", "Forbid")
    template = spec["jobTemplate"]["spec"]["template"]
    assert "gantry.dev/cluster" not in template["metadata"]["labels"], "it is no member"
    pod = template["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("shop-broker", False)
    assert pod["nodeSelector"] == {"disk": "fast"}
    [container] = pod["containers"]
    assert container["image"] == "registry/broker:1"
    order = VerifyOrder.model_validate_json(container["command"][-1])
    assert (order.url, order.rate_bytes, order.endpoint) == ("s3://shop/prod", 8 << 20, "https://store:9000")
    mounts = {m["mountPath"] for m in container["volumeMounts"]}
    assert {str(order.credentials), str(order.key_file and order.key_file.parent), "/tmp"} == mounts
    assert {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v} == {"keys", "key"}
    assert verification.objects(made(), "x") == []
    assert verification.objects(made(url="file:///shared", verify={}), "x") == []
    assert [
        verification.problem(made(), rights=False),
        verification.problem(cluster, rights=True),
        verification.problem(cluster, rights=False)[:45],
        verification.problem(made(url="file:///shared", verify={}), rights=True)[:45],
    ] == ["", "", "archive.verify: the operator has no right to ", "archive.verify: the pod of a CronJob does not"]


def test_on_one_machine_a_process_runs_when_it_is_due(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", Archive(ObjectStore(Location(f"file://{tmp_path}/store"))))
    folder = ClusterFolder(tmp_path / "cluster")
    folder.make()
    cluster = made(url=f"file://{tmp_path}/store", verify={"schedule": "0 3 * * *"})
    now = [datetime(2026, 3, 1, 2, 59, tzinfo=UTC)]
    schedule = LocalVerification(folder, lambda: cluster, EventLog(folder.events), lambda: now[0])
    assert not schedule.look(), "nothing was missed before"
    now[0] += timedelta(minutes=2)
    assert schedule.look()
    assert not schedule.look()
    deadline = time.monotonic() + 60
    while schedule._runs():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = log.archive.group("a").last_verification()
    assert found is not None, folder.log(PROCESS).read_text()
    assert (found.records, found.faults) == (151, 0)
    again = LocalVerification(folder, lambda: cluster, EventLog(folder.events), lambda: now[0] + timedelta(days=2))
    cluster.spec.hibernate = True
    assert not again.look()


def test_the_program_refuses_an_order_that_it_cannot_read() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gantry_broker.archive.verifying", "--order", "{}"], capture_output=True, text=True,
        env=os.environ.copy(), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "the order cannot be read" in done.stderr


def test_a_missing_object_names_itself(log: Log) -> None:
    group = log.archive.group("a")
    state = group.load()
    log.archive.objects.delete(f"groups/a/parts/{state.parts[1].name}")
    with pytest.raises(Missing):
        group.whole(state.parts[1])
    [fault] = verify(group, state).faults
    assert state.parts[1].name in fault


def test_an_object_that_is_found_a_moment_later_is_neither_damaged_nor_missing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = log.archive.group("a")
    state = group.load()
    path = f"groups/a/parts/{state.parts[1].name}"
    kept = log.archive.objects.objects.pop(path)  # type: ignore[attr-defined]
    waited: list[float] = []

    def comes(seconds: float) -> None:
        waited.append(seconds)
        log.archive.objects.create(path, kept)

    monkeypatch.setattr(time, "sleep", comes)
    found = verify(group, state, again_s=7.0)
    assert (found.faults, found.damaged, waited) == ((), (), [7.0])
    assert verify(group, state, again_s=7.0) == found
    assert waited == [7.0], "nothing is waited for when all is whole"


def test_an_error_of_all_members_is_shown_also_when_none_uploads() -> None:
    """As on a standby, whose members all read for themselves. One that fails alone is no failure of the archive."""
    fine: dict[str, object] = {"known": True, "end": 5}
    fails = fine | {"error": "the store is away", "error_ms": 1_000}
    alone, all_fail = archive_row([fine, fails]), archive_row([fails, fails])
    assert alone is not None
    assert all_fail is not None
    assert (alone.error, all_fail.error, all_fail.offset) == ("", "the store is away", 5)
    assert present(archive_row([fine, fails | {"uploads": True}])).error == "the store is away"
    condition = archive_condition([GroupRow(name="a", archive=all_fail)], made())
    assert condition == ("False", "Failing", "group a: the store is away")
