"""Pods of Spark in client mode: a Job's pod is the driver, which creates executor pods and owns them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from gantry_operator.api.analytics import SparkResources
from gantry_operator.api.archive import ENCRYPTION_KEY
from gantry_operator.api.base import parse_quantity
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import pod_parts

TOKEN_DIR = "/etc/gantry-admin"
TEMPLATE_DIR = "/etc/gantry-spark"
TEMPLATE = "executor.yaml"
SCRATCH = "/tmp/spark"
TERMINATION_LOG = "/dev/termination-log"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
DRIVER_PORT = 7078
BLOCK_PORT = 7079
DRIVER = "driver"
EXECUTOR = "executor"
DEFAULT_MEMORY = 1536 * 1024 * 1024
OVERHEAD = 0.4
"""Share of a pod's memory outside the JVM's heap: Python workers, Arrow, the JVM itself."""


@dataclass(frozen=True, slots=True)
class SparkPods:
    """One kind of Spark job of a cluster."""

    cluster: BrokerCluster
    name: str
    """Of all its objects."""
    component: str
    label: str
    """Label of its pods and Jobs. The value is the cluster's name."""
    image: str
    executors: int
    resources: SparkResources
    conf: Mapping[str, str] = field(default_factory=dict)
    """The user's settings of Spark, which take precedence."""
    claim: str = ""
    """Folder of its volume claim, which has its name; empty: it has none."""
    volume: str = "reports"
    """The volume's name in the pods."""
    secrets: Sequence[tuple[str, str, str]] = ()
    """Further Secrets: the volume's name, the Secret's, and the folder, in driver and executors."""
    queue: str = ""
    """A LocalQueue of Kueue; empty: none."""
    token: bool = False
    """The cluster's admin token is among the files."""

    @property
    def https(self) -> bool:
        return pod_parts.http_scheme(self.cluster) == "https"

    @property
    def metadata(self) -> dict[str, Any]:
        return names.metadata(self.cluster, self.name, self.component)


def service_account(p: SparkPods) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": p.metadata}


