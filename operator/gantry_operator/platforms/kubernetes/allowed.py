"""The parts of a BrokerCluster that need an administrator's permission, because they select code or identity of a pod.

A user with the right to create BrokerClusters may lack the right to create pods. The operator creates pods with images
and Spark settings from the spec. It accepts only values that the chart allows, so that a BrokerCluster gives no access
to other pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.external import External
from gantry_operator.api.manifest import ManifestError, Problem
from gantry_operator.api.pod_template import PodTemplate
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.manifests.pod_template_merge import (
    images,
    needs_permission,
    security_annotations,
)

TUNING: Final = (
    "spark.broadcast.*", "spark.checkpoint.compress", "spark.cleaner.periodicGC.interval", "spark.default.parallelism",
    "spark.driver.cores", "spark.driver.maxResultSize", "spark.driver.memory", "spark.driver.memoryOverhead",
    "spark.driver.memoryOverheadFactor", "spark.dynamicAllocation.*", "spark.excludeOnFailure.*",
    "spark.executor.cores", "spark.executor.heartbeatInterval", "spark.executor.instances", "spark.executor.memory",
    "spark.executor.memoryOverhead", "spark.executor.memoryOverheadFactor", "spark.executor.pyspark.memory",
    "spark.io.compression.*", "spark.kryoserializer.buffer", "spark.kryoserializer.buffer.max", "spark.locality.*",
    "spark.memory.*", "spark.network.timeout", "spark.rdd.compress", "spark.reducer.*",
    "spark.scheduler.maxRegisteredResourcesWaitingTime", "spark.scheduler.minRegisteredResourcesRatio",
    "spark.serializer", "spark.shuffle.compress", "spark.shuffle.file.buffer", "spark.shuffle.io.*",
    "spark.shuffle.sort.bypassMergeThreshold", "spark.shuffle.spill.compress", "spark.speculation*",
    "spark.sql.adaptive.*", "spark.sql.autoBroadcastJoinThreshold", "spark.sql.broadcastTimeout",
    "spark.sql.execution.arrow.*", "spark.sql.files.*", "spark.sql.join.*", "spark.sql.maxConcurrentOutputFileWriters",
    "spark.sql.parquet.compression.codec", "spark.sql.parquet.enableVectorizedReader", "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions", "spark.stage.*", "spark.task.cpus", "spark.task.maxFailures",
)  # fmt: skip
"""Keys of `sparkConf` that are always allowed: they set amounts and speeds, never code or identity."""

_KUBERNETES: Final = (
    "spark.kubernetes.allocation.*", "spark.kubernetes.executor.apiPollingInterval",
    "spark.kubernetes.executor.limit.cores", "spark.kubernetes.executor.missingPodDetectDelta",
    "spark.kubernetes.executor.request.cores",
)  # fmt: skip
"""Spark's settings for Kubernetes that select no identity, template, volume, Secret or image."""

_NEVER: Final = {
    "they choose the pods' identity, template, volumes, Secrets or image": ("spark.kubernetes.*",),
    "they bring other code into the pods": (
        "spark.archives", "spark.files", "spark.jars*", "spark.plugins*", "spark.pyspark.*", "spark.python.*",
        "spark.submit.*", "spark.repl.*", "*.extraClassPath", "*.extraLibraryPath", "*.userClassPathFirst",
        "spark.extraListeners", "spark.sql.catalog.*", "spark.sql.extensions", "spark.sql.queryExecutionListeners",
        "spark.sql.streaming.streamingQueryListeners", "spark.metrics.conf*", "spark.executorEnv.*",
        "spark.*.plugin.class", "spark.shuffle.manager", "spark.yarn.*",
    ),
    "the operator sets them": (
        "spark.master", "spark.driver.host", "spark.driver.bindAddress", "spark.local.dir", "spark.authenticate*",
        "spark.io.encryption.*", "spark.network.crypto.*", "spark.network.sasl.*", "spark.ssl.*",
    ),
}  # fmt: skip
"""Prefixes that no chart can allow, with the reason."""

