"""Changed ConfigMaps and Secrets reach running pods at once: by a mark that makes the kubelet look."""

from __future__ import annotations

from typing import Any, cast

from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import KINDS, KubeApi
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.objects import mounted_files

from tests.kubernetes.fake_api import FakeApi, unheard
from tests.kubernetes.test_cluster_controller import change, kept
from tests.kubernetes.test_proxies import settle

LOUD = {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 2}]}


def pod(name: str, *volumes: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": name, "namespace": "mq", "labels": names.labels("demo", names.BROKER), "uid": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"volumes": list(volumes)}, "status": {}}


CONFIG = {"name": "config", "configMap": {"name": "demo-a"}}
TLS = {"name": "tls", "secret": {"secretName": "demo-a-tls"}}
DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "data-demo-a-0"}}


def versions(*volumes: dict[str, Any], **live: str) -> str:
    """`live`: the version by kind."""

    def found(kind: str, name: str) -> dict[str, Any] | None:
        return {"metadata": {"resourceVersion": live[kind]}} if kind in live else None

    return mounted_files.versions(pod("p", *volumes), found)


def test_each_mounted_object_counts_and_nothing_else() -> None:
    first = versions(CONFIG, TLS, DATA, ConfigMap="1", Secret="1")
    assert first == versions(TLS, CONFIG, ConfigMap="1", Secret="1"), "neither the order nor a claim counts"
    assert len({first, versions(CONFIG, TLS, ConfigMap="2", Secret="1"), versions(CONFIG, TLS, ConfigMap="1")}) == 3
    assert versions(CONFIG, TLS) == versions(DATA, ConfigMap="1") == "", "an object that is not watched does not count"


async def test_a_new_log_level_marks_the_pods_that_mount_it(fake: FakeApi) -> None:
    fake.put(pod("mounts", CONFIG))
    fake.put(pod("mounts-nothing", DATA))

    def marks(name: str) -> dict[str, str]:
        found: dict[str, str] = fake.objects["Pod", "mq", name]["metadata"].get("annotations") or {}
        return found

    async with kept(fake, LOUD) as controller:
        await settle(lambda: names.MOUNTED_FILES in marks("mounts"))
        first = marks("mounts")[names.MOUNTED_FILES]
        change(controller, fake, LOUD | {"logLevel": "DEBUG"})
        await settle(lambda: marks("mounts")[names.MOUNTED_FILES] != first)
        assert names.MOUNTED_FILES not in marks("mounts-nothing")


async def test_pods_may_come_and_go_while_others_are_marked(fake: FakeApi) -> None:
    """Each mark waits for the API server, and watches go on meanwhile."""
    caches = {kind: InformerCache(fake.api, KINDS[kind], (), "", unheard) for kind in ("Pod", "ConfigMap")}
    cached = caches["Pod"]
    for number in range(3):
        made = fake.put(pod(f"demo-a-{number}", CONFIG))
        cached.note(made)
    caches["ConfigMap"].note(fake.put({"kind": "ConfigMap", "metadata": {"name": "demo-a", "namespace": "mq"}}))
    patched = []

    class Slow:
        async def merge(self, kind: Any, namespace: str, name: str, patch: Any) -> dict[str, Any]:
            patched.append(name)
            cached.note(fake.put(pod(f"new-{name}")))
            return fake.objects["Pod", "mq", name]

    await mounted_files.refresh(cast("KubeApi", Slow()), caches, "mq", "demo")
    assert patched == ["demo-a-0", "demo-a-1", "demo-a-2"]
