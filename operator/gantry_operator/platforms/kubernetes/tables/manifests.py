"""The Kubernetes objects of a cluster's tables: the Job or SparkApplication of a run, and what it needs. Pure.

It has one name, so the API server itself admits one at a time. The pod of the Job is the driver; with executors it is
Spark's (client mode), without it reads and writes itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gantry_broker.contracts.table_runs import TERMINATION_LIMIT, RunOrder, TableOrder
from pydantic import ValidationError

from gantry_operator.access.wanted import secret_name
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.table import Tables
from gantry_operator.plan.plan import Plan
from gantry_operator.plan.tls_files import AUTHORITIES
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import access, name_servers, pod_parts, spark, spark_application
from gantry_operator.platforms.kubernetes.manifests.spark import TERMINATION_LOG, SparkPods

COMPONENT: Final = "tables"
VOLUME: Final = "/tables"
CATALOG_DIR: Final = "/etc/gantry-catalog"
USER_DIR: Final = "/etc/gantry-user"
DEADLINE_S: Final = 6 * 3600
RETRIES: Final = 2
"""Drivers that Spark's operator makes after the loss of one. The offsets in a table let one of two commit."""
RUN_LABEL: Final = f"{names.TABLES_LABEL}-run"


class NotPossible(ValueError):
    """The spec lacks something that a run needs. The message says what to write."""


def name_of(cluster: str) -> str:
    """Return the name of all objects of a cluster's tables."""
    return f"{cluster}-tables"


def pods_of(cluster: BrokerCluster, spec: Tables, spark_image: str) -> SparkPods:
    """Return the pods of a run. Raises NotPossible."""
    if not spark_image:  # Then the chart grants no rights to Jobs.
        raise NotPossible("no image with Spark is known: name one in the operator's chart")
    image = spec.image or spark_image
    archive = cluster.spec.archive
    if spec.source == "Archive" and (archive is None or archive.url.startswith("file:")):
        raise NotPossible(
            "spec.tables.source is Archive, but there is no archive that Spark's pods reach: write spec.archive with a "
            "bucket, or source: Brokers"
        )
    secrets = spark.archive_secrets(cluster) if spec.source == "Archive" else []
    if spec.catalogSecret is not None:
        secrets.append(("catalog", spec.catalogSecret, CATALOG_DIR))
    if spec.user is not None:
        secrets.append(("user", secret_name(cluster.name, spec.user), USER_DIR))
    elif cluster.spec.security.mode() == "Enabled":
        raise NotPossible(
            "the cluster has authentication: write spec.tables.user, the name of a BrokerUser that may read the topics"
        )
    return SparkPods(
        cluster, name_of(cluster.name), COMPONENT, names.TABLES_LABEL, image, spec.executors, spec.resources,
        spec.sparkConf, claim="" if spec.catalog else VOLUME, volume=COMPONENT, secrets=secrets,
        queue=spec.queue or "",
    )  # fmt: skip


def objects(pods: SparkPods, spec: Tables) -> list[dict[str, Any]]:
    """Return what must exist before a run."""
    out = [access.reports_policy(pods.cluster, pods.name, COMPONENT, names.TABLES_LABEL)]
    if pods.claim:
        out.append(spark.claim(pods, spec.volume.size, spec.volume.className))
    if pods.executors:
        out += [spark.service_account(pods), spark.role(pods), spark.role_binding(pods)]
    if pods.executors and spec.engine == "Job":
        out.append(spark.template(pods))
    return out


def order(
    cluster: BrokerCluster, plan: Plan, pods: SparkPods, spec: Tables, name: str, tables: Sequence[TableOrder],
    lasts_s: float,
) -> RunOrder:  # fmt: skip
    """Return the order of a run."""
    catalog = dict(spec.catalog) or {
        "type": "sql",
        "uri": f"sqlite:///{VOLUME}/catalog.db",
        "warehouse": f"file://{VOLUME}",
    }
    tls = cluster.spec.security.tls.mode != "Disabled"
    return RunOrder(
        run=name,
        name_servers=";".join(name_servers.addresses(cluster, plan)),
        tables=list(tables),
        catalog=catalog,
        catalog_secret=None if spec.catalogSecret is None else CATALOG_DIR,
        namespace=spec.namespace,
        credentials=None if spec.user is None else USER_DIR,
        archive=spark.archive_options(cluster) if spec.source == "Archive" else {},
        tls=tls,
        ca_file=f"{pod_parts.CA_DIR}/{AUTHORITIES}" if tls else None,
        spark=spec.executors > 0,
        # Spark's operator mounts the settings, with its own.
        conf=spark.spark_conf(pods) if spec.executors and spec.engine == "Job" else {},
        lasts_s=lasts_s,
        report=TERMINATION_LOG,
        report_limit=TERMINATION_LIMIT,
    )


def job(pods: SparkPods, ordered: RunOrder) -> dict[str, Any]:
    """Return the Job of one run. It is not repeated: the next run comes anyway, and continues."""
    labels = spark.labels(pods)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **pods.metadata,
            "labels": {**pods.metadata.get("labels", {}), **spark.queued(pods), RUN_LABEL: ordered.run},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_S,
            "template": {
                "metadata": {"labels": {**labels, RUN_LABEL: ordered.run}},
                "spec": spark.driver(pods, _arguments(ordered), executors=pods.executors > 0),
            },
        },
    }


def application(pods: SparkPods, ordered: RunOrder) -> dict[str, Any]:
    """Return one run as a SparkApplication. It is repeated only after the loss of its driver, and leaves the driver's
    pod with the report.
    """
    app = spark_application.application(
        pods, _arguments(ordered), retries=RETRIES, deadline_s=DEADLINE_S, restart="OnInfrastructureFailure",
        retain="Always",
    )  # fmt: skip
    app["metadata"]["labels"][RUN_LABEL] = ordered.run
    return app


def _arguments(ordered: RunOrder) -> list[str]:
    return ["tables", "--order", ordered.model_dump_json(exclude_defaults=True)]


def order_of(run: Mapping[str, Any]) -> RunOrder | None:
    """Return the order in a Job or a SparkApplication; None: it has none that this version can read."""
    try:
        spec = run["spec"]
        args = spec["driverArgs"] if "driverArgs" in spec else spec["template"]["spec"]["containers"][0]["args"]
        return RunOrder.model_validate_json(args[args.index("--order") + 1])
    except (KeyError, IndexError, ValueError, TypeError, ValidationError):
        return None