def role(p: SparkPods, more: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the driver's rights: create, watch, label and delete its executor pods, and `more`.

    `spark_conf` turns off Spark's Services, config maps and volume claims for executors, so that the driver needs no
    right that would let it change those of brokers.
    """
    pods = {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["create", "get", "list", "watch", "delete", "deletecollection", "patch"],
    }
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": p.metadata,
        "rules": [pods, *more],
    }


def role_binding(p: SparkPods) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": p.metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": p.name},
        "subjects": [{"kind": "ServiceAccount", "name": p.name, "namespace": p.cluster.namespace}],
    }


def claim(p: SparkPods, size: str, class_name: str | None) -> dict[str, Any]:
    """Return the volume claim."""
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if class_name is not None:
        spec["storageClassName"] = class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": p.metadata, "spec": spec}


def labels_of(cluster: str, component: str, label: str) -> dict[str, str]:
    """Labels of driver and executors. The cluster's own label is absent, because its NetworkPolicy would separate
    executors and driver.
    """
    return {
        "app.kubernetes.io/name": "gantry",
        "app.kubernetes.io/instance": cluster,
        names.COMPONENT_LABEL: component,
        label: cluster,
    }


def labels(p: SparkPods) -> dict[str, str]:
    return labels_of(p.cluster.name, p.component, p.label)


def queued(p: SparkPods) -> dict[str, str]:
    """Return the labels of a Job, and of executor pods, which Kueue admits apart from it."""
    return labels(p) | ({QUEUE_LABEL: p.queue} if p.queue else {})


def executor_pod(p: SparkPods) -> dict[str, Any]:
    """Return the template of executor pods: settings that Spark's configuration lacks."""
    pod: dict[str, Any] = {
        "metadata": {"labels": queued(p)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_parts.pod_security(),
            "containers": [
                {
                    "name": EXECUTOR,
                    "securityContext": pod_parts.container_security(),
                    "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }
    _where(p.cluster, pod["spec"])
    return pod


def template(p: SparkPods) -> dict[str, Any]:
    """Return the ConfigMap with the template of executor pods."""
    pod = {"apiVersion": "v1", "kind": "Pod", **executor_pod(p)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": p.metadata,
        "data": {TEMPLATE: yaml.safe_dump(pod, sort_keys=False)},
    }


def _where(cluster: BrokerCluster, pod: dict[str, Any]) -> None:
    placement = cluster.spec.placement
    if cluster.spec.imagePullSecrets:
        pod["imagePullSecrets"] = [{"name": n} for n in cluster.spec.imagePullSecrets]
    if placement.nodeSelector:
        pod["nodeSelector"] = dict(placement.nodeSelector)
    if placement.tolerations:
        pod["tolerations"] = [t.model_dump(exclude_none=True) for t in placement.tolerations]


def spark_conf(p: SparkPods) -> dict[str, str]:
    """Spark's configuration. The user's settings come last and take precedence. Kubernetes replaces `$(NAME)` with
    variables of the driver's container.
    """
    driver = heap_mib(p.resources.driver.limits or p.resources.driver.requests)
    conf = {
        # Driver and executors prove to each other that they know the run's own secret, and encrypt what they send
        # and what they write to their disks. Spark makes the secret.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.io.encryption.enabled": "true",
        "spark.driver.memory": f"{driver}m",
        "spark.local.dir": SCRATCH,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(max(2, 2 * p.executors)),
    }
    if p.executors == 0:
        return {"spark.master": "local[*]", **conf, **p.conf}
    return conf | _executor_conf(p) | dict(p.conf)


def _executor_conf(p: SparkPods) -> dict[str, str]:
    """Return what a run with executors needs: their pods, and how they and the driver reach each other."""
    limits, requests = p.resources.executor.limits, p.resources.executor.requests
    cores = max(1, int(parse_quantity(limits.get("cpu") or requests.get("cpu") or "1")))
    total = int(parse_quantity(limits.get("memory") or requests.get("memory") or str(DEFAULT_MEMORY)))
    heap = heap_mib({"memory": str(total)})
    conf = {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.kubernetes.namespace": p.cluster.namespace,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.container.image": p.image,
        "spark.kubernetes.container.image.pullPolicy": p.cluster.spec.imagePullPolicy,
        "spark.kubernetes.executor.podTemplateFile": f"{TEMPLATE_DIR}/{TEMPLATE}",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR,
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_PORT),
        "spark.executor.instances": str(p.executors),
        "spark.executor.cores": str(cores),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{max(384, total // 1024 // 1024 - heap)}m",
        # A run starts with the executors that fit at once, and uses more as they come.
        "spark.scheduler.minRegisteredResourcesRatio": "0.0",
        # The driver must notice lost executors soon. Otherwise a killed executor costs minutes.
        "spark.network.timeout": "60s",
        "spark.executor.heartbeatInterval": "5s",
        "spark.kubernetes.executor.apiPollingInterval": "5s",
        "spark.kubernetes.executor.missingPodDetectDelta": "10s",
        "spark.task.maxFailures": "8",
        # Without these the driver would need rights to config maps, Services and volume claims.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    }
    if "cpu" in requests:
        conf["spark.kubernetes.executor.request.cores"] = requests["cpu"]
    if "cpu" in limits:
        conf["spark.kubernetes.executor.limit.cores"] = limits["cpu"]
    if p.token:
        conf[f"spark.kubernetes.executor.secrets.{names.admin_secret(p.cluster.name)}"] = TOKEN_DIR
    if p.https:
        conf[f"spark.kubernetes.executor.secrets.{names.ca_cert_secret(p.cluster.name)}"] = pod_parts.CA_DIR
    for _, secret, folder in p.secrets:
        conf[f"spark.kubernetes.executor.secrets.{secret}"] = folder
    if p.claim:
        # The volume can be mounted on one node only, so executors run on the driver's node.
        volume = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{p.volume}"
        conf |= {
            f"{volume}.mount.path": p.claim,
            f"{volume}.options.claimName": p.name,
            "spark.kubernetes.executor.node.selector.kubernetes.io/hostname": "$(NODE_NAME)",
        }
    return conf


def heap_mib(resources: Mapping[str, str]) -> int:
    """MiB of a pod's memory for the JVM's heap."""
    total = int(parse_quantity(resources.get("memory") or str(DEFAULT_MEMORY)))
    return max(512, int(total * (1 - OVERHEAD)) // 1024 // 1024)


def archive_options(cluster: BrokerCluster) -> dict[str, str]:
    """Return how Spark reaches `spec.archive`, as options of its sources; empty: there is none."""
    archive = cluster.spec.archive
    if archive is None:
        return {}
    options = {"archive": archive.url}
    if archive.endpoint is not None:
        options["endpoint"] = archive.endpoint
    if archive.region is not None:
        options["region"] = archive.region
    if archive.credentialsSecret is not None:
        options["credentials"] = str(pod_parts.archive_secret("archive", archive.credentialsSecret))
    if archive.encryption is not None:
        options["keyFile"] = str(pod_parts.archive_secret("archive", archive.encryption.secretName) / ENCRYPTION_KEY)
    return options


def archive_secrets(cluster: BrokerCluster) -> list[tuple[str, str, str]]:
    """Return the Secrets that Spark needs for `spec.archive`, as `SparkPods.secrets` has them."""
    archive = cluster.spec.archive
    if archive is None:
        return []
    encryption = archive.encryption
    names = (archive.credentialsSecret, None if encryption is None else encryption.secretName)
    secrets = dict.fromkeys(secret for secret in names if secret is not None)
    return [
        (f"archive-{number}", secret, str(pod_parts.archive_secret("archive", secret)))
        for number, secret in enumerate(secrets)
    ]


def driver(p: SparkPods, args: Sequence[str], *, executors: bool = True) -> dict[str, Any]:
    """Return the spec of the driver's pod. `executors`: it may create pods."""
    pod = driver_pod(p)
    (container,) = pod["containers"]
    container |= {
        "image": p.image,
        "imagePullPolicy": p.cluster.spec.imagePullPolicy,
        "args": list(args),
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *container["env"],
        ],
    }
    resources = pod_parts.resources(p.resources.driver)
    if resources:
        container["resources"] = resources
    if executors:
        container["volumeMounts"].insert(1, {"name": "template", "mountPath": TEMPLATE_DIR, "readOnly": True})
        pod["volumes"].insert(1, {"name": "template", "configMap": {"name": p.name}})
    account = {"serviceAccountName": p.name} if executors else {"automountServiceAccountToken": False}
    return {**account, **pod}


def driver_pod(p: SparkPods) -> dict[str, Any]:
    """Return the driver's pod without what Spark's operator sets: image, arguments, account and resources."""
    mounts: list[dict[str, Any]] = [{"name": "scratch", "mountPath": "/tmp"}]
    volumes: list[dict[str, Any]] = [{"name": "scratch", "emptyDir": {}}]
    if p.claim:
        mounts.append({"name": p.volume, "mountPath": p.claim})
        volumes.append({"name": p.volume, "persistentVolumeClaim": {"claimName": p.name}})
    if p.token:
        mounts.append({"name": "token", "mountPath": TOKEN_DIR, "readOnly": True})
        volumes.append({"name": "token", "secret": {"secretName": names.admin_secret(p.cluster.name)}})
    if p.https:
        mounts.append({"name": "ca", "mountPath": pod_parts.CA_DIR, "readOnly": True})
        volumes.append({"name": "ca", "secret": {"secretName": names.ca_cert_secret(p.cluster.name)}})
    for volume, secret, folder in p.secrets:
        mounts.append({"name": volume, "mountPath": folder, "readOnly": True})
        volumes.append({"name": volume, "secret": {"secretName": secret}})
    container: dict[str, Any] = {
        "name": DRIVER,
        "env": [{"name": "HOME", "value": "/tmp"}],
        "securityContext": pod_parts.container_security(),
        "volumeMounts": mounts,
        "terminationMessagePath": TERMINATION_LOG,
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "securityContext": pod_parts.pod_security(),
        "containers": [container],
        "volumes": volumes,
    }
    _where(p.cluster, pod)
    return pod
