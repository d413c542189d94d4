"""The cluster controller over an API server in memory: it retries what fails, and failover goes on meanwhile."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import BrokerClusterStatus, Condition
from gantry_operator.cluster import observation, restart
from gantry_operator.cluster.group_controllers import GroupControllers
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.observed import ObservedState
from gantry_operator.cluster.raft_controller import RaftController
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.cluster.status import status_of
from gantry_operator.failover.model import Report
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.analytics.reconciler import JOBS, PODS
from gantry_operator.platforms.kubernetes.api.client import ApiUnavailable
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.operator import CACHED, OF_USERS
from gantry_operator.platforms.kubernetes.reconcile import cluster_controller as module
from gantry_operator.platforms.kubernetes.reconcile.cluster_controller import ClusterController
from gantry_operator.platforms.kubernetes.reconcile.cluster_platform import Shared
from gantry_operator.platforms.kubernetes.requests import switchover_requests
from gantry_operator.platforms.kubernetes.requests.switchover_request import SWITCHOVER, SWITCHOVER_RESULT
from gantry_operator.registry.base import Entry

from tests.kubernetes.fake_api import NO, FakeApi, following
from tests.support.present import present
from tests.support.running import until

CLUSTER = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    monkeypatch.setattr(switchover_requests, "AGAIN_S", 0.05)
    monkeypatch.setattr(restart, "PART_AGAIN_S", 0.05)


@asynccontextmanager
async def kept(
    fake: FakeApi,
    spec: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    unlisted: Sequence[str] = (),
    status: dict[str, Any] | None = None,
) -> AsyncIterator[ClusterController]:
    """A new controller, with the present resource or another spec."""
    kinds = {k: k for k in (*CACHED, *OF_USERS)} | {JOBS: "Job", PODS: "Pod"}
    shown = CLUSTER.model_dump(mode="json", exclude={"status"}, exclude_none=True)
    shown["metadata"]["annotations"] = annotations or {}
    shown |= {} if status is None else {"status": status}
    obj = fake.put(shown | ({} if spec is None else {"spec": spec}))
    obj["metadata"]["generation"] = 1
    async with following(fake.api, kinds) as caches:
        shared = Shared(fake.api, OperatorSettings("broker", "", "ops", ()), caches, StallCompensatedClock(), "op-0")
        shared.unlisted = lambda: unlisted
        controller = ClusterController(shared, obj)
        controller.start()
        try:
            yield controller
        finally:
            await controller.stop()


async def make_objects(fake: FakeApi, spec: dict[str, Any] | None = None, group: str = "a") -> None:
    """An operator makes the objects up to those of a group, and ends."""
    async with kept(fake, spec):
        await until(lambda: fake.get("StatefulSet", names.group_set("demo", group)))


def change(controller: ClusterController, fake: FakeApi, spec: dict[str, Any]) -> None:
    obj = copy.deepcopy(fake.objects["BrokerCluster", "mq", "demo"]) | {"spec": spec}
    obj["metadata"]["generation"] = controller.resource.obj["metadata"]["generation"] + 1
    controller.update(fake.put(obj))


def annotated(fake: FakeApi) -> dict[str, str]:
    annotations: dict[str, str] = fake.objects["BrokerCluster", "mq", "demo"]["metadata"]["annotations"]
    return annotations


async def test_an_object_that_cannot_be_written_keeps_no_failover_from_beginning(fake: FakeApi) -> None:
    fake.refuse["NetworkPolicy"] = NO
    async with kept(fake, annotations={SWITCHOVER: "a=demo-a-9 #1"}) as controller:
        await until(lambda: controller.control.problems)
        assert controller.control.problems == ["an admission webhook says no"]
        assert set(controller.control.controllers) == {"a"}
        await until(lambda: SWITCHOVER_RESULT in annotated(fake))  # A user can still choose the master.


async def test_a_pass_that_fails_by_a_fault_of_ours_is_followed_by_another(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kept(fake) as controller:
        keep, calls = controller.platform.objects.keep, []

        async def once(*arguments: Any, **options: Any) -> bool:
            calls.append(1)
            if len(calls) == 1:
                raise RuntimeError("a fault")
            return await keep(*arguments, **options)

        monkeypatch.setattr(controller.platform.objects, "keep", once)
        await until(lambda: len(calls) > 1)


async def test_under_a_refused_spec_the_failover_begins_as_soon_as_it_can(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_objects(fake)
    fake.remove("Secret", "mq", names.admin_secret("demo"))
    apply, refused = fake.api.apply, [1, 2]

    async def refuse(obj: Any) -> Any:
        if refused:
            refused.pop()
            raise ApiUnavailable("the API server is away")
        return await apply(obj)

    monkeypatch.setattr(fake.api, "apply", refuse)
    async with kept(fake, {"mode": 7}) as controller:
        await until(lambda: controller.control.controllers)
        assert not refused
        assert controller.control.refused


def available(before: BrokerClusterStatus, seen: ObservedState) -> tuple[str, str]:
    conditions = status_of(None, before, seen, "now", 1).conditions
    return next((c.status, c.message) for c in conditions if c.type == "Available")


async def test_under_a_refused_spec_a_group_that_cannot_be_led_keeps_no_other_from_failover(
    fake: FakeApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"brokerGroups": [{"name": g, "members": 3} for g in "abc"]}
    await make_objects(fake, spec, "c")
    empty = fake.objects["StatefulSet", "mq", names.group_set("demo", "a")]
    empty["spec"]["replicas"] = 0
    fake.objects["StatefulSet", "mq", names.name_servers("demo")]["spec"]["replicas"] = 0
    configs = fake.objects["ConfigMap", "mq", names.group_set("demo", "b")]
    for name, text in configs["data"].items():
        configs["data"][name] = json.dumps(json.loads(text) | {"flush": "Sometimes"})
    caplog.clear()
    async with kept(fake, {"mode": 7}) as controller:
        await until(lambda: controller.control.controllers)
        assert controller.control.refused
        assert set(controller.control.controllers) == {"c"}
        a, b = controller.control.problems
        assert a == "group a has no failover: its StatefulSet has 0 replicas"
        assert b.startswith('group b has no failover: its configuration is not understood: spec.flush is "Sometimes"')
        monkeypatch.setattr(controller.control.availability, "answers", lambda: {"c": None})
        status, why = available(BrokerClusterStatus(), present(controller.observer.look())[2])
        assert (status, why.split(";")[0]) == ("False", "group a: its StatefulSet has 0 replicas")
        fake.put(empty | {"spec": empty["spec"] | {"replicas": 3}})
        await until(lambda: set(controller.control.controllers) == {"a", "c"})
        assert controller.control.plan is not None
        assert [g.name for g in controller.control.plan.groups] == ["a", "c"]
        assert controller.control.problems == [b]
    assert "reconcile of" not in caplog.text
    events = [o for (kind, _, _), o in fake.objects.items() if kind == "Event"]
    assert [e["count"] for e in events if e["reason"] == "InvalidSpec"] == [1], "not each time that it is looked at"


async def test_under_a_refused_spec_of_which_nothing_can_be_led_the_status_says_that_it_is_refused(
    fake: FakeApi,
) -> None:
    await make_objects(fake)
    fake.objects["StatefulSet", "mq", names.group_set("demo", "a")]["spec"]["replicas"] = 0
    async with kept(fake, {"mode": 7}) as controller:
        await until(lambda: (fake.objects["BrokerCluster", "mq", "demo"].get("status") or {}).get("phase") == "Refused")
        looked = present(controller.observer.look())
        went = Condition(type="Available", status="True", reason="ProbeSucceeded", lastTransitionTime="before")
        assert available(BrokerClusterStatus(conditions=[went]), looked[2])[0] == "False"


async def test_a_spec_that_was_put_right_is_not_called_refused_where_an_object_of_it_is(fake: FakeApi) -> None:
    fake.refuse["NetworkPolicy"] = NO
    async with kept(fake, {"mode": 7}) as controller:
        await until(lambda: controller.control.refused)
        change(controller, fake, CLUSTER.model_dump(mode="json", exclude_none=True)["spec"])
        await until(lambda: controller.control.problems)
        assert controller.control.problems == ["an admission webhook says no"]
        assert not controller.control.refused
        assert controller.control.may_change()


async def test_a_request_under_a_refused_spec_is_answered_and_not_kept(fake: FakeApi) -> None:
    await make_objects(fake)
    async with kept(fake, {"mode": 7}, {SWITCHOVER: "a=demo-a-9 #1"}):
        await until(lambda: SWITCHOVER not in annotated(fake))
    assert annotated(fake)[SWITCHOVER_RESULT].startswith("a=demo-a-9 #1 failed: demo has no member 'demo-a-9'")


class Led(MasterSlaveController):
    """Nothing happens."""

    async def run(self) -> None:
        await asyncio.Event().wait()


def led(groups: GroupControllers, group: str, mode: str) -> MasterSlaveController:
    """Member 1 leads and reports it."""
    made = Led(group, groups._registry, groups._platform, groups.http, lambda: groups._settings, groups._clock)
    leads = MemberId(1, "x")
    made.entry = Entry(LeadershipRecord(2, 1, leads, frozenset({leads})))
    watch = made.watches[1] = MemberWatch("demo-a-1", "http://demo-a-1", groups.http, made.wake, time.monotonic)
    watch.report = Report(leads, "Master", 2, 1, 2, in_sync=frozenset({leads}))
    made._announced = 2
    return made


@pytest.fixture
def after_a_handover(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Member 0 led, and its label will be removed in a moment."""
    monkeypatch.setattr(GroupControllers, "_controller", led)
    put_two_masters(fake)


