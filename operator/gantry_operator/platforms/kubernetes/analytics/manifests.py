"""The Kubernetes objects of a cluster's report: CronJob, ServiceAccount, Role, volume, template of executor pods, and
the Secret with the page.

The CronJob belongs to the cluster. Its pod is the Spark driver (client mode). The driver creates executor pods, which
it owns and which end with it. All functions are pure; the operator applies their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gantry_operator.api import GROUP, BrokerCluster, cron
from gantry_operator.api.analytics import Analytics
from gantry_operator.api.archive import ENCRYPTION_KEY
from gantry_operator.api.base import parse_duration, parse_quantity
from gantry_operator.plan import AUTHORITIES
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import access, pod_parts

COMPONENT = "analytics"
REPORTS = "/reports"
TOKEN_DIR = "/etc/gantry-admin"
TEMPLATE_DIR = "/etc/gantry-spark"
TEMPLATE = "executor.yaml"
SCRATCH = "/tmp/spark"
TERMINATION_LOG = "/dev/termination-log"
DRIVER_PORT = 7078
BLOCK_PORT = 7079
ANALYZE_ANNOTATION = f"{GROUP}/analyze"
"""Annotation on a BrokerCluster that starts a run. The value is any new text, such as the time."""
JOB_LABEL = names.REPORT_LABEL
"""Label on the pods and Jobs of a run. Its value is the cluster's name. NetworkPolicies know the pods by it."""

DRIVER = "driver"
RETRIES = 2
"""Number of retries of a run after its driver died or failed."""
EXIT_PERMANENT = 3
"""Exit code of a driver after an error that a retry would repeat; see `gantry_spark.main`."""
DEADLINE_S = 6 * 3600
DEFAULT_MEMORY = 1536 * 1024 * 1024
OVERHEAD = 0.4
"""Share of a pod's memory outside the JVM's heap: Python workers, Arrow, the JVM itself."""
RATE = 32 * 1024 * 1024
"""Bytes a second that a run reads from all brokers together, so that clients are not slowed."""


def name_of(cluster: str) -> str:
    """The name of all objects of a cluster's report."""
    return f"{cluster}-analytics"


def render(
    cluster: BrokerCluster, broker_urls: Sequence[str], spark_image: str, *, token: bool, hold: bool = False
) -> list[dict[str, Any]]:
    """All objects, in the order in which they are applied; empty without `spec.analytics`.

    `broker_urls`: HTTP base URLs of all members, each with its group before it (`a=http://...`). `token`: whether the
    cluster's admin Secret protects them. `hold`: a run outside the schedule is active, so the schedule must start none.
    Raises cron.ScheduleError for an invalid schedule, and ValueError without an image.
    """
    spec = cluster.spec.analytics
    if spec is None:
        return []
    cron.parse(spec.schedule)
    cron.zone(spec.timeZone)
    image = spec.image or spark_image
    if not image:
        raise ValueError("spec.analytics.image: no image with Spark is known; name one here or in the operator's chart")
    out = [
        service_account(cluster),
        page_secret(cluster),
        role(cluster),
        role_binding(cluster),
        access.reports_policy(cluster, name_of(cluster.name), COMPONENT),
    ]
    if spec.output.path is None:
        out.append(claim(cluster, spec))
    return [*out, template(cluster, spec), cron_job(cluster, spec, broker_urls, image, token=token, hold=hold)]


def service_account(cluster: BrokerCluster) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.metadata(cluster, name_of(cluster.name), COMPONENT),
    }


