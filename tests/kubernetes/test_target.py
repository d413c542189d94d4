"""The `gantry` command on a cluster with a refused spec: the running cluster stays usable. Also refusals of the API
server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gantry_operator.actions.errors import ActionError
from gantry_operator.actions.kubernetes_target import KubernetesTarget
from gantry_operator.api.annotations import FENCED, RESTART
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.api.user import BrokerUser
from gantry_operator.cli import analytics_on_demand as ondemand
from gantry_operator.cli.errors import CliError
from gantry_operator.platforms.kubernetes.api.client import KINDS, ApiError
from gantry_operator.platforms.kubernetes.requests.switchover_request import SWITCHOVER, SWITCHOVER_RESULT
from gantry_operator.platforms.kubernetes.targets import target as kube_target
from gantry_operator.platforms.kubernetes.targets.target import KubeTarget, TargetError
from gantry_operator.platforms.kubernetes.targets.topics import TargetTopics
from gantry_operator.platforms.kubernetes.targets.users import TargetUsers, UserError

from tests.kubernetes.fake_api import FakeApi
from tests.support.present import present

CLUSTER = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}])
RUNS = {
    "members": [{"name": f"demo-{g}-{n}", "group": g} for g in ("a", "b") for n in range(2)],
    "nameServerMembers": [{"name": "demo-namesrv-0", "address": "x:9876", "ready": True}],
}


def opened(fake: FakeApi, status: dict[str, Any], **spec: Any) -> KubeTarget:
    shown = CLUSTER.model_dump(mode="json", exclude={"status"}, exclude_none=True)
    fake.put(shown | {"spec": shown["spec"] | spec, "status": status})
    target = KubeTarget()
    target._api, target.namespace, target.name = fake.api, "mq", "demo"
    return target


async def test_a_switchover_is_requested_though_the_spec_is_refused(fake: FakeApi) -> None:
    target = opened(fake, {}, mode=7)
    asked = asyncio.create_task(target.switchover("a", "demo-a-1", 3))
    annotations: dict[str, str] = {}
    while SWITCHOVER not in annotations:
        await asyncio.sleep(0.02)
        assert not asked.done(), asked.exception()
        annotations = fake.objects["BrokerCluster", "mq", "demo"]["metadata"]["annotations"]
    annotations[SWITCHOVER_RESULT] = f"{annotations[SWITCHOVER]} done: demo-a-1 leads a"
    assert await asked == "demo-a-1 leads a"


async def test_a_switchover_of_an_unknown_group_is_not_requested(fake: FakeApi) -> None:
    with pytest.raises(TargetError, match="demo has no group 'z', but a"):
        await opened(fake, {}).switchover("z")
    assert SWITCHOVER not in fake.objects["BrokerCluster", "mq", "demo"]["metadata"]["annotations"]


async def test_a_switchover_that_cannot_be_is_not_requested(fake: FakeApi) -> None:
    alone = opened(fake, {}, brokerGroups=[{"name": "a", "members": 1}])
    with pytest.raises(TargetError, match="group a has one member, demo-a-0: there is no other one to hand over to"):
        await alone.switchover("a")
    asleep = opened(fake, {}, hibernate=True)
    with pytest.raises(TargetError, match=r"demo hibernates: write spec\.hibernate: false in its BrokerCluster"):
        await asleep.switchover("a")
    assert SWITCHOVER not in fake.objects["BrokerCluster", "mq", "demo"]["metadata"]["annotations"]


async def test_a_restart_marks_the_pods(fake: FakeApi) -> None:
    target = opened(fake, {})
    for number in range(3):
        fake.put({"kind": "Pod", "metadata": {"name": f"demo-a-{number}", "namespace": "mq"}})
    assert await target.restart(["demo-a-1"]) == ["demo-a-1"]
    marked = [
        n for n in range(3) if RESTART in (fake.get("Pod", f"demo-a-{n}") or {})["metadata"].get("annotations", {})
    ]
    assert marked == [1]
    with pytest.raises(TargetError, match="has no member 'demo-a-9', but demo-a-0"):
        await target.restart(["a", "demo-a-9"])


async def test_a_fence_is_a_name_in_an_annotation(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    target = opened(fake, {}, mode=7)  # The spec is refused: what runs may be fenced all the same.
    fake.objects["BrokerCluster", "mq", "demo"]["status"] = RUNS
    await target.fence("demo-a-1", True)
    await target.fence("demo-b-0", True)

    def fenced() -> str | None:
        found: str | None = fake.objects["BrokerCluster", "mq", "demo"]["metadata"]["annotations"].get(FENCED)
        return found

    assert fenced() == "demo-a-1,demo-b-0"
    with pytest.raises(TargetError, match="has no member 'demo-a-9', but demo-a-0"):
        await target.fence("demo-a-9", True)
    merge, refused = fake.api.merge, []

    async def too_late(kind: Any, namespace: str, name: str, patch: dict[str, Any]) -> Any:
        if not refused:
            refused.append(1)
            await merge(kind, namespace, name, {"metadata": {"annotations": {FENCED: "demo-a-0,demo-a-1,demo-b-0"}}})
            raise ApiError(409, "Conflict", "the object has been modified")
        return await merge(kind, namespace, name, patch)

    monkeypatch.setattr(fake.api, "merge", too_late)
    await target.fence("demo-b-0", False)
    assert refused
    assert fenced() == "demo-a-0,demo-a-1", "what somebody else has fenced meanwhile stays"
    for name in ("demo-a-0", "demo-a-1"):
        await target.fence(name, False)
    assert fenced() is None


async def test_volumes_of_members_that_are_gone_are_listed_and_deleted(fake: FakeApi) -> None:
    target = opened(fake, {})
    mine = {"gantry.dev/cluster": "demo", "gantry.dev/component": "broker"}
    kept = ("demo-a-0", "demo-a-3", "demo-a-4", "demo-b-0", "demo-c-0")
    for name in kept:
        meta = {"name": f"data-{name}", "namespace": "mq", "labels": mine}
        fake.put({"kind": "PersistentVolumeClaim", "metadata": meta, "spec": {},
                  "status": {"capacity": {"storage": "10Gi"}}})  # fmt: skip
    # Member 4 still runs, and group b is leaving.
    fake.put({"kind": "Pod", "metadata": {"name": "demo-a-4", "namespace": "mq", "labels": mine}})
    fake.put({"kind": "StatefulSet", "metadata": {"name": "demo-b", "namespace": "mq", "labels": mine},
              "spec": {"replicas": 1}})  # fmt: skip
    found = {c.volume.member: c.volume for c in await target.volumes()}
    assert set(found) == set(kept)
    assert {name for name, volume in found.items() if not volume.used_by} == {"demo-a-3", "demo-c-0"}
    assert found["demo-a-3"].bytes == 10 << 30
    for used, why in (("demo-a-0", "member demo-a-0 uses it"), ("demo-a-4", "pod demo-a-4 runs"),
                      ("demo-b-0", "demo-b-0 is leaving"), ("demo-x-0", "does not exist any more")):  # fmt: skip
        with pytest.raises(TargetError, match=why):
            await target.delete_volume(f"data-{used}")
    await target.delete_volume("data-demo-a-3")
    assert {c.volume.member for c in await target.volumes()} == set(kept) - {"demo-a-3"}


async def test_a_resource_is_changed_unless_a_repository_keeps_it(fake: FakeApi) -> None:
    topic = BrokerTopic.make("orders", "demo", "mq", queuesPerGroup=4, retention="2h", config={"reserve.time": "-1"})
    fake.put(topic.model_dump(mode="json", exclude={"status"}, exclude_none=True))
    user = BrokerUser.make("clerk", "demo", "mq", superUser=True)
    fake.put(user.model_dump(mode="json", exclude={"status"}, exclude_none=True))
    topics, users = TargetTopics(fake.api, "mq", "demo"), TargetUsers(fake.api, "mq", "demo")
    generation = await topics.change(
        "BrokerTopic", "orders", {"queuesPerGroup": 6, "retention": None, "config": {"reserve.time": None}}
    )
    found = fake.objects["BrokerTopic", "mq", "orders"]
    assert (found["spec"]["queuesPerGroup"], found["spec"].get("retention"), found["spec"]["config"]) == (6, None, {})
    assert generation == found["metadata"]["generation"]
    await users.change("clerk", {"superUser": False})
    assert fake.objects["BrokerUser", "mq", "clerk"]["spec"]["superUser"] is False
    for mark, keeper in (
        ({"annotations": {"argocd.argoproj.io/tracking-id": "shop:x"}}, "Argo CD"),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "shop"}}, "Flux"),
        ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, "Helm"),
    ):
        for kind, name in (("BrokerTopic", "orders"), ("BrokerUser", "clerk")):
            await fake.api.merge(KINDS[kind], "mq", name, {"metadata": mark})
        with pytest.raises(UserError, match=f"{keeper} keeps BrokerTopic orders: change it in its repository"):
            await topics.change("BrokerTopic", "orders", {"queuesPerGroup": 8})
        with pytest.raises(UserError, match=f"{keeper} keeps"):
            await users.change("clerk", {"superUser": True})
        undo = {part: dict.fromkeys(marks) for part, marks in mark.items()}
        for kind, name in (("BrokerTopic", "orders"), ("BrokerUser", "clerk")):
            await fake.api.merge(KINDS[kind], "mq", name, {"metadata": undo})
    with pytest.raises(UserError, match="there is no BrokerTopic other"):
        await topics.change("BrokerTopic", "other", {"queuesPerGroup": 8})


async def test_clients_of_a_cluster_that_hibernates_get_one_sentence(fake: FakeApi) -> None:
    with pytest.raises(TargetError, match=r"demo hibernates: write spec\.hibernate: false"):
        await opened(fake, {"addresses": {"external": "x:9876"}}, hibernate=True).name_servers()


async def test_the_groups_that_must_answer_are_those_of_the_spec(fake: FakeApi) -> None:
    groups = [{"name": "a", "members": 1, "brokerName": "broker-a"}, {"name": "b", "members": 1}]
    target = opened(fake, {"addresses": {"external": "x:9876"}}, brokerGroups=groups)
    assert await target.name_servers() == "x:9876"
    assert target.group_names == {"broker-a": "a", "b": "b"}


async def test_a_switchover_without_an_answer_is_withdrawn(fake: FakeApi) -> None:
    """Otherwise it would be carried out after the command has reported no answer."""
    with pytest.raises(TargetError, match=r"did not answer within 0 s: is it running\? The request is withdrawn"):
        await opened(fake, {}).switchover("a", "demo-a-1", 0.3)
    assert SWITCHOVER not in fake.objects["BrokerCluster", "mq", "demo"]["metadata"]["annotations"]


async def test_another_users_request_is_not_withdrawn(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    target = opened(fake, {})
    merge, refused = fake.api.merge, []

    async def too_late(kind: Any, namespace: str, name: str, patch: dict[str, Any]) -> Any:
        if patch["metadata"].get("resourceVersion") and not refused:
            refused.append(1)
            await merge(kind, namespace, name, {"metadata": {"annotations": {SWITCHOVER: "a #2"}}})
            raise ApiError(409, "Conflict", "the object has been modified")
        return await merge(kind, namespace, name, patch)

    monkeypatch.setattr(fake.api, "merge", too_late)
    with pytest.raises(TargetError, match="did not answer"):
        await target.switchover("a", "demo-a-1", 0.3)
    assert refused
    assert fake.objects["BrokerCluster", "mq", "demo"]["metadata"]["annotations"][SWITCHOVER] == "a #2"


async def test_an_answer_in_the_last_moment_is_reported(fake: FakeApi) -> None:
    target = opened(fake, {})
    resource = await target.resource()
    resource["metadata"]["annotations"] = {SWITCHOVER_RESULT: "a #1 done: demo-a-1 leads a"}
    fake.put(resource)
    assert await target._withdrawn("a #1") == "demo-a-1 leads a"


REFUSED = {
    "phase": "Refused",
    "observedGeneration": 2,
    "conditions": [{"type": "Progressing", "reason": "InvalidSpec", "message": "the spec is refused: spec.mode is 7"}],
}


def kept_open(target: KubeTarget, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None) -> None:
    """Commands use it instead of creating one; `then` is called when they open it."""

    class Opened:
        def __init__(self, *wanted: Any) -> None: ...

        async def __aenter__(self) -> KubeTarget:
            then()
            return target

        async def __aexit__(self, *_: object) -> None: ...

    for module in (kube_target, ondemand):
        monkeypatch.setattr(module, "KubeTarget", Opened)
    monkeypatch.setattr(ondemand, "POLL_S", 0.02)


async def test_no_report_is_waited_for_under_a_refused_spec(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    target = opened(fake, REFUSED, analytics={}, mode=7)
    kept_open(target, monkeypatch)
    shown = fake.objects["BrokerCluster", "mq", "demo"]
    shown["metadata"]["generation"] = 2
    with pytest.raises(CliError, match=r"no report is made: the spec is refused: spec\.mode is 7"):
        await asyncio.wait_for(ondemand.analyze(None, None, None, 30), 3)
    assert ondemand.ANALYZE_ANNOTATION not in shown["metadata"].get("annotations", {})


async def test_a_report_of_which_nothing_comes_since_the_spec_is_refused_is_not_made_later(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = opened(fake, REFUSED, analytics={"schedule": "@daily"})
    kept_open(target, monkeypatch)
    shown = fake.objects["BrokerCluster", "mq", "demo"]
    shown["metadata"]["generation"] = 3  # The former refusal says nothing about the new spec.
    asked = asyncio.create_task(ondemand.analyze(None, None, None, 30))
    key = ("BrokerCluster", "mq", "demo")
    await asyncio.sleep(0.3)
    assert not asked.done()
    assert ondemand.ANALYZE_ANNOTATION in fake.objects[key]["metadata"]["annotations"]
    fake.put(fake.objects[key] | {"status": REFUSED | {"observedGeneration": 3}})
    with pytest.raises(CliError, match=r"no report is made: the spec is refused: spec\.mode is 7"):
        await asyncio.wait_for(asked, 3)
    assert ondemand.ANALYZE_ANNOTATION not in fake.objects[key]["metadata"]["annotations"]


async def test_ports_of_running_members_are_forwarded_though_the_spec_is_refused(fake: FakeApi) -> None:
    target = opened(fake, RUNS, mode=7)
    assert (await target.name_servers()).startswith("127.0.0.1:")
    assert len(await target.members_http()) == 4
    forwarded = present(target._forwarded)
    assert b"demo-b-master.mq.svc:10911" in forwarded._addresses
    await forwarded.close()


async def test_an_unknown_plan_is_reported(fake: FakeApi) -> None:
    with pytest.raises(TargetError, match=r"refused, and the status names no running groups: spec\.mode is 7"):
        await opened(fake, {}, mode=7).name_servers()


async def test_documents_of_the_other_version_are_previewed_and_made(fake: FakeApi) -> None:
    """The API server refuses a body of another version than the request's, so requests have the client's own."""
    beta = {"apiVersion": "gantry.dev/v1beta1"}
    target = opened(fake, {})
    fake.put(fake.objects["BrokerCluster", "mq", "demo"] | beta)
    wanted = BrokerCluster.model_validate(CLUSTER.model_dump(exclude={"status"}) | beta)
    assert {c["action"] for c in (await target.preview(wanted, "broker"))["changes"]} == {"create"}
    user = BrokerUser.model_validate(BrokerUser.make("shop", "demo").model_dump(exclude={"status"}) | beta)
    await TargetUsers(fake.api, "mq", "demo").create(user)
    topic = BrokerTopic.model_validate(BrokerTopic.make("orders", "demo").model_dump(exclude={"status"}) | beta)
    await TargetTopics(fake.api, "mq", "demo").create(topic)
    assert fake.objects["BrokerTopic", "mq", "orders"]["spec"]["cluster"] == "demo"
    (shown,) = await TargetUsers(fake.api, "mq", "demo").list()
    assert shown["apiVersion"] == "gantry.dev/v1alpha1"


def status() -> Awaitable[Any]:
    return KubernetesTarget(None, None, None).resource()


def switchover() -> Awaitable[Any]:
    return KubernetesTarget(None, None, None).switchover("a", None)


async def produce() -> None:
    async with KubernetesTarget(None, None, None).clients():
        pass


def analyze() -> Awaitable[Any]:
    return ondemand.analyze(None, None, None, 3)


@pytest.mark.parametrize("command", [status, switchover, produce, analyze])
async def test_a_refusal_of_the_api_server_is_one_line(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, command: Callable[[], Awaitable[Any]]
) -> None:
    """For example, a user may have the right to read a cluster, but not to change it."""
    kept_open(opened(fake, {}), monkeypatch, lambda: setattr(fake, "down", True))
    with pytest.raises(ActionError, match="the Kubernetes API server refuses or does not answer: it is down"):
        await command()


async def test_a_live_view_has_the_members_ports_and_the_status(fake: FakeApi) -> None:
    last = {"group": "a", "from": "demo-a-0", "to": "demo-a-1", "reason": "gone", "time": "t", "durationMs": 51}
    target = opened(fake, {"phase": "Degraded", "lastFailover": last})
    fake.put({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "mq"}, "type": "Warning",
        "reason": "FailoverCompleted", "message": "m", "lastTimestamp": "2026-01-01T00:00:00Z",
        "involvedObject": {"kind": "BrokerCluster", "name": "demo"},
    })  # fmt: skip
    facts = await target.live_facts()
    assert (facts.name, facts.namespace, facts.phase, facts.mode) == ("demo", "mq", "Degraded", "MasterSlave")
    assert [(m.name, m.group, m.number) for m in facts.members] == [(f"demo-a-{n}", "a", n) for n in range(3)]
    assert [e["reason"] for e in facts.events] == ["FailoverCompleted"]
    assert facts.last_failover == last
    first = present(target._forwarded)
    assert tuple(m.url for m in (await target.live_facts()).members) == first.members_http, "the ports stay"

    grown = fake.objects["BrokerCluster", "mq", "demo"]
    grown["spec"]["brokerGroups"] = [{"name": "a", "members": 4}]
    fake.put(grown)
    assert len((await target.live_facts()).members) == 4
    assert target._forwarded is not None
    assert target._forwarded is not first, "a new member has a port of its own"
    await target._forwarded.close()
    bad = fake.objects["BrokerCluster", "mq", "demo"]
    bad["spec"]["mode"] = 7
    fake.put(bad)
    with pytest.raises(TargetError, match="names no running groups"):
        await target.live_facts()