def put_two_masters(fake: FakeApi) -> None:
    for name in ("demo-a-0", "demo-a-1"):
        labels = {names.CLUSTER_LABEL: "demo", names.ROLE_LABEL: names.ROLE_MASTER}
        meta = {"name": name, "namespace": "mq", "labels": labels}
        fake.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}, "status": {}})


def roles(fake: FakeApi) -> list[str]:
    pods = [fake.get("Pod", f"demo-a-{n}") for n in (0, 1)]
    return [pod["metadata"]["labels"][names.ROLE_LABEL] for pod in pods if pod is not None]


@pytest.mark.usefixtures("after_a_handover")
@pytest.mark.parametrize("refused", ["the spec", "an object"])
async def test_a_former_master_keeps_its_label_for_a_moment_only_whatever_is_refused(
    fake: FakeApi, refused: str
) -> None:
    if refused == "an object":
        fake.refuse["NetworkPolicy"] = NO
    async with kept(fake) as controller:
        pods = controller.platform.pods
        pods._grace_until["demo-a-0"] = time.monotonic() + 60
        await until(lambda: controller.control.controllers)
        if refused == "the spec":
            change(controller, fake, {"mode": 7})
            await until(lambda: controller.control.refused)
        assert roles(fake) == ["master", "master"]
        pods._grace_until["demo-a-0"] = time.monotonic()
        await until(lambda: roles(fake) == ["slave", "master"])