def page_secret(cluster: BrokerCluster) -> dict[str, Any]:
    """The Secret into which the driver writes the page of the report, for the console. The page has keys of messages,
    so it is no ConfigMap, which more people may read.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(cluster, name_of(cluster.name), COMPONENT),
        "type": "Opaque",
    }


def role(cluster: BrokerCluster) -> dict[str, Any]:
    """The driver's rights: create, watch, label and delete its executor pods; change the Secret with the page.

    `spark_conf` turns off Spark's Services, config maps and volume claims for executors, so that the driver needs no
    right that would let it change those of brokers.
    """
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": names.metadata(cluster, name_of(cluster.name), COMPONENT),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["pods"],
                "verbs": ["create", "get", "list", "watch", "delete", "deletecollection", "patch"],
            },
            {
                "apiGroups": [""],
                "resources": ["secrets"],
                "resourceNames": [name_of(cluster.name)],
                "verbs": ["patch"],
            },
        ],
    }


def role_binding(cluster: BrokerCluster) -> dict[str, Any]:
    name = name_of(cluster.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": names.metadata(cluster, name, COMPONENT),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}],
    }


def claim(cluster: BrokerCluster, spec: Analytics) -> dict[str, Any]:
    """The volume for reports and state."""
    wanted: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": spec.output.size}},
    }
    if spec.output.className is not None:
        wanted["storageClassName"] = spec.output.className
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": names.metadata(cluster, name_of(cluster.name), COMPONENT),
        "spec": wanted,
    }


def pod_labels(cluster: str) -> dict[str, str]:
    """Labels of driver and executors. The cluster's own label is absent, because its NetworkPolicy would separate
    executors and driver.
    """
    return {
        "app.kubernetes.io/name": "gantry",
        "app.kubernetes.io/instance": cluster,
        names.COMPONENT_LABEL: COMPONENT,
        JOB_LABEL: cluster,
    }


def template(cluster: BrokerCluster, spec: Analytics) -> dict[str, Any]:
    """The ConfigMap with the template of executor pods: settings that Spark's configuration lacks."""
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": pod_labels(cluster.name)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_parts.pod_security(),
            "containers": [
                {
                    "name": "executor",
                    "securityContext": pod_parts.container_security(),
                    "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }
    _where(cluster, pod["spec"])
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(cluster, name_of(cluster.name), COMPONENT),
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


def arguments(cluster: BrokerCluster, spec: Analytics, broker_urls: Sequence[str], *, token: bool) -> list[str]:
    """The report's arguments (`python -m gantry_spark.main`)."""
    out = [
        "report",
        *_source(cluster, spec, broker_urls),
        "--name", cluster.name,
        "--out", spec.output.path or REPORTS,
        "--since", f"{max(1, int(parse_duration(spec.window)))}s",
        "--reserved-hours", str(cluster.spec.broker.fileReservedTime),
        "--rate", str(RATE),
        "--history", str(spec.reportsHistory),
        "--termination-log", TERMINATION_LOG,
        "--page-secret", name_of(cluster.name),
    ]  # fmt: skip
    for topic in spec.topics:
        out += ["--topics", topic]
    if token:
        out += ["--token-file", f"{TOKEN_DIR}/{pod_parts.TOKEN_KEY}"]
    if _https(cluster):
        out += ["--ca-file", f"{pod_parts.CA_DIR}/{AUTHORITIES}"]
    return out


def _source(cluster: BrokerCluster, spec: Analytics, broker_urls: Sequence[str]) -> list[str]:
    """The arguments that say where the logs are."""
    archive = cluster.spec.archive
    if spec.source == "Brokers" or archive is None:
        return ["--brokers", ",".join(broker_urls)]
    found = ["--path", archive.url]
    if archive.endpoint is not None:
        found += ["--endpoint", archive.endpoint]
    if archive.region is not None:
        found += ["--region", archive.region]
    if archive.credentialsSecret is not None:
        found += ["--credentials", str(pod_parts.archive_secret("archive", archive.credentialsSecret))]
    if archive.encryption is not None:
        secret = pod_parts.archive_secret("archive", archive.encryption.secretName)
        found += ["--key-file", str(secret / ENCRYPTION_KEY)]
    return found


def _archive_secrets(cluster: BrokerCluster, spec: Analytics) -> dict[str, str]:
    """The Secrets that Spark needs for the archive, with the folder of each."""
    archive = cluster.spec.archive
    if spec.source == "Brokers" or archive is None:
        return {}
    encryption = archive.encryption
    names_of = (archive.credentialsSecret, None if encryption is None else encryption.secretName)
    return {secret: str(pod_parts.archive_secret("archive", secret)) for secret in names_of if secret is not None}


def _https(cluster: BrokerCluster) -> bool:
    return pod_parts.http_scheme(cluster) == "https"


def spark_conf(cluster: BrokerCluster, spec: Analytics, image: str, *, token: bool) -> dict[str, str]:
    """Spark's configuration. The user's `sparkConf` comes last and takes precedence. Kubernetes replaces `$(NAME)`
    with variables of the driver's container.
    """
    driver = _heap(spec.resources.driver.limits or spec.resources.driver.requests)
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
        "spark.sql.shuffle.partitions": str(max(2, 2 * spec.executors)),
    }
    if spec.executors == 0:
        return {"spark.master": "local[*]", **conf, **spec.sparkConf}
    limits, requests = spec.resources.executor.limits, spec.resources.executor.requests
    cores = max(1, int(parse_quantity(limits.get("cpu") or requests.get("cpu") or "1")))
    total = int(parse_quantity(limits.get("memory") or requests.get("memory") or str(DEFAULT_MEMORY)))
    heap = _heap({"memory": str(total)})
    conf |= {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.kubernetes.namespace": cluster.namespace,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": cluster.spec.imagePullPolicy,
        "spark.kubernetes.executor.podTemplateFile": f"{TEMPLATE_DIR}/{TEMPLATE}",
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_PORT),
        "spark.executor.instances": str(spec.executors),
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
    if token:
        conf[f"spark.kubernetes.executor.secrets.{names.admin_secret(cluster.name)}"] = TOKEN_DIR
    if _https(cluster):
        conf[f"spark.kubernetes.executor.secrets.{names.ca_cert_secret(cluster.name)}"] = pod_parts.CA_DIR
    for secret, folder in _archive_secrets(cluster, spec).items():
        conf[f"spark.kubernetes.executor.secrets.{secret}"] = folder
    if spec.output.path is None:
        # The volume can be mounted on one node only, so executors run on the driver's node.
        volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.reports"
        conf |= {
            f"{volume}.mount.path": REPORTS,
            f"{volume}.options.claimName": name_of(cluster.name),
            "spark.kubernetes.executor.node.selector.kubernetes.io/hostname": "$(NODE_NAME)",
        }
    return conf | spec.sparkConf


def _heap(resources: Mapping[str, str]) -> int:
    """MiB of a pod's memory for the JVM's heap."""
    total = int(parse_quantity(resources.get("memory") or str(DEFAULT_MEMORY)))
    return max(512, int(total * (1 - OVERHEAD)) // 1024 // 1024)


def cron_job(
    cluster: BrokerCluster, spec: Analytics, broker_urls: Sequence[str], image: str, *, token: bool, hold: bool
) -> dict[str, Any]:
    """The schedule, under Kubernetes' own rules for history, deadlines and concurrency. A run that falls due while
    it is suspended starts afterwards, within the starting deadline.
    """
    wanted: dict[str, Any] = {
        "schedule": spec.schedule,
        "suspend": spec.suspend or hold,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 3600,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {
            "metadata": {"labels": pod_labels(cluster.name)},
            "spec": {
                "backoffLimit": RETRIES,
                "activeDeadlineSeconds": DEADLINE_S,
                # The next driver starts only after the last one has ended: never two at once.
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {
                    "rules": [
                        {
                            "action": "FailJob",
                            "onExitCodes": {"containerName": DRIVER, "operator": "In", "values": [EXIT_PERMANENT]},
                        },
                        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    ]
                },
                "template": {
                    "metadata": {"labels": pod_labels(cluster.name)},
                    "spec": _driver(cluster, spec, broker_urls, image, token=token),
                },
            },
        },
    }
    if spec.timeZone is not None:
        wanted["timeZone"] = spec.timeZone
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": names.metadata(cluster, name_of(cluster.name), COMPONENT),
        "spec": wanted,
    }


def _driver(
    cluster: BrokerCluster, spec: Analytics, broker_urls: Sequence[str], image: str, *, token: bool
) -> dict[str, Any]:
    args = arguments(cluster, spec, broker_urls, token=token)
    for key, value in sorted(spark_conf(cluster, spec, image, token=token).items()):
        args += ["--conf", f"{key}={value}"]
    mounts: list[dict[str, Any]] = [
        {"name": "scratch", "mountPath": "/tmp"},
        {"name": "template", "mountPath": TEMPLATE_DIR, "readOnly": True},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "template", "configMap": {"name": name_of(cluster.name)}},
    ]
    if spec.output.path is None:
        mounts.append({"name": "reports", "mountPath": REPORTS})
        volumes.append({"name": "reports", "persistentVolumeClaim": {"claimName": name_of(cluster.name)}})
    if token:
        mounts.append({"name": "token", "mountPath": TOKEN_DIR, "readOnly": True})
        volumes.append({"name": "token", "secret": {"secretName": names.admin_secret(cluster.name)}})
    if _https(cluster):
        mounts.append({"name": "ca", "mountPath": pod_parts.CA_DIR, "readOnly": True})
        volumes.append({"name": "ca", "secret": {"secretName": names.ca_cert_secret(cluster.name)}})
    for number, (secret, folder) in enumerate(_archive_secrets(cluster, spec).items()):
        mounts.append({"name": f"archive-{number}", "mountPath": folder, "readOnly": True})
        volumes.append({"name": f"archive-{number}", "secret": {"secretName": secret}})
    container: dict[str, Any] = {
        "name": DRIVER,
        "image": image,
        "imagePullPolicy": cluster.spec.imagePullPolicy,
        "args": args,
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "HOME", "value": "/tmp"},
        ],
        "securityContext": pod_parts.container_security(),
        "volumeMounts": mounts,
        "terminationMessagePath": TERMINATION_LOG,
    }
    resources = pod_parts.resources(spec.resources.driver)
    if resources:
        container["resources"] = resources
    pod: dict[str, Any] = {
        "serviceAccountName": name_of(cluster.name),
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "securityContext": pod_parts.pod_security(),
        "containers": [container],
        "volumes": volumes,
    }
    _where(cluster, pod)
    return pod
