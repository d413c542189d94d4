"""The edges against an API server in memory: registry swaps, election, interrupted caches, events, objects."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api import client
from gantry_operator.platforms.kubernetes.api import informer_cache as cache
from gantry_operator.platforms.kubernetes.api import operator_lease as election
from gantry_operator.platforms.kubernetes.api.client import (
    AT_ONCE,
    CONFIG_MAP,
    KINDS,
    LEASE,
    POD,
    ApiError,
    ApiUnavailable,
    KubeApi,
)
from gantry_operator.platforms.kubernetes.api.events import BURST, EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.lease_registry import LEADERSHIP, LeaseRegistry
from gantry_operator.platforms.kubernetes.api.operator_lease import Election
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler, ReconcileResult
from gantry_operator.registry.base import RegistryUnavailable
from kubernetes.aio.client.configuration import Configuration

from tests.kubernetes.fake_api import FakeApi
from tests.support.patience import SLOW
from tests.support.present import present
from tests.support.running import until

PATIENCE_S = 20.0 * SLOW

A = MemberId(0, "a")
B = MemberId(1, "b")


# ---- the role registry


async def test_two_operators_swap_and_only_one_wins(fake: FakeApi) -> None:
    one, two = LeaseRegistry(fake.api, "demo", "mq"), LeaseRegistry(fake.api, "demo", "mq")
    assert await one.read("a") is None
    assert await two.read("a") is None
    first = LeadershipRecord().promoted(A, [A, B])
    assert await one.swap("a", None, first)
    assert not await two.swap("a", None, LeadershipRecord().promoted(B, [B]))
    seen = present(await two.read("a"))
    assert seen.leadership == first
    assert await two.swap("a", seen, first.promoted(B, [B]))
    stale = present(await one.read("a"))
    assert not await one.swap("a", stale, first.with_set([A])), "a stale read costs a failed swap"
    assert present(await one.read("a")).leadership.master == B
    assert present(fake.get("Lease", "demo-a"))["spec"] == {"holderIdentity": "demo-a-1", "leaseTransitions": 2}


async def test_a_lease_outlives_its_cluster_unless_volumes_go_too(fake: FakeApi) -> None:
    """Rule 22: no owner reference while volumes are kept."""
    kept, gone = LeaseRegistry(fake.api, "kept", "mq"), LeaseRegistry(fake.api, "gone", "mq")
    gone.owner = {"kind": "BrokerCluster", "name": "gone", "uid": "u"}
    assert await kept.swap("a", None, LeadershipRecord().promoted(A, [A]))
    assert await gone.swap("a", None, LeadershipRecord().promoted(A, [A]))
    leases = [fake.get("Lease", n) for n in ("kept-a", "gone-a")]
    assert ["ownerReferences" in (o or {})["metadata"] for o in leases] == [False, True]


async def test_an_unknown_outcome_differs_from_a_refusal(fake: FakeApi) -> None:
    registry = LeaseRegistry(fake.api, "demo", "mq")
    assert await registry.swap("a", None, LeadershipRecord().promoted(A, [A]))
    entry = present(await registry.read("a"))
    fake.down = True
    with pytest.raises(RegistryUnavailable):
        await registry.swap("a", entry, entry.leadership.touched())
    with pytest.raises(RegistryUnavailable):
        await registry.read("a")
    fake.down = False
    assert await registry.read("a") == entry


async def test_a_request_without_an_answer_holds_a_swap_up_for_a_moment_only(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is read again."""
    assert client.URGENT_S < 3
    monkeypatch.setattr(client, "URGENT_S", 0.2)
    registry = LeaseRegistry(fake.api, "demo", "mq")
    assert await registry.swap("a", None, LeadershipRecord().promoted(A, [A]))
    fake.unanswered = [("PUT", "Lease"), ("GET", "Lease")]
    async with asyncio.timeout(3):
        entry = present(await registry.read("a"))
        with pytest.raises(RegistryUnavailable):
            await registry.swap("a", entry, entry.leadership.touched())
        with pytest.raises(RegistryUnavailable):
            await registry.read("a")
        assert await registry.read("a") == entry
        assert await registry.swap("a", entry, entry.leadership.touched())


