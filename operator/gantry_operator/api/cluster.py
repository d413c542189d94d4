"""The resource itself: `BrokerCluster` of `gantry.dev`, and the versions of the API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from gantry_operator.api.annotations import FENCED, GROUP, PAUSED
from gantry_operator.api.base import Model, Rule, either
from gantry_operator.api.spec import BrokerClusterSpec, Storage
from gantry_operator.api.status import BrokerClusterStatus

VERSION = "v1alpha1"
"""The version that is stored. The operator reads and writes it, whichever one an object was applied with."""
API_VERSION = f"{GROUP}/{VERSION}"
ApiVersion = Literal["gantry.dev/v1alpha1", "gantry.dev/v1beta1"]
"""Of a document."""
SERVED = tuple(version.removeprefix(f"{GROUP}/") for version in get_args(ApiVersion))
"""All versions have the same fields, so the API server converts between them by their name alone."""
KIND = "BrokerCluster"
PLURAL = "brokerclusters"
SINGULAR = "brokercluster"
SHORT_NAME = "bc"

MAX_NAME = 32
_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"


class Metadata(BaseModel):
    """The used part of Kubernetes' object metadata."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resourceVersion: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    creationTimestamp: str = ""
    deletionTimestamp: str | None = None


def name_rule(most: int, pattern: str, allowed: str) -> Rule:
    """Return the rule for a resource's name. `allowed`: what may stand in it beside lower-case letters."""
    return Rule(
        f"self.metadata.name.size() <= {most} && self.metadata.name.matches('^{pattern}$')",
        f"metadata.name is not usable: write at most {most} lower-case letters, {allowed}",
        lambda resource: (
            len(resource.metadata.name) <= most and re.fullmatch(pattern, resource.metadata.name) is not None
        ),
    )


_NO_VOLUMES = "(!has(self.status) || (has(self.status.boundVolumes) && self.status.boundVolumes == 0))"
_SIZE, _FORMER_SIZE = (either(f"{root}.spec.storage.size", Storage().size) for root in ("self", "oldSelf"))
_LEAST = "self.status.volumeSize"
_CLASS, _FORMER_CLASS = (either(f"{root}.spec.storage.className", "") for root in ("self", "oldSelf"))


class BrokerCluster(Model):
    """A RocketMQ-protocol broker cluster: NameServers and replicated broker groups."""

    apiVersion: ApiVersion
    kind: Literal["BrokerCluster"]
    metadata: Metadata
    spec: BrokerClusterSpec = Field(description="Desired state of the cluster.")
    status: BrokerClusterStatus = Field(
        default_factory=lambda: BrokerClusterStatus(),
        description="Observed state of the cluster, written by the operator.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        name_rule(MAX_NAME, _NAME, "digits and '-', a letter first, no '-' at the end"),
    )

    transitions: ClassVar[tuple[dict[str, str], ...]] = (
        {
            # A size that no volume could take can be taken back, so the volumes count, and not the former spec.
            "rule": f"{_NO_VOLUMES} || !isQuantity({_SIZE}) || (has({_LEAST}) && isQuantity({_LEAST}) "
            f"? quantity({_SIZE}).compareTo(quantity({_LEAST})) >= 0 || {_SIZE} == {_FORMER_SIZE} "
            f": !isQuantity({_FORMER_SIZE}) || quantity({_SIZE}).compareTo(quantity({_FORMER_SIZE})) >= 0)",
            "message": "spec.storage.size cannot shrink: write at least the size that the volumes have "
            "(status.volumeSize)",
            "fieldPath": ".spec.storage.size",
        },
        {
            "rule": f"{_NO_VOLUMES} || {_CLASS} == {_FORMER_CLASS}",
            "message": "spec.storage.className cannot be changed: the volumes exist; write the former class",
            "fieldPath": ".spec.storage.className",
        },
    )

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def broker_cluster_name(self) -> str:
        """RocketMQ's name of the cluster."""
        return self.spec.brokerClusterName or self.metadata.name

    def broker_name(self, group: str) -> str:
        """RocketMQ's name of a group; the group's own name if the spec does not have it (any more)."""
        return next((g.broker_name for g in self.spec.brokerGroups if g.name == group), group)

    @property
    def group_names(self) -> dict[str, str]:
        """The names of the groups by RocketMQ's name of each."""
        return {g.broker_name: g.name for g in self.spec.brokerGroups}

    @property
    def fenced(self) -> frozenset[str]:
        """Members whose broker is to be stopped."""
        return fenced_in(self.metadata.annotations)

    @property
    def paused(self) -> bool:
        return self.metadata.annotations.get(PAUSED) == "true"

    @classmethod
    def make(cls, name: str, namespace: str = "default", **spec: Any) -> BrokerCluster:
        """Return a cluster from keyword arguments. Raises pydantic.ValidationError."""
        return cls.model_validate(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": name, "namespace": namespace},
                "spec": spec,
            }
        )


def fenced_in(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the fenced members in the annotations of a cluster."""
    return frozenset(name for part in annotations.get(FENCED, "").split(",") if (name := part.strip()))


def with_fence(cluster: BrokerCluster, member: str, on: bool) -> BrokerCluster:
    """Return the cluster with one more fenced member, or with one less."""
    names = cluster.fenced | {member} if on else cluster.fenced - {member}
    changed = cluster.model_copy(deep=True)
    changed.metadata.annotations[FENCED] = ",".join(sorted(names))
    return changed
