"""Changed ConfigMaps and Secrets reach running pods at once: by a mark that makes the kubelet look."""

from __future__ import annotations

from typing import Any

from gantry_operator.platforms.kubernetes import mounted_files, names
from gantry_operator.platforms.kubernetes.client import KubeApi

from tests.kubernetes.fake_api import FakeApi
from tests.kubernetes.test_proxies import change, kept, settle

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


async def test_a_new_log_level_marks_the_pods_that_mount_it(fake: FakeApi, api: KubeApi) -> None:
    fake.put(pod("mounts", CONFIG))
    fake.put(pod("mounts-nothing", DATA))

    def marks(name: str) -> dict[str, str]:
        found: dict[str, str] = fake.objects["Pod", "mq", name]["metadata"].get("annotations") or {}
        return found

    async with kept(fake, api, LOUD) as controller:
        await settle(lambda: names.MOUNTED_FILES in marks("mounts"))
        first = marks("mounts")[names.MOUNTED_FILES]
        change(controller, fake, LOUD | {"logLevel": "DEBUG"})
        await settle(lambda: marks("mounts")[names.MOUNTED_FILES] != first)
        assert names.MOUNTED_FILES not in marks("mounts-nothing")