async def test_watch_events_keep_the_registry_current(fake: FakeApi) -> None:
    registry, other = LeaseRegistry(fake.api, "demo", "mq"), LeaseRegistry(fake.api, "demo", "mq")
    assert await registry.swap("a", None, LeadershipRecord().promoted(A, [A]))
    entry = await other.read("a")
    assert await other.swap("a", entry, LeadershipRecord().promoted(A, [A]).promoted(B, [B]))
    lease = present(fake.get("Lease", "demo-a"))
    calls = fake.api.calls
    registry.heard("MODIFIED", lease)
    assert (present(await registry.read("a")).leadership.epoch, fake.api.calls) == (2, calls), "answered from the watch"
    fake.remove("Lease", "mq", "demo-a")
    registry.heard("DELETED", lease)
    assert await registry.read("a") is None


async def test_a_damaged_lease_stops_decisions(fake: FakeApi) -> None:
    fake.put({"kind": "Lease", "metadata": {"name": "demo-a", "namespace": "mq", "annotations": {LEADERSHIP: "?"}}})
    with pytest.raises(RegistryUnavailable, match="demo-a"):
        await LeaseRegistry(fake.api, "demo", "mq").read("a")


# ---- many clusters at once


async def test_requests_do_not_flood_the_api_server_and_a_failover_waits_for_none(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, most = asyncio.Event(), 0
    under_way: list[str] = []

    async def answer(method: str, path: str, *_: object) -> dict[str, Any]:
        nonlocal most
        under_way.append(path)
        most = max(most, len(under_way))
        if "leases" not in path:
            await held.wait()
        under_way.remove(path)
        return {"path": path}

    monkeypatch.setattr(fake.api, "_answer", answer)
    asked = [asyncio.create_task(fake.api.get(CONFIG_MAP, "mq", f"c{i}")) for i in range(50)]
    await until(lambda: len(under_way) == AT_ONCE)
    assert await asyncio.wait_for(fake.api.get(LEASE, "mq", "demo-a"), PATIENCE_S)
    assert most == AT_ONCE + 1
    held.set()
    assert len(await asyncio.gather(*asked)) == 50


async def test_any_number_of_watches_leaves_connections_for_requests(fake: FakeApi) -> None:
    heard: list[tuple[str, str]] = []
    watches = [(await followed(fake.api, heard))[1] for _ in range(110)]
    assert await asyncio.wait_for(fake.api.get(POD, "mq", "nobody"), PATIENCE_S) is None
    for task in watches:
        task.cancel()
    await asyncio.gather(*watches, return_exceptions=True)


# ---- one operator acts


Candidate = Callable[..., Election]


@pytest.fixture
def candidate(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Candidate:
    """Make a candidate for the lead by its name. Its times are short, where a test has no others."""
    times = {"DURATION_S": 1, "RENEW_S": 0.1, "LOOK_S": 0.05, "GIVE_UP_S": 0.5}

    def make(name: str, address: str = "", **others: float) -> Election:
        times.update(others)
        for constant, value in times.items():
            monkeypatch.setattr(election, constant, value)
        return Election(fake.api, "mq", "gantry-operator", name, address)

    return make


async def test_the_second_takes_over_when_the_first_stops_renewing(candidate: Candidate) -> None:
    one, two = (candidate(n) for n in ("one", "two"))
    await one.acquire()
    waiting = asyncio.create_task(two.acquire())
    await asyncio.sleep(0.3)
    assert not waiting.done(), "not while the Lease is young"
    await asyncio.wait_for(waiting, PATIENCE_S)
    await asyncio.wait_for(one.hold(), PATIENCE_S)
    assert (one.leading, two.leading) == (False, True)


async def test_the_lease_is_taken_as_soon_as_it_has_run_out(candidate: Candidate) -> None:
    """Rare checks cost nothing then: the end of the Lease is known."""
    one, two = (candidate(n, LOOK_S=60.0) for n in ("one", "two"))
    await one.acquire()
    begun = time.monotonic()
    await asyncio.wait_for(two.acquire(), PATIENCE_S)  # A second look would come after 60 s.
    assert time.monotonic() - begun >= 1.0


async def test_a_leader_that_is_not_there_is_not_waited_for(candidate: Candidate) -> None:
    """Its node is dead: it missed renewals and accepts no connections. A slow leader accepts them."""
    slow = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{slow.sockets[0].getsockname()[1]}"
    await candidate("one", address, DURATION_S=60, MISSED_S=0.3).acquire()
    two = candidate("two", "127.0.0.1:9")
    taking = asyncio.create_task(two.acquire())
    await asyncio.sleep(1)
    assert not taking.done()
    slow.close()
    await asyncio.wait_for(taking, PATIENCE_S)
    assert two.leading


async def test_a_candidate_without_an_answer_tries_again(candidate: Candidate, fake: FakeApi) -> None:
    """A request that is lost with a node must not delay the next look until its own timeout."""
    fake.unanswered = [("GET", "Lease")]
    await asyncio.wait_for(candidate("one").acquire(), PATIENCE_S)
    assert (fake.unanswered, fake.api.calls) == ([], 3), "two looks, then the Lease is made"


async def test_a_renewal_that_gets_no_answer_is_followed_by_another(candidate: Candidate, fake: FakeApi) -> None:
    one = candidate("one", GIVE_UP_S=1.3)
    await one.acquire()
    fake.unanswered = [("PUT", "Lease")]
    pending_fetches = asyncio.create_task(one.hold())
    await asyncio.sleep(1.7)
    assert not fake.unanswered
    assert not pending_fetches.done()
    assert one.leading
    pending_fetches.cancel()


async def test_a_leader_that_ends_in_order_gives_the_lease_back(candidate: Candidate) -> None:
    one, two = (candidate(n, DURATION_S=60) for n in ("one", "two"))
    await one.acquire()
    waiting = asyncio.create_task(two.acquire())
    await one.release()
    await asyncio.wait_for(waiting, PATIENCE_S)


async def test_a_leader_cut_off_from_the_api_stops_before_another_may_begin(
    candidate: Candidate, fake: FakeApi
) -> None:
    one = candidate("one", DURATION_S=60)
    await one.acquire()
    pending_fetches = asyncio.create_task(one.hold())
    await asyncio.sleep(0.25)
    assert not pending_fetches.done()
    fake.down = True
    await asyncio.wait_for(pending_fetches, PATIENCE_S)  # Sooner than the Lease runs out.
    assert not one.leading


async def test_a_renewal_is_one_request_and_a_lease_that_was_deleted_comes_back(
    candidate: Candidate, fake: FakeApi
) -> None:
    one = candidate("one")
    await one.acquire()
    pending_fetches = asyncio.create_task(one.hold())
    renewal = ("PUT", "Lease", "gantry-operator")
    calls, puts = fake.api.calls, fake.log.count(renewal)
    await until(lambda: fake.log.count(renewal) - puts >= 4)
    assert fake.log.count(renewal) - puts == fake.api.calls - calls, "nothing was read between"
    fake.remove("Lease", "mq", "gantry-operator")
    await until(lambda: fake.get("Lease", "gantry-operator") is not None)
    assert one.leading
    pending_fetches.cancel()


# ---- watches


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "mq", "labels": labels}, "spec": {}}


