"""Parts of the spec that become parts of a pod: resources and placement."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gantry_operator.api.base import Model, Quantity, Rule, parse_quantity


def _requests_fit(r: Resources) -> bool:
    return all(k not in r.limits or parse_quantity(v) <= parse_quantity(r.limits[k]) for k, v in r.requests.items())


class Resources(Model):
    """CPU and memory as in any pod spec. The broker keeps its caches within the memory limit."""

    requests: dict[str, Quantity] = Field(
        default_factory=dict, max_length=16, description="What is set aside on the node."
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="What may be used at most. A memory limit is told to the broker; a CPU limit slows it down "
        "whenever it is reached, so most clusters do better without one.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || "
            "quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
            "requests is above limits for the same resource: lower requests or raise limits",
            _requests_fit,
            "requests",
        ),
    )


class Toleration(Model):
    """A taint that the pods put up with, as in any pod spec."""

    key: str | None = Field(None, description="Key of the taint; left out: every key.", max_length=316)
    operator: Literal["Equal", "Exists"] = Field("Equal", description="How the value is compared.")
    value: str | None = Field(None, description="Value of the taint.", max_length=63)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; left out: every effect."
    )
    tolerationSeconds: int | None = Field(None, ge=0, description="How long a NoExecute taint is put up with.")


class TopologySpread(Model):
    """How evenly the members of one group lie over racks, zones or nodes."""

    topologyKey: str = Field(
        description="Label of the nodes, for example topology.kubernetes.io/zone.", min_length=1, max_length=316
    )
    maxSkew: int = Field(1, ge=1, description="By how many members two domains may differ.")
    whenUnsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = Field(
        "ScheduleAnyway", description="What happens when it cannot be kept."
    )


class Placement(Model):
    """Where the pods run."""

    spread: Literal["Preferred", "Required", "None"] = Field(
        "Preferred",
        description="Whether members of one group lie on different nodes: Preferred takes one node if it must, "
        "Required leaves a member pending instead. Zones are preferred to differ unless None.",
    )
    nodeSelector: dict[str, str] = Field(default_factory=dict, description="Labels that the node must have.")
    tolerations: list[Toleration] = Field(default_factory=list, description="Taints that the pods put up with.")
    topologySpread: list[TopologySpread] = Field(
        default_factory=list, description="Further spreading of each group, for example over racks.", max_length=8
    )
    priorityClassName: str | None = Field(
        None, description="Priority of the pods; none of Kubernetes' own (system-...).", max_length=253
    )
