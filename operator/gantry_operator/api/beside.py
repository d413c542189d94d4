"""Resources beside a cluster, which name it in spec.cluster: what all share, and what topics and groups share."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

from pydantic import Field

from gantry_operator.api.base import AnyCondition, Model, Observed
from gantry_operator.api.cluster import API_VERSION, MAX_NAME, ApiVersion, Metadata

DeletionPolicy = Literal["Retain", "Delete"]
DriftPolicy = Literal["Enforce", "Report"]
ROWS: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
CONDITIONS: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


def cluster_field(kind: str) -> Any:
    """Return the field `cluster` of the spec."""
    message = f"cluster cannot be changed: write the former cluster, or create another {kind}"
    return Field(
        description="Name of the BrokerCluster in the same namespace.", min_length=1, max_length=MAX_NAME,
        json_schema_extra={"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": message}]},
    )  # fmt: skip


def drift_field() -> Any:
    """Return the field `driftPolicy` of the spec."""
    return Field(
        None, description="What happens to changes of others, by mqadmin for example. Enforce (if absent): they are "
        "put back. Report: the condition Synced names them.",
    )  # fmt: skip


class BesideCluster(Model):
    """The whole resource. A kind adds `spec` and `status`."""

    apiVersion: ApiVersion
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @classmethod
    def make(cls, name: str, cluster: str, namespace: str = "default", **spec: Any) -> Self:
        """Return a resource from keyword arguments. Raises pydantic.ValidationError."""
        (kind,) = get_args(cls.model_fields["kind"].annotation)
        return cls.model_validate(
            {
                "apiVersion": API_VERSION,
                "kind": kind,
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"cluster": cluster, **spec},
            }
        )


class ResourceCondition(AnyCondition):
    """One aspect of the state, as in every Kubernetes object."""

    type: Literal["Ready", "Synced", "TableCurrent"] = Field(
        description="Ready: clients can use it. Synced: the brokers have it exactly as the spec says. TableCurrent: "
        "the runs of its table succeed."
    )


class ManagedStatus(Observed):
    """The state of a topic or group that a resource manages."""

    observedGeneration: int | None = Field(None, description="Generation of the spec that this describes.")
    origin: Literal["Created", "Adopted"] | None = Field(
        None, description="Created: by this resource. Adopted: the brokers had it before."
    )
    syncedGeneration: int | None = Field(
        None, description="Generation of the spec that all brokers had at the same time, last."
    )
    conditions: list[ResourceCondition] = Field(
        default_factory=list,
        description="Ready: clients can use it. Synced: the brokers have it exactly as the spec says. TableCurrent: "
        "the runs of its table succeed.",
        json_schema_extra=CONDITIONS,
    )