async def followed(api: KubeApi, heard: list[tuple[str, str]]) -> tuple[InformerCache, asyncio.Task[None]]:
    def listen(event: str, obj: dict[str, Any]) -> None:
        heard.append((event, obj["metadata"]["name"]))
        if obj["metadata"]["name"] == "poison":
            raise ValueError("a listener that fails")

    found = InformerCache(api, POD, (), "", listen)
    task = asyncio.create_task(found.run())
    await asyncio.wait_for(found.ready(), PATIENCE_S)
    return found, task


async def test_a_mirror_follows_and_survives_listeners_that_fail(fake: FakeApi) -> None:
    fake.put(pod("a"))
    heard: list[tuple[str, str]] = []
    found, task = await followed(fake.api, heard)
    await until(lambda: len(fake._watchers) == 1)
    fake.put(pod("poison"))
    fake.put(pod("b", role="x"))
    fake.remove("Pod", "mq", "a")
    await until(lambda: found.get("mq", "b") is not None and found.get("mq", "a") is None)
    assert heard == [("ADDED", "a"), ("ADDED", "poison"), ("ADDED", "b"), ("DELETED", "a")]
    assert [o["metadata"]["name"] for o in found.of("mq", "role", "x")] == ["b"]
    task.cancel()


async def test_an_expired_watch_is_restarted_and_misses_nothing(fake: FakeApi) -> None:
    fake.put(pod("a"))
    heard: list[tuple[str, str]] = []
    found, task = await followed(fake.api, heard)
    await until(lambda: len(fake._watchers) == 1)
    fake.deaf = True
    fake.put(pod("b"))
    fake.remove("Pod", "mq", "a")
    fake.deaf = False
    fake.break_watches()
    await until(lambda: found.get("mq", "b") is not None and found.get("mq", "a") is None)
    assert heard[1:] == [("DELETED", "a"), ("ADDED", "b")]
    task.cancel()


