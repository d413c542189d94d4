"""The reasons of Kubernetes reach the status: quota, LimitRange, PriorityClass, scheduler, memory, images, classes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes.api.client import KINDS, KubeApi
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.pod_state import node_lost, notable, why_not
from gantry_operator.platforms.kubernetes.api.reasons import LOOK_S, Reasons, in_words, newest_warning
from gantry_operator.platforms.kubernetes.members.member_state import missing_objects
from gantry_operator.platforms.kubernetes.objects import volumes

from tests.kubernetes.fake_api import FakeApi, unheard

CREATE = 'create Pod demo-a-1 in StatefulSet demo-a failed error: pods "demo-a-1" is forbidden: '
QUOTA = CREATE + "exceeded quota: small, requested: requests.memory=256Mi, used: requests.memory=1Gi, limited: 1Gi"


def event(message: str, time: str, name: str = "demo-a", kind: str = "StatefulSet", **more: Any) -> dict[str, Any]:
    meta = {"name": f"{name}.{time}", "namespace": "mq", "creationTimestamp": time}
    about = {"kind": kind, "name": name, "namespace": "mq"}
    return {
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "metadata": meta, "involvedObject": about,
        "message": message, "lastTimestamp": time,
    } | more  # fmt: skip


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "demo-a-1", "namespace": "mq"}, "spec": {"nodeName": "n2"}, "status": status}


def test_the_newest_warning_about_the_object_counts() -> None:
    found = [
        event("old", "2026-01-01T00:00:00Z"),
        event("new", "2026-01-01T00:00:05Z"),
        event("another set", "2026-01-01T00:00:09Z", "demo-b"),
        event("fine", "2026-01-01T00:00:09Z", type="Normal"),
        event("Startup probe failed: connection refused", "2026-01-01T00:00:08Z", reason="Unhealthy"),
        event("repeated", "2026-01-01T00:00:01Z", series={"lastObservedTime": "2026-01-01T00:00:07.123456Z"}),
    ]
    assert newest_warning(found, "StatefulSet", "demo-a") == "repeated"
    assert newest_warning(found, "Pod", "demo-a") == ""


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (QUOTA, "quota small of the namespace is used up, requested: requests.memory=256Mi"),
        (CREATE + "no PriorityClass with name high was found", "no PriorityClass with name high was found"),
        (
            CREATE + "maximum memory usage per Container is 100Mi, but limit is 1Gi",
            "maximum memory usage per Container",
        ),
    ],
)
def test_refused_pods_are_explained(message: str, words: str) -> None:
    said = in_words(message)
    assert words in said
    assert "StatefulSet" not in said
    assert why_not(None, "", said) == f"there is no pod: {said}"


def test_states_of_containers_are_explained() -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    killed = {"ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
    assert "more memory than its limit" in why_not(pod(containerStatuses=[killed]), "")
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    crashed = {"ready": False, "state": waiting, "lastState": {"terminated": {"exitCode": 2}}}
    assert why_not(pod(containerStatuses=[crashed]), "") == "CrashLoopBackOff: back-off 10s; it ended with code 2"
    pull = {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}}
    said = why_not(pod(containerStatuses=[pull]), "")
    assert "no such host" in said
    assert all(word in said for word in ("docker build", "push", "kind load", "minikube image load", "image.broker"))
    init = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "x"}}}
    assert "docker build" in why_not(pod(initContainerStatuses=[init]), "")
    begins = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    assert why_not(pod(containerStatuses=[begins]), "", 'secret "x" not found').endswith('secret "x" not found')
    unplaced = pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}])
    said = why_not(unplaced, "", "", "no class")
    assert said == "not scheduled: 0/3 nodes are available; its volume claim: no class"


def test_what_passes_by_itself_is_an_event_only_after_the_time_of_a_start() -> None:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    begins = pod(containerStatuses=[{"state": {"waiting": {"reason": "ContainerCreating"}}}])
    begins["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    unplaced = pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "unbound claims"}])
    unplaced["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    crashed = pod(containerStatuses=[{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}])
    crashed["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    for seconds, events in ((1, [False, False, False, True]), (31, [True, False, True, True])):
        now = made + timedelta(seconds=seconds)
        assert [
            notable(begins, why_not(begins, "", 'secret "x" not found'), now),
            notable(begins, why_not(begins, ""), now),
            notable(unplaced, why_not(unplaced, ""), now),
            notable(crashed, why_not(crashed, ""), now),
        ] == events
    assert not notable(pod(), "no connection in time", made), "the failover says so"


def test_a_lost_node_is_named() -> None:
    conditions = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    assert node_lost(pod(conditions=conditions))
    assert why_not(pod(conditions=conditions), "no connection in time") == (
        "node n2 no longer reports: it may be off or cut off"
    )
    assert why_not(pod(), "no connection in time") == "no connection in time; it is on node n2"
    conditions[1]["status"] = "False"
    assert not node_lost(pod(conditions=conditions))


async def caches_of(api: KubeApi, *kinds: str) -> dict[str, InformerCache]:
    caches = {k: InformerCache(api, KINDS[k], (), "", unheard) for k in kinds}
    for kind, cache in caches.items():
        for obj in (await api.list(KINDS[kind], "mq"))[0]:
            cache.note(obj)
    return caches


async def test_events_are_read_only_while_something_is_missing(fake: FakeApi) -> None:
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 2}])
    ready = {
        "metadata": {"namespace": "mq"},
        "spec": {},
        "kind": "Pod",
        "apiVersion": "v1",
        "status": {"phase": "Running"},
    }
    for name in ("demo-a-0", "demo-namesrv-0", "demo-namesrv-1"):
        fake.put(ready | {"metadata": {"name": name, "namespace": "mq"}})
    pods = (await caches_of(fake.api, "Pod"))["Pod"]
    running = [("a", i, f"demo-a-{i}") for i in range(2)]
    wanted = missing_objects(running, plan(cluster), pods, "mq", "demo")
    assert wanted == [("StatefulSet", "demo-a")]
    fake.put(event(QUOTA, "2026-01-01T00:00:00Z"))
    reasons = Reasons(fake.api, "mq")
    assert await reasons.look(wanted, 0.0)
    assert "quota small" in reasons.of("StatefulSet", "demo-a")
    read = fake.lists
    assert not await reasons.look(wanted, LOOK_S / 2)
    assert fake.lists == read
    assert await reasons.look([], LOOK_S)
    assert (reasons.of("StatefulSet", "demo-a"), fake.lists) == ("", read)


def claim(name: str, storage_class: str | None, volume: str | None = None, size: str = "10Gi") -> dict[str, Any]:
    spec: dict[str, Any] = {"resources": {"requests": {"storage": size}}}
    spec |= {"storageClassName": storage_class} if storage_class else {}
    spec |= {"volumeName": volume} if volume else {}
    labels = {"gantry.dev/cluster": "demo"}
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec,
        "metadata": {"name": f"data-{name}", "namespace": "mq", "labels": labels},
    }  # fmt: skip


async def test_a_claim_that_never_had_a_volume_is_made_again(fake: FakeApi) -> None:
    """The storage class was misspelt. A bound claim has records, and a right one is only not bound yet."""
    running = [("a", i, f"demo-a-{i}") for i in range(4)]
    fake.put(claim("demo-a-0", "fasst"))
    fake.put(claim("demo-a-1", "fast"))
    fake.put(claim("demo-a-2", "fasst", volume="pv-1"))
    fake.put(claim("demo-a-3", "fast", size="100Ti"))
    for number in range(3):
        fake.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"demo-a-{number}", "namespace": "mq"}})
    caches = await caches_of(fake.api, "PersistentVolumeClaim", "Pod", "Lease")
    fast = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}], storage={"className": "fast"})
    assert len(await volumes.make_again(fake.api, caches, fast, running, ())) == 2
    assert [entry for entry in fake.log if entry[0] == "DELETE"] == [
        ("DELETE", "PersistentVolumeClaim", "data-demo-a-0"),
        ("DELETE", "Pod", "demo-a-0"),
        ("DELETE", "PersistentVolumeClaim", "data-demo-a-3"),
    ]
    said = await volumes.keep(fake.api, caches, fast, running)
    assert [s for s in said if "volume data-demo-a-2 has class fasst" in s]


async def test_without_a_class_in_the_spec_only_one_that_does_not_exist_is_wrong(fake: FakeApi) -> None:
    fake.put(claim("demo-a-0", "standard"))
    said = 'storageclass.storage.k8s.io "fasst" not found'
    fake.put(event(said, "2026-01-01T00:00:00Z", "data-demo-a-1", "PersistentVolumeClaim"))
    fake.put(claim("demo-a-1", "fasst"))
    caches = await caches_of(fake.api, "PersistentVolumeClaim", "Pod")
    reasons = Reasons(fake.api, "mq")
    await reasons.look([("PersistentVolumeClaim", "data-demo-a-1")], 0.0)
    assert reasons.missing_classes() == {"fasst"}
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}])
    running = [("a", i, f"demo-a-{i}") for i in range(2)]
    await volumes.make_again(fake.api, caches, cluster, running, reasons.missing_classes())
    assert [entry for entry in fake.log if entry[0] == "DELETE"] == [
        ("DELETE", "PersistentVolumeClaim", "data-demo-a-1")
    ]


def grown(*sizes: str, **own: Any) -> tuple[BrokerCluster, list[tuple[str, int, str]]]:
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", **own}], storage={"size": "20Gi"})
    return cluster, [("a", i, f"demo-a-{i}") for i in range(len(sizes))]


@pytest.mark.parametrize("own", [False, True])
async def test_volumes_that_cannot_grow_leave_the_way_back_open(fake: FakeApi, own: bool) -> None:
    """A storage class without expansion: no claim grows, the template keeps the former size, which may be written."""
    cluster, running = grown("10Gi", "10Gi", **({"storage": {"size": "20Gi"}} if own else {}))
    for _, _, name in running:
        fake.put(claim(name, "fixed", volume="pv"))
    fake.refuse["PersistentVolumeClaim"] = (403, "only dynamically provisioned pvc can be resized")
    caches = await caches_of(fake.api, "PersistentVolumeClaim", "Pod", "Lease")
    said = await volumes.keep(fake.api, caches, cluster, running)
    field = "spec.brokerGroups[a].storage.size" if own else "spec.storage.size"
    assert len(said) == 2
    assert all(
        s.startswith(f"{field}: volume data-demo-a-{i} cannot grow from 10Gi to 20Gi") for i, s in enumerate(said)
    )
    assert said[-1].endswith("or write 10Gi again: no volume has grown")
    shaped = volumes.with_sizes_of_volumes(cluster, caches, running)
    assert (shaped.spec.storage_of("a").size, cluster.spec.storage_of("a").size) == ("10Gi", "20Gi")
    claims = [claim(n, "fixed", volume="pv") for _, _, n in running]
    for c in claims:
        c["metadata"]["labels"]["gantry.dev/group"] = "a"
    assert volumes.largest(claims, {"a"}) == "10Gi"
    assert volumes.largest(claims, set()) is None
    fake.refuse.clear()
    back = cluster.model_copy(deep=True)
    back.spec.storage.size = "10Gi"
    back.spec.brokerGroups[0].storage = None
    assert await volumes.keep(fake.api, caches, back, running) == []
    assert volumes.with_sizes_of_volumes(back, caches, running) is back


@pytest.mark.parametrize("own", [False, True])
async def test_a_size_below_that_of_a_volume_is_refused_and_the_right_one_is_said(fake: FakeApi, own: bool) -> None:
    """A group's own storage is in no rule of the CRD: only its volumes say what it may be."""
    cluster, running = grown("30Gi", "30Gi", **({"storage": {"size": "20Gi"}} if own else {}))
    for _, _, name in running:
        fake.put(claim(name, "fixed", volume="pv", size="30Gi"))
    caches = await caches_of(fake.api, "PersistentVolumeClaim", "Pod", "Lease")
    said = await volumes.keep(fake.api, caches, cluster, running)
    field = "spec.brokerGroups[a].storage.size" if own else "spec.storage.size"
    assert said == [
        f"{field} is 20Gi, but volume data-demo-a-{i} has 30Gi, and a volume cannot shrink: write 30Gi"
        for i in range(2)
    ]
    asked = [caches["PersistentVolumeClaim"].get("mq", f"data-demo-a-{i}") for i in range(2)]
    assert all(c is not None and c["spec"]["resources"]["requests"]["storage"] == "30Gi" for c in asked)


async def test_a_growth_of_some_volumes_is_said_for_each_one(fake: FakeApi) -> None:
    cluster, running = grown("20Gi", "10Gi", "10Gi")
    for (_, _, name), size in zip(running, ("20Gi", "10Gi", "5Gi"), strict=True):
        fake.put(claim(name, "fixed", volume="pv", size=size))
    fake.refuse["PersistentVolumeClaim"] = (422, "no")
    caches = await caches_of(fake.api, "PersistentVolumeClaim", "Pod", "Lease")
    one, two = await volumes.keep(fake.api, caches, cluster, running)
    assert "volume data-demo-a-1 cannot grow from 10Gi to 20Gi" in one
    assert "volume data-demo-a-2 cannot grow from 5Gi to 20Gi" in two
    assert "data-demo-a-0 has 20Gi already, which cannot be taken back" in two
    assert "again" not in two
    assert volumes.with_sizes_of_volumes(cluster, caches, running).spec.storage_of("a").size == "5Gi"
    fake.refuse.clear()
    assert await volumes.keep(fake.api, caches, cluster, running) == []
    assert volumes.with_sizes_of_volumes(cluster, caches, running) is cluster, "the template grows after the claims"