_BY_NAME: Final = {
    "they may load agents into the JVM": ("*JavaOptions",),
    "they hold credentials": ("*.access.key*", "*secret*", "*password*", "*token*", "*credential*", "*keytab*"),
}
"""Prefixes that the chart must allow by the full key: a wildcard does not cover them."""

HARMLESS_LABELS: Final = (
    "billing", "business-unit", "contact", "cost-center", "cost-centre", "costcenter", "department", "division",
    "email", "env", "environment", "owner", "project", "slack", "stage", "team",
)  # fmt: skip
"""Labels of pods that are always allowed: they say whose a pod is. Services, NetworkPolicies and webhooks select pods
by the others, so such a label could bring another application's traffic, a sidecar or a cloud identity to the pod.
"""
HARMLESS_ANNOTATIONS: Final = (
    "cluster-autoscaler.kubernetes.io/*", "karpenter.sh/do-not-disrupt", "karpenter.sh/do-not-evict",
    "kubectl.kubernetes.io/*", "prometheus.io/*", "descheduler.alpha.kubernetes.io/prefer-no-eviction",
    "kubernetes.io/description", "kubernetes.io/change-cause",
)  # fmt: skip
"""Annotations of pods that are always allowed, as are names without a slash. Programs of the cluster act on others."""
_INJECTORS: Final = ("*/inject", "*/agent-inject", "*/inject-*", "*/injection", "*/enabled")
_OFF: Final = ("false", "disabled", "no", "off")
"""Values that switch an injector off."""
HARMLESS_OF_SERVICES: Final = (
    "service.beta.kubernetes.io/aws-load-balancer-*", "service.beta.kubernetes.io/azure-load-balancer-*",
    "service.beta.kubernetes.io/do-loadbalancer-*", "service.beta.kubernetes.io/oci-load-balancer-*",
    "service.beta.kubernetes.io/scw-loadbalancer-*", "service.beta.kubernetes.io/exoscale-loadbalancer-*",
    "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-*", "service.beta.kubernetes.io/openstack-*",
    "service.beta.kubernetes.io/ibm-*", "service.beta.kubernetes.io/linode-loadbalancer-*",
    "service.kubernetes.io/*", "service.cloud.tencent.com/*", "service.kubernetes.io/ibm-*", "oci.oraclecloud.com/*",
    "oci-network-load-balancer.oraclecloud.com/*", "load-balancer.hetzner.cloud/*", "loadbalancer.openstack.org/*",
    "kubernetes.digitalocean.com/*", "kubernetes.civo.com/*", "cloud.google.com/*", "networking.gke.io/*",
    "metallb.io/address-pool", "metallb.universe.tf/address-pool", "kubernetes.io/description",
)  # fmt: skip
"""Annotations of `external` that are always allowed: they set the kind of a load balancer. Names without a slash, too.
"""
_NAMES_OR_ADDRESSES: Final = (
    "*hostname*", "*ipv4*", "*ipv6*", "*eip-allocations*", "*/ip*", "*-ip", "*-ips", "*resource-group*",
    "*security-group*", "*ssl-cert*", "*tls-secret*", "*load-balancer-id", "*loadbalancer-id", "*-name",
    "*private-link*", "*pls-*", "*access-log*", "*pip-*", "*static-ip*", "*floating*", "*reserved*",
)  # fmt: skip
"""Of those the ones that choose a name, an address, a certificate or another thing that somebody else may own."""
HOST_NAMES: Final = (
    "external-dns.alpha.kubernetes.io/hostname", "external-dns.alpha.kubernetes.io/internal-hostname",
    "external-dns.kubernetes.io/hostname", "external-dns.kubernetes.io/internal-hostname",
)  # fmt: skip
"""Annotations by which external-dns takes names in a DNS zone."""