async def test_a_watch_that_falls_silent_is_noticed(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """nolar/kopf 955: after days the operator silently stopped seeing changes."""
    monkeypatch.setattr(cache, "SILENCE_S", 0.3)
    heard: list[tuple[str, str]] = []
    found, task = await followed(fake.api, heard)
    await until(lambda: len(fake._watchers) == 1)
    fake.deaf = True
    fake.put(pod("b"))
    await until(lambda: found.get("mq", "b") is not None)
    assert fake.lists >= 2
    task.cancel()


async def test_a_watch_tries_its_connection_while_nothing_comes(fake: FakeApi) -> None:
    """A watch that is lost with a node would leave the operator without events until its end."""
    heard: list[tuple[str, str]] = []
    _, task = await followed(fake.api, heard)
    await until(lambda: len(fake._watchers) == 1)
    fake.put(pod("a"))
    await until(lambda: heard)
    [kept] = cast(Any, present(fake.api._client.rest_client.pool_manager).connector)._acquired
    sock = kept.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
    task.cancel()


async def test_an_api_server_that_is_away_is_waited_for(fake: FakeApi) -> None:
    heard: list[tuple[str, str]] = []
    found, task = await followed(fake.api, heard)
    await until(lambda: len(fake._watchers) == 1)
    fake.down = True
    fake.break_watches(500)
    await asyncio.sleep(0.3)
    fake.down = False
    fake.put(pod("b"))
    await until(lambda: found.get("mq", "b") is not None)
    task.cancel()


# ---- calls


async def test_errors_contain_the_servers_message(fake: FakeApi) -> None:
    assert await fake.api.get(POD, "mq", "none") is None
    assert not await fake.api.delete(POD, "mq", "none")
    fake.put(pod("a"))
    with pytest.raises(ApiError, match="exists") as caught:
        await fake.api.create(pod("a"))
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")
    with pytest.raises(ApiError, match="another uid"):
        await fake.api.delete(POD, "mq", "a", uid="other")
    async with KubeApi(Configuration(host="http://127.0.0.1:1")) as client:
        with pytest.raises(ApiUnavailable):
            await client.get(POD, "mq", "a")


# ---- events


async def test_events_that_repeat_count_up_and_a_flood_is_cut(fake: FakeApi) -> None:
    recorder = EventRecorder(fake.api, "mq", "demo", "u", "op-0")
    for _ in range(3):
        recorder.record("Normal", "FailoverStarted", "demo-a-1 leads")
        await recorder.close()
    events = [o for (k, _, _), o in fake.objects.items() if k == "Event"]
    assert [(e["count"], e["involvedObject"]["name"]) for e in events] == [(3, "demo")]
    for i in range(200):
        recorder.record("Warning", "Noise", f"number {i}")
    await recorder.close()
    assert len([k for k in fake.objects if k[0] == "Event"]) <= BURST + 1
    fake.down = True
    recorder.record("Normal", "Lost", "this event is lost, and nothing breaks")
    await recorder.close()


# ---- objects


CLUSTER = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}])
CLUSTER.metadata.uid = "u1"
KEPT = (
    "ConfigMap", "CronJob", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Secret",
    "Service", "ServiceAccount", "StatefulSet",
)  # fmt: skip