@pytest.mark.usefixtures("after_a_handover")
async def test_no_label_is_changed_before_the_new_master_is_announced(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former master still forwards its paused writes (rule 23), and keeps its place until the Service has moved."""

    def unannounced(groups: GroupControllers, group: str, mode: str) -> MasterSlaveController:
        made = led(groups, group, mode)
        made._announced = 1
        return made

    monkeypatch.setattr(GroupControllers, "_controller", unannounced)
    async with kept(fake) as controller:
        await until(lambda: fake.get("StatefulSet", names.group_set("demo", "a")))
        assert roles(fake) == ["master", "master"]
        controller.control.controllers["a"]._announced = 2
        controller.look_again()
        await until(lambda: roles(fake) == ["slave", "master"])


@pytest.mark.usefixtures("after_a_handover")
async def test_a_label_that_cannot_be_written_keeps_no_object_from_being_made(fake: FakeApi) -> None:
    fake.refuse["Pod"] = NO
    async with kept(fake) as controller:
        await until(lambda: fake.get("StatefulSet", names.group_set("demo", "a")))
        await until(lambda: controller.control.problems == ["an admission webhook says no"])


async def test_under_a_refused_spec_a_group_of_which_no_config_can_be_read_is_not_taken_for_one_of_another_mode(
    fake: FakeApi,
) -> None:
    spec = {"mode": "Raft", "brokerGroups": [{"name": "a", "members": 3}]}
    await make_objects(fake, spec)
    configs = fake.objects["ConfigMap", "mq", names.group_set("demo", "a")]["data"]
    for name in configs:
        configs[name] = '{"mode": '
    async with kept(fake, {"mode": 7}) as controller:
        await until(lambda: controller.control.problems or controller.control.controllers)
        assert controller.control.problems == ["group a has no failover: none of its configs can be read"]
        change(controller, fake, spec)
        await until(lambda: controller.control.controllers)
        assert isinstance(controller.control.controllers["a"], RaftController)


async def lose_the_secret(fake: FakeApi, controller: ClusterController) -> None:
    """The Secret is deleted and cannot be created again."""
    name = names.admin_secret("demo")
    fake.refuse["Secret"] = NO
    fake.remove("Secret", "mq", name)
    await until(lambda: controller.platform.objects.live("Secret", name) is None)


async def test_a_secret_that_cannot_be_made_again_keeps_nothing_back_that_only_needs_its_token(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupControllers, "_controller", led)
    async with kept(fake) as controller:
        await until(lambda: fake.get("StatefulSet", names.group_set("demo", "a")))
        await lose_the_secret(fake, controller)
        put_two_masters(fake)
        asked = fake.objects["BrokerCluster", "mq", "demo"]
        asked["metadata"] |= {"annotations": {SWITCHOVER: "a=demo-a-9 #1"}, "generation": 2}
        controller.update(fake.put(asked))
        await until(lambda: roles(fake) == ["slave", "master"])
        await until(lambda: SWITCHOVER not in annotated(fake))
        await until(lambda: controller.control.problems == ["an admission webhook says no"])  # at the end of the pass
        assert controller.platform.pods.token() is not None


async def test_under_a_refused_spec_a_secret_that_cannot_be_made_again_keeps_no_group_from_failover(
    fake: FakeApi,
) -> None:
    await make_objects(fake, {"brokerGroups": [{"name": g, "members": 3} for g in "ab"]}, "b")
    away = fake.objects["StatefulSet", "mq", names.group_set("demo", "a")]
    away["spec"]["replicas"] = 0
    async with kept(fake, {"mode": 7}) as controller:
        await until(lambda: set(controller.control.controllers) == {"b"})
        await lose_the_secret(fake, controller)
        fake.put(away | {"spec": away["spec"] | {"replicas": 3}})
        await until(lambda: set(controller.control.controllers) == {"a", "b"})


async def test_a_request_for_a_group_without_a_controller_gets_the_reason(fake: FakeApi) -> None:
    """Its spec is refused, and the token is wrong."""
    await make_objects(fake)
    secret = fake.objects["Secret", "mq", names.admin_secret("demo")]
    secret["metadata"]["ownerReferences"][0]["uid"] = "a former one"
    async with kept(fake, {"mode": 7}, annotations={SWITCHOVER: "a=demo-a-1 #1"}):
        await until(lambda: SWITCHOVER_RESULT in annotated(fake))
        answer = annotated(fake)[SWITCHOVER_RESULT]
        assert "failed: the failover of group a has not started: " in answer
        assert "belongs to a former cluster object" in answer


@pytest.mark.parametrize("mode", ["MasterSlave", "Raft"])
async def test_an_operator_that_takes_over_keeps_the_status_until_it_knows_better(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Before the first reports each controller waits for them, which is no failure of the group."""
    spec = {"mode": mode, "brokerGroups": [{"name": "a", "members": 3}]}
    well = {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": "well", "status": "True"}
    former = {
        "phase": "Running",
        "conditions": [{"type": "Available", "reason": "ProbeSucceeded", **well}],
        "members": [{"name": "demo-a-0", "group": "a", "role": "Master", "ready": True}],
        "proxy": {"replicas": 1, "readyReplicas": 1, "address": "p:8081"},
        "addresses": {"nameServers": "n:9876", "external": "x:9876"},
    }
    unlisted: list[str] = []
    async with kept(fake, spec, unlisted=unlisted, status=former) as controller:
        await until(lambda: controller.control.controllers)
        group = controller.control.controllers["a"]
        await until(lambda: group.blocking_wait or group.problem)
        monkeypatch.setattr(type(group), "blocking_wait", property(lambda self: "no majority"))
        controller.control.availability.watch("a", 0, "no majority", 1, (), "", "r")
        assert controller.observer.look() is None
        controller.control.warm_up.begun -= observation.WARM_UP_S
        unlisted[:] = ["Deployment", "Service"]
        for watch in group.watches.values():
            watch.problem = ""
        looked = present(controller.observer.look())
        assert looked[2].blind == {"a"}
        assert available(BrokerClusterStatus.model_validate(former), looked[2]) == ("True", "well")
        assert (present(looked[2].proxy).address, looked[2].addresses.external) == ("p:8081", "x:9876")
        for watch in group.watches.values():
            watch.problem = "it refuses the connection"
        looked = present(controller.observer.look())
        assert looked[2].blind == set(), "now the wait is more than a guess"
        assert available(BrokerClusterStatus.model_validate(former), looked[2]) == ("False", "group a: no majority")


async def test_an_incomplete_list_does_not_delay_the_failover(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    unlisted = ["NetworkPolicy"]
    async with kept(fake, annotations={SWITCHOVER: "a=demo-a-9 #1"}, unlisted=unlisted) as controller:
        await until(lambda: SWITCHOVER not in annotated(fake))
        await until(lambda: controller.control.problems)  # The request is answered while the first pass goes on.
        assert set(controller.control.controllers) == {"a"}
        assert fake.get("StatefulSet", names.group_set("demo", "a")) is None
        [problem] = controller.control.problems
        assert problem == "no object is created or deleted until the API server has listed: NetworkPolicy"
        controller.resource.obj = controller.resource.obj | {
            "status": {}
        }  # A status with conditions is kept during the warm-up.
        assert controller.observer.look() is not None
        unlisted[:] = ["Service"]
        assert controller.observer.look() is None, "its addresses are not known"
        controller.control.warm_up.begun -= observation.WARM_UP_S
        looked = controller.observer.look()
        assert looked is not None, "it may never be listed, and users need the reason"
        assert "no object is created or deleted until the API server has listed: Service" in looked[2].problems
        unlisted.clear()
        await until(lambda: fake.get("StatefulSet", names.group_set("demo", "a")))


async def test_objects_of_a_former_cluster_of_this_name_are_neither_kept_nor_used(fake: FakeApi) -> None:
    """Under `reclaim: Delete`, a cluster is deleted and created again at once. Its former pods still answer. A
    record made from their reports would make the new disks wait for the former ones for ever.
    """
    former = {"kind": "BrokerCluster", "name": "demo", "uid": "a former one"}
    labels = names.labels("demo", names.BROKER, "a")
    for kind, name in (("Lease", "demo-a"), ("PersistentVolumeClaim", "data-demo-a-0")):
        meta = {"name": name, "namespace": "mq", "labels": labels, "ownerReferences": [former]}
        storage = {"resources": {"requests": {"storage": "10Gi"}}}
        fake.put({"kind": kind, "metadata": meta, "spec": storage if kind == "PersistentVolumeClaim" else {}})
    async with kept(fake) as controller:
        await until(lambda: controller.control.problems)
        assert controller.control.problems == [
            "a former cluster of this name is not deleted yet: Lease demo-a, PersistentVolumeClaim data-demo-a-0"
        ]
        assert not controller.control.controllers
        for kind, name in (("Lease", "demo-a"), ("PersistentVolumeClaim", "data-demo-a-0")):
            assert present(fake.get(kind, name))["metadata"]["ownerReferences"] == [former], "it is left to go"
            fake.remove(kind, "mq", name)
        await until(lambda: controller.control.controllers and fake.get("StatefulSet", "demo-a"))
        assert not controller.control.problems


async def test_the_status_is_of_a_spec_once_a_pass_has_carried_it_out(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a pass is under way the status is still about the spec before it, whose result it shows."""
    async with kept(fake) as controller:
        await until(lambda: controller.observer.generation == 1)
        goes_on = asyncio.Event()
        keep = controller.platform.objects.keep

        async def slow(*args: Any, **more: Any) -> bool:
            await goes_on.wait()
            return await keep(*args, **more)

        monkeypatch.setattr(controller.platform.objects, "keep", slow)
        controller.control.warm_up.begun = 0.0
        change(controller, fake, controller.resource.obj["spec"])
        await until(lambda: not controller.pass_is_due)
        assert present(controller.observer.look())[1] == 1
        goes_on.set()
        await until(lambda: controller.observer.generation == 2)


async def test_a_value_that_the_chart_does_not_allow_is_reported_and_changes_nothing(fake: FakeApi) -> None:
    async with kept(fake) as controller:
        await until(lambda: fake.get("StatefulSet", "demo-a"))
        before = {key: obj for key, obj in fake.objects.items() if key[0] in ("StatefulSet", "ConfigMap", "Service")}
        spec = fake.objects["BrokerCluster", "mq", "demo"]["spec"]
        change(controller, fake, spec | {"image": "evil:1", "brokerGroups": [{"name": "a", "members": 5}]})
        await until(lambda: controller.control.refused)
        assert 'spec.image is "evil:1"' in controller.control.refused
        await until(lambda: any(e.get("reason") == "InvalidSpec" for k, e in fake.objects.items() if k[0] == "Event"))
        after = {key: obj for key, obj in fake.objects.items() if key[0] in ("StatefulSet", "ConfigMap", "Service")}
        assert after == before


async def test_a_group_that_leaves_the_spec_stays_until_it_is_empty_and_then_goes(fake: FakeApi) -> None:
    both = {"brokerGroups": [{"name": "a", "members": 2}, {"name": "b", "members": 1}]}
    async with kept(fake, both) as controller:
        await until(lambda: fake.get("StatefulSet", "demo-b") and fake.get("PodDisruptionBudget", "demo-b"))
        change(controller, fake, {"brokerGroups": both["brokerGroups"][:1]})
        await until(lambda: controller.control.staying == ("a",))
        assert set(controller.control.controllers) == {"a", "b"}, "its failover goes on"
        assert controller.control.drains()["b"].phase == "Waiting"
        wanted = present(controller.control.wanted_groups())
        assert (wanted.staying, wanted.leaving, wanted.removing) == (("a",), ("b",), ())
        assert fake.get("PodDisruptionBudget", "demo-b") is not None

        platform = controller.control.changes._platform
        assert await platform.begin_removal("b", platform.mark("b"))
        controller.look_again()
        await until(lambda: fake.get("StatefulSet", "demo-b") is None)
        controller.look_again()
        await until(lambda: not [o for o in fake.objects.values() if _of_group(o, "b")])
        assert fake.get("Secret", "demo-b-tls") is None
        assert controller.control.plan is not None
        assert [g.name for g in controller.control.plan.groups] == ["a"]
        assert set(controller.control.controllers) == {"a"}

        change(controller, fake, both)
        await until(lambda: fake.get("StatefulSet", "demo-b"))
        assert "gantry.dev/removing" not in fake.objects["StatefulSet", "mq", "demo-b"]["metadata"]["annotations"]


def _of_group(obj: dict[str, Any], group: str) -> bool:
    return bool((obj["metadata"].get("labels") or {}).get(names.GROUP_LABEL) == group)


async def test_a_cutover_reaches_a_pod_that_was_made_again(fake: FakeApi) -> None:
    spec = {
        "brokerGroups": [{"name": "a", "members": 1}],
        "bootstrap": {"fromRocketMQ": {"nameServers": ["127.0.0.1:1"]}},
    }
    labels = {"gantry.dev/cluster": "demo", "gantry.dev/group": "a"}
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "demo-a-0", "namespace": "mq", "labels": labels}}
    async with kept(fake, spec) as controller:
        await until(lambda: controller.control.plan is not None)
        async with controller.platform.migration() as edge:
            urls = edge.groups["a"].members
            seen = []
            for address in ("10.0.0.1", "10.0.0.2"):
                fake.put(pod | {"status": {"podIP": address, "podIPs": [{"ip": address}]}})
                await until(lambda address=address: [url for url in urls() if address in url])
                seen.append(list(urls()))
            fake.remove("Pod", "mq", "demo-a-0")
            await until(lambda: not urls() or "10.0.0.2" not in urls()[0])
    assert [len(one) for one in seen] == [1, 1]
