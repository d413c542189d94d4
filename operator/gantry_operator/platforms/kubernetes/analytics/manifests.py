"""The Kubernetes objects of a cluster's report: CronJob, ServiceAccount, Role, volume, template of executor pods, and
the Secret with the page.

The CronJob belongs to the cluster. Its pod is the Spark driver (client mode). The driver creates executor pods, which
it owns and which end with it. With `engine: SparkApplication` the operator makes a SparkApplication for each run in its
place. All functions are pure; the operator applies their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gantry_operator.api import cron
from gantry_operator.api.analytics import Analytics
from gantry_operator.api.annotations import GROUP
from gantry_operator.api.base import parse_duration
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.tls_files import AUTHORITIES
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import access, pod_parts, spark, spark_application
from gantry_operator.platforms.kubernetes.manifests.spark import (
    DRIVER,
    TERMINATION_LOG,
    TOKEN_DIR,
    SparkPods,
)

COMPONENT = "analytics"
REPORTS = "/reports"
ANALYZE_ANNOTATION = f"{GROUP}/analyze"
"""Annotation on a BrokerCluster that starts a run. The value is any new text, such as the time."""
JOB_LABEL = names.REPORT_LABEL
"""Label on the pods and Jobs of a run. Its value is the cluster's name. NetworkPolicies know the pods by it."""

RETRIES = 2
"""Number of retries of a run after its driver died or failed."""
EXIT_PERMANENT = 3
"""Exit code of a driver after an error that a retry would repeat; see `gantry_spark.main`."""
DEADLINE_S = 6 * 3600
RATE = 32 * 1024 * 1024
"""Bytes a second that a run reads from all brokers together, so that clients are not slowed."""


def name_of(cluster: str) -> str:
    """Return the name of all objects of a cluster's report."""
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
    pods = pods_of(cluster, spec, image, token=token)
    out = [
        spark.service_account(pods),
        page_secret(cluster),
        role(cluster),
        spark.role_binding(pods),
        access.reports_policy(cluster, name_of(cluster.name), COMPONENT, JOB_LABEL),
    ]
    if spec.output.path is None:
        out.append(spark.claim(pods, spec.output.size, spec.output.className))
    if spec.engine == "SparkApplication":
        return out
    return [*out, spark.template(pods), cron_job(cluster, spec, broker_urls, pods, hold=hold)]


def application(
    cluster: BrokerCluster, broker_urls: Sequence[str], spark_image: str, *, token: bool
) -> dict[str, Any] | None:
    """Return a run as a SparkApplication; None: the spec asks for none. The arguments are those of `render`."""
    spec = cluster.spec.analytics
    if spec is None or spec.engine != "SparkApplication":
        return None
    pods = pods_of(cluster, spec, spec.image or spark_image, token=token)
    args = arguments(cluster, spec, broker_urls, token=token)
    return spark_application.application(pods, args, retries=RETRIES, deadline_s=DEADLINE_S)


def pods_of(cluster: BrokerCluster, spec: Analytics, image: str, *, token: bool) -> SparkPods:
    """Return the pods of the report."""
    secrets = spark.archive_secrets(cluster) if spec.source == "Archive" else []
    return SparkPods(
        cluster, name_of(cluster.name), COMPONENT, JOB_LABEL, image, spec.executors, spec.resources, spec.sparkConf,
        claim=REPORTS if spec.output.path is None else "", secrets=secrets, queue=spec.queue or "",
        token=token,
    )  # fmt: skip


def page_secret(cluster: BrokerCluster) -> dict[str, Any]:
    """Return the Secret into which the driver writes the page of the report, for the console. The page has keys of
    messages, so it is no ConfigMap, which more people may read.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(cluster, name_of(cluster.name), COMPONENT),
        "type": "Opaque",
    }


def role(cluster: BrokerCluster) -> dict[str, Any]:
    """Return the driver's rights: its executor pods, and changes of the Secret with the page."""
    pods = pods_of(cluster, cluster.spec.analytics or Analytics(), "", token=False)
    page = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name_of(cluster.name)], "verbs": ["patch"]}
    return spark.role(pods, [page])


def pod_labels(cluster: str) -> dict[str, str]:
    """Labels of driver and executors, by the name of the cluster."""
    return spark.labels_of(cluster, COMPONENT, JOB_LABEL)


def arguments(cluster: BrokerCluster, spec: Analytics, broker_urls: Sequence[str], *, token: bool) -> list[str]:
    """Return the report's arguments (`python -m gantry_spark.main`)."""
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
    if pod_parts.http_scheme(cluster) == "https":
        out += ["--ca-file", f"{pod_parts.CA_DIR}/{AUTHORITIES}"]
    return out


def _source(cluster: BrokerCluster, spec: Analytics, broker_urls: Sequence[str]) -> list[str]:
    """Return the arguments that say where the logs are."""
    if spec.source == "Brokers" or cluster.spec.archive is None:
        return ["--brokers", ",".join(broker_urls)]
    options = spark.archive_options(cluster)
    names_of = {"archive": "path", "keyFile": "key-file"}
    return [word for name, value in options.items() for word in (f"--{names_of.get(name, name)}", value)]


def spark_conf(cluster: BrokerCluster, spec: Analytics, image: str, *, token: bool) -> dict[str, str]:
    """Spark's configuration."""
    return spark.spark_conf(pods_of(cluster, spec, image, token=token))


def cron_job(
    cluster: BrokerCluster, spec: Analytics, broker_urls: Sequence[str], pods: SparkPods, *, hold: bool
) -> dict[str, Any]:
    """Return the schedule, under Kubernetes' own rules for history, deadlines and concurrency. A run that falls due
    while it is suspended starts afterwards, within the starting deadline.
    """
    schedule: dict[str, Any] = {
        "schedule": spec.schedule,
        "suspend": spec.suspend or hold,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 3600,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {
            "metadata": {"labels": spark.queued(pods)},
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
                    "spec": _driver(cluster, spec, broker_urls, pods),
                },
            },
        },
    }
    if spec.timeZone is not None:
        schedule["timeZone"] = spec.timeZone
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": names.metadata(cluster, name_of(cluster.name), COMPONENT),
        "spec": schedule,
    }


def _driver(cluster: BrokerCluster, spec: Analytics, broker_urls: Sequence[str], pods: SparkPods) -> dict[str, Any]:
    args = arguments(cluster, spec, broker_urls, token=pods.token)
    for key, value in sorted(spark.spark_conf(pods).items()):
        args += ["--conf", f"{key}={value}"]
    return spark.driver(pods, args)