def controller(api: KubeApi, uid: str = "u1") -> ObjectReconciler:
    caches = {k: InformerCache(api, KINDS[k], (), "", lambda *_: None) for k in KEPT}
    return ObjectReconciler(api, caches, OperatorSettings("broker:1"), "mq", "demo", uid)


async def pass_over(objects: ObjectReconciler, cluster: BrokerCluster = CLUSTER) -> tuple[bool, ReconcileResult]:
    found = ReconcileResult()
    done = await objects.keep_secret(cluster, found)
    return await objects.keep(cluster, plan(cluster), {}, found) and done, found


async def test_a_second_pass_writes_nothing(fake: FakeApi) -> None:
    objects = controller(fake.api)
    assert (await pass_over(objects))[0]
    assert fake.get("StatefulSet", "demo-a") is not None
    writes = len(fake.log)
    assert (await pass_over(objects))[0]
    assert len(fake.log) == writes


async def test_objects_of_others_are_never_touched(fake: FakeApi) -> None:
    mine = {"kind": "Service", "metadata": {"name": "demo-a-master", "namespace": "mq"}, "spec": {"ports": []}}
    fake.put(mine)
    done, found = await pass_over(controller(fake.api))
    assert not done
    assert any("Service demo-a-master exists and is not of this cluster" in p for p in found.problems)
    assert present(fake.get("Service", "demo-a-master"))["spec"] == {"ports": []}


async def test_a_deleted_secret_comes_back_with_the_same_token(fake: FakeApi) -> None:
    objects = controller(fake.api)
    await pass_over(objects)
    before = fake.get("Secret", "demo-admin")
    fake.remove("Secret", "mq", "demo-admin")
    objects._caches["Secret"]._objects.clear()
    await pass_over(objects)
    after = fake.get("Secret", "demo-admin")
    assert before is not None
    assert before["data"] == present(after)["data"]


async def test_volumes_that_grow_take_a_new_set_around_the_pods(fake: FakeApi) -> None:
    objects = controller(fake.api)
    await pass_over(objects)
    grown = CLUSTER.model_copy(deep=True)
    grown.spec.storage.size = "20Gi"
    done, _ = await pass_over(objects, grown)
    assert not done
    assert ("DELETE", "StatefulSet", "demo-a") in fake.log
    objects._caches["StatefulSet"]._objects.clear()
    assert (await pass_over(objects, grown))[0]
    live = present(fake.get("StatefulSet", "demo-a"))
    assert live["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "20Gi"


async def test_objects_of_an_earlier_spec_are_removed_and_groups_never_are(fake: FakeApi) -> None:
    objects = controller(fake.api)
    many = CLUSTER.model_copy(deep=True)
    many.spec.nameServers.replicas = 3
    many.spec.brokerGroups.append(many.spec.brokerGroups[0].model_copy(update={"name": "b"}))
    assert (await pass_over(objects, many))[0]
    assert (await pass_over(objects))[0]
    assert fake.get("Service", "demo-namesrv-2") is None
    assert fake.get("Service", "demo-namesrv-1") is not None
    assert fake.get("StatefulSet", "demo-b") is not None


async def test_external_addresses_come_before_brokers(fake: FakeApi) -> None:
    """A broker is not started with addresses that are not known yet."""
    outside = CLUSTER.model_copy(deep=True)
    outside.spec.external = BrokerCluster.make(
        "x", brokerGroups=[{"name": "a"}], external={"type": "NodePort", "host": "node", "unprotected": True}
    ).spec.external
    objects = controller(fake.api)
    done, found = await pass_over(objects, outside)
    assert not done
    assert "waiting for external addresses" in found.progress[0]
    assert fake.get("StatefulSet", "demo-a") is None
    port = 30000
    for (kind, _, name), obj in list(fake.objects.items()):
        if kind == "Service" and name.endswith("-external"):
            port += 1
            obj["spec"]["ports"][0]["nodePort"] = port
            objects._caches["Service"].note(fake.put(obj))
    assert (await pass_over(objects, outside))[0]
    config = present(fake.get("ConfigMap", names.group_set("demo", "a")))
    assert "node:300" in config["data"]["demo-a-0.json"]
    assert await fake.api.get(CONFIG_MAP, "mq", "demo-a") == config