_TUNING_VALUE: Final = re.compile(r"[A-Za-z0-9._:/+%@,=-]{0,256}")
_SYSTEM_PRIORITY: Final = "system-"


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    """Whether an entry matches a value. `*` stands for any text. Case counts."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))))


def matches(text: str, patterns: Iterable[str]) -> bool:
    return any(_regex(p).fullmatch(text) for p in patterns)


def _reason(key: str, table: dict[str, tuple[str, ...]]) -> str:
    lower = key.lower()
    return next((why for why, keys in table.items() if matches(lower, (k.lower() for k in keys))), "")


def never(key: str) -> str:
    """Why no chart can allow this key of `sparkConf`; empty: a chart can."""
    return "" if matches(key, _KUBERNETES) else _reason(key, _NEVER)


def bad_pattern(pattern: str) -> str:
    """Why this entry of the chart's allow-list for `sparkConf` is invalid; empty: it is valid."""
    if not pattern.startswith("spark."):
        return "it does not begin with 'spark.'"
    return "" if "*" in pattern else never(pattern)


def check(cluster: BrokerCluster, settings: OperatorSettings) -> None:
    """Check a spec. Raises ManifestError with every value that the chart does not allow."""
    problems = list(_problems(cluster, settings))
    if problems:
        raise ManifestError(problems)


def _problems(cluster: BrokerCluster, settings: OperatorSettings) -> Iterator[Problem]:
    spec = cluster.spec
    yield from _image("spec.image", spec.image, settings.broker_image, settings)
    priority = spec.placement.priorityClassName
    if priority is not None and priority.startswith(_SYSTEM_PRIORITY):
        yield Problem(
            "spec.placement.priorityClassName",
            priority,
            "it is for Kubernetes' own pods: write another PriorityClass, or leave it out",
        )
    for where, template in (
        ("spec.podTemplate", spec.podTemplate),
        ("spec.nameServers.podTemplate", spec.nameServers.podTemplate),
        ("spec.proxy.podTemplate", None if spec.proxy is None else spec.proxy.podTemplate),
    ):
        yield from pod_template_problems(where, template, settings)
    for where, outside in (
        ("spec.external", spec.external),
        ("spec.proxy.external", None if spec.proxy is None else spec.proxy.external),
    ):
        yield from service_problems(where, outside, settings)
    for field, jobs in (("analytics", spec.analytics), ("tables", spec.tables)):
        if jobs is None:
            continue
        yield from _image(f"spec.{field}.image", jobs.image, settings.spark_image, settings)
        for key, value in sorted(jobs.sparkConf.items()):
            why = _spark_setting(key, value, settings.allowed_spark_conf)
            if why:
                yield Problem(f"spec.{field}.sparkConf.{key}", None, why)  # The value may be a secret.


def pod_template_problems(where: str, template: PodTemplate | None, settings: OperatorSettings) -> Iterator[Problem]:
    """Return what an addition to pods asks for and the chart does not allow."""
    for part in needs_permission(template):
        if part not in settings.allowed_pod_template:
            yield Problem(
                f"{where}.spec",
                None,
                f"{part} brings code, data or rights into the pods and is not allowed: leave it out; an administrator "
                f"allows it by podTemplate.allowed: [{part}] in the values of the operator's chart",
            )
    for key in security_annotations(template) if "securityContext" not in settings.allowed_pod_template else ():
        yield Problem(
            f"{where}.metadata.annotations",
            key,
            "it sets AppArmor or seccomp of a container, as securityContext does, and is not allowed: leave it out; an "
            "administrator allows both by podTemplate.allowed: [securityContext] in the values of the operator's chart",
        )
    yield from _metadata_problems(f"{where}.metadata", template, settings)
    for image in images(template):
        yield from _image(f"{where}.spec", image, settings.broker_image, settings)
    priority = None if template is None else template.spec.get("priorityClassName")
    if priority is not None and str(priority).startswith(_SYSTEM_PRIORITY):
        yield Problem(f"{where}.spec", priority, "it is for Kubernetes' own pods: write another PriorityClass")


