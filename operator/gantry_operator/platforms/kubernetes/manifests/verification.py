"""The CronJob that reads the archive of a cluster back (`spec.archive.verify`). Pure.

Its pod has the broker's image, account and Secrets of the archive, and talks to the object store only. What it finds is
written into the archive, where the brokers read it.
"""

from __future__ import annotations

from typing import Any, Final

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.process_config import ArchiveFiles
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import pod_parts

RETRIES: Final = 2
DEADLINE_S: Final = 20 * 3600
"""Seconds after which a run is ended: 4 TiB at the usual rate."""
RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


def name_of(cluster: str) -> str:
    """Return the CronJob's name."""
    return f"{cluster}-verify"


def problem(cluster: BrokerCluster, *, rights: bool) -> str:
    """Return why a schedule of the spec is not carried out; empty: it is, or there is none. `rights`: to CronJobs."""
    archive = cluster.spec.archive
    if archive is None or archive.verify is None:
        return ""
    if not rights:
        return "archive.verify: the operator has no right to CronJobs: set analytics.enabled of its chart"
    if archive.url.startswith("file:"):
        return "archive.verify: the pod of a CronJob does not have the folder of archive.url: write a bucket"
    return ""


def objects(cluster: BrokerCluster, image: str) -> list[dict[str, Any]]:
    """Return the CronJob; none without a schedule, or for a folder, which its pod does not have."""
    archive = cluster.spec.archive
    if archive is None or archive.verify is None or problem(cluster, rights=True):
        return []
    schedule: dict[str, Any] = {
        "schedule": archive.verify.schedule,
        "suspend": bool(cluster.spec.hibernate),
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 3600,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 2,
        "jobTemplate": {
            "spec": {
                "backoffLimit": RETRIES,
                "activeDeadlineSeconds": DEADLINE_S,
                "template": {"metadata": {"labels": pod_labels(cluster.name)}, "spec": _pod(cluster, image)},
            },
        },
    }
    if archive.verify.timeZone is not None:
        schedule["timeZone"] = archive.verify.timeZone
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": names.metadata(cluster, name_of(cluster.name), names.VERIFICATION),
            "spec": schedule,
        }
    ]


def pod_labels(cluster: str) -> dict[str, str]:
    """Labels of the pod. The cluster's own label is absent: the pod is no member, and no policy of members is its."""
    return {
        "app.kubernetes.io/name": "gantry",
        "app.kubernetes.io/instance": cluster,
        names.COMPONENT_LABEL: names.VERIFICATION,
    }


def _pod(cluster: BrokerCluster, image: str) -> dict[str, Any]:
    assert cluster.spec.archive is not None
    order = ArchiveFiles(cluster.metadata.uid, pod_parts.archive_secret).verify(cluster.spec.archive)
    volumes, mounts = (
        [part for part in parts if str(part["name"]).startswith("archive-")]
        for parts in (pod_parts.archive_volumes(cluster), pod_parts.archive_mounts(cluster))
    )
    container = {
        "name": "verify",
        "image": image,
        "imagePullPolicy": cluster.spec.imagePullPolicy,
        "command": [
            "python", "-m", "gantry_broker.archive.verifying",
            "--order", order.model_dump_json(exclude_defaults=True),
        ],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "securityContext": pod_parts.container_security(),
        "resources": RESOURCES,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
    }  # fmt: skip
    placement = cluster.spec.placement
    pod = pod_parts.pod_spec(cluster, names.service_account(cluster.name)) | {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [*volumes, {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
    }
    if placement.nodeSelector:
        pod["nodeSelector"] = dict(placement.nodeSelector)
    if placement.tolerations:
        pod["tolerations"] = [t.model_dump(exclude_none=True) for t in placement.tolerations]
    return pod
