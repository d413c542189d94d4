"""Hints of `gantry status`: each is complete, and comes when it should."""

from __future__ import annotations

import re
from typing import Any

import pytest
from gantry_operator.actions.target import Where
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import BrokerClusterStatus
from gantry_operator.cli.next_steps import CONDITIONS, MAX_STEPS, MEMBERS, Step, next_steps
from gantry_operator.cli.show import show_resource
from gantry_operator.cluster.observed import ObservedMember, ObservedState
from gantry_operator.cluster.status import status_of
from gantry_operator.cluster.timestamps import utc

LOCAL, KUBERNETES = Where(folder="/home/me/demo"), Where()


def row(number: int = 0, role: str = "Master", in_sync: bool = True, reason: str = "") -> dict[str, Any]:
    return {"name": f"demo-a-{number}", "group": "a", "role": role, "inSync": in_sync, "reason": reason}


def steps(where: Where, spec: dict[str, Any] | None = None, **status: Any) -> list[tuple[str, str]]:
    found = {"members": [row()]} | status
    resource = {"metadata": {"name": "demo", "namespace": "mq"}, "spec": spec or {}, "status": found}
    return [(step.about, step.do) for step in next_steps(resource, where)]


def condition(kind: str, status: str, reason: str) -> list[dict[str, Any]]:
    return [{"type": kind, "status": status, "reason": reason}]


def test_nothing_is_said_of_a_healthy_cluster() -> None:
    fine = [
        *condition("Available", "True", "ProbeSucceeded"), *condition("Progressing", "False", "Reconciled"),
        *condition("Degraded", "False", "AllMembersReady"), *condition("Secured", "True", "AuthenticationEnabled"),
        *condition("CertificatesValid", "True", "Valid"),
    ]  # fmt: skip
    for where in (LOCAL, KUBERNETES):
        assert steps(where, conditions=fine, members=[row(), row(1, "Slave")]) == []


def test_an_open_cluster_of_one_machine_needs_no_step() -> None:
    assert steps(LOCAL, conditions=condition("Secured", "False", "AuthenticationDisabled")) == []


@pytest.mark.parametrize("known", CONDITIONS)
def test_every_condition_has_a_complete_step(known: tuple[str, str, str]) -> None:
    more: dict[str, Any] = {
        "certificates": [{"name": "late", "notAfter": "2030"}, {"name": "demo-a-tls", "notAfter": "2026"}],
        "nameServerMembers": [{"name": "demo-namesrv-0", "ready": True}, {"name": "demo-namesrv-1", "ready": False}],
    }
    for where, hint in ((LOCAL, CONDITIONS[known].local), (KUBERNETES, CONDITIONS[known].kubernetes)):
        said = steps(where, conditions=condition(*known), **more)
        assert [about for about, _ in said] == ([known[0]] if hint else [])
        for _, do in said:
            assert do.startswith(("gantry ", "kubectl -n mq ", "less /home/me/demo/log/"))
            # JSON in a patch is the only use of braces, and quoting keeps them whole for the shell.
            assert "{" not in re.sub(r"'\{.*\}'", "", do)
            if "{first}" in hint:
                assert ("demo-a-tls" if known[0] == "CertificatesValid" else "demo-namesrv-1") in do


REASONS = {
    "the disk is full: sends are refused, reads go on": ("/home/me/demo/data", "raise spec.storage.size"),
    "its disk failed: fsync": ("gantry debug member demo-a-1", "replace the disk"),
    "restoring from the archive: 3 of 20 MiB fetched": ("log/demo-a-1.log", "logs demo-a-1"),
    "no NameServer answers it": ("log/demo-a-1.log", "logs demo-a-1"),
    "it refuses to answer (401): no": ("gantry down && gantry up", "delete pod demo-a-1"),
    "learner: its disk is not a member yet": ("gantry top", "gantry top -n mq"),
    "its process does not run": ("less /home/me/demo/log/demo-a-1.log", "logs demo-a-1 --previous"),
    "connections are refused": ("less /home/me/demo/log/demo-a-1.log", "logs demo-a-1 --previous"),
    "ImagePullBackOff: Back-off pulling image": ("", "write an image that can be pulled"),
    "not scheduled: 0/3 nodes are available": ("", "describe pod demo-a-1"),
    "it does not answer": ("gantry debug member demo-a-1", "describe pod demo-a-1"),
}


