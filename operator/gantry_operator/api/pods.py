"""Parts of the spec that become parts of a pod: resources and placement."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gantry_operator.api.base import Model, Quantity, Rule, is_amount, parse_quantity


def _requests_fit(r: Resources) -> bool:
    return all(k not in r.limits or parse_quantity(v) <= parse_quantity(r.limits[k]) for k, v in r.requests.items())


_NO_RESOURCE = (
    "{field} has a resource that Kubernetes does not know: write cpu, memory, ephemeral-storage, hugepages-... "
    "or a name with a domain, for example example.com/disk"
)


def _is_resource(name: str) -> bool:
    return name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-") or "/" in name


def _known(field: Literal["requests", "limits"]) -> Rule:
    names = "k in ['cpu', 'memory', 'ephemeral-storage'] || k.startsWith('hugepages-') || k.contains('/')"
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, {names})",
        _NO_RESOURCE.format(field=field),
        lambda r: all(map(_is_resource, getattr(r, field))),
        field,
    )


def _amounts(field: Literal["requests", "limits"]) -> Rule:
    """The API server checks amounts by this rule, whose words are better than those about a pattern."""
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, isQuantity(string(self.{field}[k])))",
        f"{field} has a value that is no amount: write it like 250m, 2 or 512Mi",
        lambda r: all(map(is_amount, getattr(r, field).values())),
        field,
    )


class Resources(Model):
    """CPU and memory as in any pod spec. The broker keeps its caches within the memory limit."""

    requests: dict[str, Quantity] = Field(
        default_factory=dict, max_length=16, description="Reserved amounts on the node."
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="Upper limits. The broker keeps within its memory limit. A CPU limit slows the broker down "
        "whenever it is reached, so most clusters perform better without one.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        _known("requests"),
        _known("limits"),
        _amounts("requests"),
        _amounts("limits"),
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || "
            "!isQuantity(string(self.requests[k])) || !isQuantity(string(self.limits[k])) || "
            "quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
            "requests is above limits for the same resource: lower requests or raise limits",
            _requests_fit,
            "requests",
        ),
    )


class Toleration(Model):
    """A taint that the pods tolerate, as in any pod spec."""

    key: str | None = Field(None, description="Key of the taint. Default: every key.", max_length=316)
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Comparison of the value.")
    value: str | None = Field(None, description="Value of the taint.", max_length=63)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint. Default: every effect."
    )
    tolerationSeconds: int | None = Field(None, ge=0, description="Seconds for which a NoExecute taint is tolerated.")


class TopologySpread(Model):
    """Distribution of a group's members over racks, zones or nodes."""

    topologyKey: str = Field(
        description="Label of the nodes, for example topology.kubernetes.io/zone.", min_length=1, max_length=316
    )
    maxSkew: int = Field(1, ge=1, description="Maximum difference of members between two domains.")
    whenUnsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = Field(
        "ScheduleAnyway", description="Behaviour when the rule cannot be kept."
    )


class Placement(Model):
    """Placement of the pods."""

    spread: Literal["Preferred", "Required", "None"] = Field(
        "Preferred",
        description="Whether members of one group run on different nodes: Preferred shares a node if necessary, "
        "Required leaves a member pending instead. Unless None, different zones are preferred.",
    )
    nodeSelector: dict[str, str] = Field(default_factory=dict, description="Required labels of the node.")
    tolerations: list[Toleration] = Field(default_factory=list, description="Taints that the pods tolerate.")
    topologySpread: list[TopologySpread] = Field(
        default_factory=list, description="Further spreading of each group, for example over racks.", max_length=8
    )
    priorityClassName: str | None = Field(
        None, description="PriorityClass of the pods. Kubernetes' own classes (system-...) are refused.", max_length=253
    )
