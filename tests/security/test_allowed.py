"""A user that may create a BrokerCluster cannot create arbitrary pods with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import ManifestError, parse_manifest
from gantry_operator.platforms.kubernetes import allowed
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings
from gantry_operator.platforms.kubernetes.operator import settings_from

ROOT = Path(__file__).parents[2]
SETTINGS = OperatorSettings("gantry-broker:1", "gantry-spark:1")


def refusal(spec: dict[str, Any], settings: OperatorSettings = SETTINGS) -> str:
    """What is said against it; empty: nothing."""
    try:
        allowed.check(BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], **spec), settings)
    except ManifestError as error:
        return str(error)
    return ""


def with_conf(key: str, value: str = "x") -> dict[str, Any]:
    return {"analytics": {"sparkConf": {key: value}}}


NEVER = (
    "spark.kubernetes.authenticate.driver.serviceAccountName",
    "spark.kubernetes.authenticate.executor.serviceAccountName",
    "spark.kubernetes.executor.podTemplateFile", "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.executor.volumes.hostPath.root.mount.path", "spark.kubernetes.executor.secrets.other",
    "spark.kubernetes.executor.secretKeyRef.A", "spark.kubernetes.container.image", "spark.kubernetes.namespace",
    "spark.kubernetes.executor.container.image", "spark.kubernetes.file.upload.path", "spark.jars",
    "spark.jars.packages",
    "spark.jars.repositories", "spark.files", "spark.archives", "spark.submit.pyFiles", "spark.pyspark.python",
    "spark.driver.extraClassPath", "spark.executor.extraClassPath", "spark.executor.extraLibraryPath", "spark.plugins",
    "spark.extraListeners", "spark.sql.extensions", "spark.executorEnv.LD_PRELOAD", "spark.master",
    "spark.python.daemon.module",
)  # fmt: skip


@pytest.mark.parametrize("key", NEVER)
def test_settings_that_choose_identity_or_code_are_refused_whatever_the_chart_allows(key: str) -> None:
    everything = OperatorSettings("b", "s", allowed_spark_conf=("spark.*", key))
    for settings in (SETTINGS, everything):
        said = refusal(with_conf(key), settings)
        assert key in said
        assert "never allowed, since" in said
    assert allowed.bad_pattern(key), "nor does the operator start with such a chart"
    with pytest.raises(SystemExit, match=re.escape(key)):
        settings_from({"GANTRY_BROKER_IMAGE": "b", "GANTRY_ALLOWED_SPARK_CONF": key})


@pytest.mark.parametrize(
    "key", ["spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions", "spark.hadoop.fs.s3a.secret.key"]
)
def test_credentials_and_jvm_options_are_allowed_only_by_their_very_name(key: str) -> None:
    assert "analytics.allowedSparkConf" in refusal(with_conf(key))
    assert key in refusal(with_conf(key), OperatorSettings("b", "s", allowed_spark_conf=("spark.*",)))
    assert refusal(with_conf(key, "-a -b"), OperatorSettings("b", "s", allowed_spark_conf=(key,))) == ""


def test_a_refused_setting_does_not_show_its_value() -> None:
    assert "hunter2" not in refusal(with_conf("spark.hadoop.fs.s3a.secret.key", "hunter2"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.shuffle.partitions", "8"), ("spark.executor.memory", "2g"), ("spark.memory.fraction", "0.7"),
        ("spark.sql.adaptive.enabled", "true"), ("spark.dynamicAllocation.enabled", "false"),
        ("spark.serializer", "org.apache.spark.serializer.KryoSerializer"), ("spark.task.maxFailures", "3"),
    ],
)  # fmt: skip
def test_settings_that_tune_are_allowed(key: str, value: str) -> None:
    assert refusal(with_conf(key, value)) == ""


@pytest.mark.parametrize("value", ["1g -javaagent:x", "$(POD_NAME)", "1\n2", "x" * 257])
def test_a_setting_that_tunes_has_a_plain_value(value: str) -> None:
    assert "the value has" in refusal(with_conf("spark.executor.memory", value))


def test_other_settings_need_the_chart() -> None:
    key = "spark.hadoop.fs.s3a.endpoint"
    said = refusal(with_conf(key, "http://s3.example"))
    assert key in said
    assert "analytics.allowedSparkConf" in said
    more = OperatorSettings("b", "s", allowed_spark_conf=("spark.hadoop.fs.s3a.*",))
    assert refusal(with_conf(key, "http://s3.example"), more) == ""
    assert refusal(with_conf("spark.hadoop.fs.gs.endpoint"), more)


def test_images_are_those_of_the_chart() -> None:
    assert refusal({"image": "gantry-broker:1", "analytics": {"image": "gantry-spark:1"}}) == ""
    for spec, field in (
        ({"image": "evil:1"}, "spec.image"),
        ({"image": "gantry-spark:1"}, "spec.image"),
        ({"image": "gantry-broker:1@sha256:00"}, "spec.image"),
        ({"analytics": {"image": "evil:1"}}, "spec.analytics.image"),
    ):
        said = refusal(spec)
        assert said.startswith(field), said
        assert "image.allowed" in said
    more = OperatorSettings("gantry-broker:1", "", allowed_images=("registry.test/gantry/*", "gantry-broker:2"))
    for image in ("registry.test/gantry/broker:9", "gantry-broker:2"):
        assert refusal({"image": image, "analytics": {"image": image}}, more) == ""
    for image in (
        "registry.test/other",
        "gantry-broker:22",
        "xregistry.test/gantry/broker:9",
        "registryxtest/gantry/b",
    ):
        assert refusal({"image": image}, more)


def test_priority_above_all_pods_is_refused() -> None:
    assert "priorityClassName" in refusal({"placement": {"priorityClassName": "system-node-critical"}})
    assert refusal({"placement": {"priorityClassName": "messaging"}}) == ""


def test_all_problems_are_named_at_once() -> None:
    said = refusal({"image": "evil", "analytics": {"image": "evil", "sparkConf": {"spark.jars": "local:///a.jar"}}})
    assert [line.split(" ")[0].rstrip(":") for line in said.splitlines()] == [
        "spec.image", "spec.analytics.image", "spec.analytics.sparkConf.spark.jars",
    ]  # fmt: skip


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_examples_need_nothing_that_the_chart_does_not_allow(path: Path) -> None:
    values = yaml.safe_load((ROOT / "helm/gantry/values.yaml").read_text())
    environment = {
        "GANTRY_BROKER_IMAGE": values["image"]["broker"],
        "GANTRY_SPARK_IMAGE": values["image"]["spark"],
        "GANTRY_ALLOWED_IMAGES": ",".join(values["image"]["allowed"]),
        "GANTRY_ALLOWED_SPARK_CONF": ",".join(values["analytics"]["allowedSparkConf"]),
    }
    template = (ROOT / "helm/gantry/templates/deployment.yaml").read_text()
    assert all(f"name: {name}\n" in template for name in environment)
    settings = settings_from(environment)
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] == "BrokerCluster":
            allowed.check(parse_manifest(document), settings)


def test_settings_come_from_the_environment() -> None:
    made = settings_from(
        {
            "GANTRY_BROKER_IMAGE": "b",
            "GANTRY_ALLOWED_IMAGES": "x/*, y",
            "GANTRY_ALLOWED_SPARK_CONF": "spark.ui.port",
            "GANTRY_SERVICE": "gantry-operator",
        }
    )
    assert made.service == "gantry-operator"
    assert (made.allowed_images, made.allowed_spark_conf) == (("x/*", "y"), ("spark.ui.port",))


def test_the_chart_passes_what_pods_and_services_may_have() -> None:
    deployment = (ROOT / "helm" / "gantry" / "templates" / "deployment.yaml").read_text()
    names = {
        "GANTRY_ALLOWED_LABELS": "podTemplate.allowedLabels",
        "GANTRY_ALLOWED_ANNOTATIONS": "podTemplate.allowedAnnotations",
        "GANTRY_ALLOWED_EXTERNAL_ANNOTATIONS": "external.allowedAnnotations",
        "GANTRY_ALLOWED_HOSTS": "external.allowedHosts",
    }
    for name, value in names.items():
        assert re.search(rf"name: {name}\n +value: {{{{ join \",\" \.Values\.{re.escape(value)} ", deployment), name
    found = settings_from({"GANTRY_BROKER_IMAGE": "b", **{name: "a, b=c" for name in names}})
    assert (found.allowed_labels, found.allowed_hosts) == (("a", "b=c"), ("a", "b=c"))
    assert (found.allowed_annotations, found.allowed_external_annotations) == (("a", "b=c"), ("a", "b=c"))