def test_every_pattern_of_a_member_has_a_reason_here() -> None:
    found = {next(p for p, _ in MEMBERS if re.search(p, reason)) for reason in REASONS}
    assert found == {pattern for pattern, _ in MEMBERS}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_a_member_has_its_step(reason: str) -> None:
    local, kubernetes = REASONS[reason]
    members = [row(), row(1, "Unknown", False, reason)]
    for where, wanted in ((LOCAL, local), (KUBERNETES, kubernetes)):
        said = steps(where, members=members)
        assert [about for about, _ in said] == (["demo-a-1"] if wanted else [])
        assert all(wanted in do for _, do in said)


def test_a_slave_that_copies_the_log() -> None:
    said = steps(LOCAL, members=[row(), row(1, "Slave", False)])
    assert said == [("demo-a-1", "gantry top (it copies the log, and joins when it has all of it)")]


def test_a_group_without_a_master() -> None:
    members = [row(0, "Slave"), row(1, "Slave")]
    assert steps(LOCAL, members=members)[0][0] == "group a"
    manual = {"failover": {"automatic": False}}
    assert steps(LOCAL, manual, members=members)[0][1].startswith("gantry switchover a (")
    assert steps(KUBERNETES, manual, members=members)[0][1].startswith("gantry switchover a -n mq (")


def test_a_cluster_without_a_supervisor_says_so_first() -> None:
    members = [row(0, "Unknown", False, "its process does not run")]
    said = steps(LOCAL, supervised=False, members=members)
    assert said[0][0] == "supervisor"
    assert said[0][1].startswith("gantry up --detach")


def test_a_supervisor_that_does_not_answer_is_named_by_its_process() -> None:
    silent = {"pid": 4711, "stopped": True, "message": "`gantry up` (process 4711) did not answer within 1 s"}
    assert steps(LOCAL, supervised=False, supervisor=silent)[0][1].startswith("kill -CONT 4711 (")
    hangs = steps(LOCAL, supervised=False, supervisor=silent | {"stopped": False})
    assert hangs[0][1].startswith("kill -KILL 4711; gantry up --detach (")


def test_a_slave_of_which_nobody_knows_whether_it_is_in_sync_needs_no_step() -> None:
    unknown = row(1, "Slave")
    del unknown["inSync"]
    assert steps(LOCAL, members=[row(), unknown]) == []


def test_a_standby_that_follows_needs_no_step() -> None:
    follower = row(0, "Standby", False, "follows the archive of another cluster") | {"ready": True}
    assert steps(LOCAL, members=[follower]) == []
    assert steps(LOCAL, members=[follower | {"ready": False}])[0][0] == "demo-a-0"


def test_a_failed_report() -> None:
    assert steps(KUBERNETES, analytics={"lastResult": "Failed"})[0][1].startswith("gantry analyze -n mq")


def test_a_context_is_part_of_every_command() -> None:
    said = steps(Where(context="my prod"), conditions=condition("Progressing", "False", "Paused"))
    assert said[0][1].startswith("kubectl --context 'my prod' -n mq annotate bc demo gantry.dev/paused-")


def test_steps_are_few_and_never_the_same_twice() -> None:
    members = [row(n, "Unknown", False, "its process does not run") for n in range(20)]
    assert len(steps(LOCAL, members=members)) == MAX_STEPS
    waiting = [row(n, "Waiting", False, "no assignment yet") for n in range(20)]
    assert len(steps(LOCAL, members=waiting)) == 2


def test_a_folder_with_a_blank_is_quoted() -> None:
    said = steps(Where(folder="/home/a b"), members=[row(), row(1, "Unknown", False, "its process does not run")])
    assert said[0][1].startswith("less '/home/a b'/log/demo-a-1.log")


def test_a_status_as_the_operator_writes_it() -> None:
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 1}])
    gone = ObservedMember("demo-a-0", "a", 0, None, False, problem="its process does not run")
    state = ObservedState([gone], [], {"a": "no member leads"}, authentication="Enabled")
    status = status_of(cluster, BrokerClusterStatus(), state, utc(), 1)
    said = next_steps(cluster.model_dump(mode="json") | {"status": status.to_object()}, KUBERNETES)
    assert [step.about for step in said] == ["group a", "demo-a-0", "Available"]


def test_a_status_ends_with_the_next_steps(capsys: pytest.CaptureFixture[str]) -> None:
    resource: dict[str, Any] = {"metadata": {"name": "demo"}, "spec": {}, "status": {}}
    show_resource(resource, [Step("demo-a-1", f"less /{'long/' * 60}log (why [it] ended)")])
    lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert lines[-2] == "NEXT"
    assert lines[-1].startswith("  demo-a-1: less /long/")
    assert lines[-1].endswith("log (why [it] ended)"), "one line, to be copied"
    show_resource(resource)
    assert "NEXT" not in capsys.readouterr().out