def _metadata_problems(where: str, template: PodTemplate | None, settings: OperatorSettings) -> Iterator[Problem]:
    """Labels that others select pods by, and annotations that other programs act on."""
    if template is None:
        return
    for key, value in sorted(template.metadata.labels.items()):
        if key in HARMLESS_LABELS or _injector_off(key, value) or _allowed_entry(key, value, settings.allowed_labels):
            continue
        yield Problem(
            f"{where}.labels",
            f"{key}={value}",
            "Services, NetworkPolicies and webhooks of others may select pods by it, so it is not allowed: leave it "
            f"out or write one of {', '.join(HARMLESS_LABELS)}; an administrator allows it by "
            f"podTemplate.allowedLabels: [{key}={value}] in the values of the operator's chart",
        )
    security = security_annotations(template)
    for key, value in sorted(template.metadata.annotations.items()):
        if (
            "/" not in key
            or key in security
            or matches(key, HARMLESS_ANNOTATIONS)
            or _injector_off(key, value)
            or _allowed_entry(key, value, settings.allowed_annotations)
        ):
            continue
        yield Problem(
            f"{where}.annotations",
            key,
            "programs of the cluster may act on it (a sidecar, a role in a cloud, a network), so it is not allowed: "
            f"leave it out; an administrator allows it by podTemplate.allowedAnnotations: [{key}] in the values of the "
            "operator's chart",
        )


def _injector_off(key: str, value: str) -> bool:
    return value.lower() in _OFF and matches(key, _INJECTORS)


def _allowed_entry(key: str, value: str, entries: Iterable[str]) -> bool:
    """Whether the chart allows a key (with any value), or this `key=value`. `*` stands for any text."""
    return any(matches(f"{key}={value}" if "=" in entry else key, (entry,)) for entry in entries)


def service_problems(where: str, external: External | None, settings: OperatorSettings) -> Iterator[Problem]:
    """Annotations of Services that take a name or an address, or that a program of the cluster acts on."""
    for key, value in sorted(external.annotations.items()) if external is not None else ():
        if _allowed_entry(key, value, settings.allowed_external_annotations):
            continue
        if key in HOST_NAMES:
            for name in value.split(","):
                host = name.strip().rstrip(".").lower()
                if not matches(host, (h.lower() for h in settings.allowed_hosts)):
                    yield Problem(
                        f"{where}.annotations.{key}",
                        name.strip(),
                        "external-dns would take this name in your DNS zone, so it is not allowed: leave it out; an "
                        f"administrator allows it by external.allowedHosts: [{host or 'NAME'}] (* for any text) in the "
                        "values of the operator's chart",
                    )
        elif "/" in key and (not matches(key, HARMLESS_OF_SERVICES) or matches(key.lower(), _NAMES_OR_ADDRESSES)):
            yield Problem(
                f"{where}.annotations",
                key,
                "programs of the cluster may take a name or an address by it, so it is not allowed: leave it out; an "
                f"administrator allows it by external.allowedAnnotations: [{key}] in the values of the operator's "
                "chart",
            )


def _image(field: str, image: str | None, own: str, settings: OperatorSettings) -> Iterator[Problem]:
    if image is None or image == own or matches(image, settings.allowed_images):
        return
    allowed = ", ".join(filter(None, (own, *settings.allowed_images))) or "none"
    yield Problem(
        field,
        image,
        f"it is not allowed: leave it out or write one of {allowed}; an administrator allows more by image.allowed "
        "in the values of the operator's chart",
    )


def _spark_setting(key: str, value: str, allowed: Iterable[str]) -> str:
    """Why a setting is refused; empty: it is allowed."""
    why = never(key)
    if why:
        return f"settings like this one are never allowed, since {why}: leave it out"
    patterns = tuple(allowed)
    why = _reason(key, _BY_NAME)
    if why and key not in patterns:
        return (
            f"it is not allowed, since settings like this one are allowed only by their very name ({why}): leave it "
            f"out; an administrator allows it by {key} in analytics.allowedSparkConf of the operator's chart"
        )
    tuning = matches(key, TUNING)
    if not tuning and not matches(key, patterns):
        return (
            "it is not allowed, since it is none of the settings that only tune: leave it out; an administrator allows "
            "more by analytics.allowedSparkConf in the values of the operator's chart"
        )
    if "$(" in value or not value.isprintable():
        return "the value has $( or a control character, which would be filled in or cut: leave it out"
    if tuning and not matches(key, patterns) and _TUNING_VALUE.fullmatch(value) is None:
        return "the value has characters that no number or size has: write letters, digits and . _ : / + % @ , = -"
    return ""
