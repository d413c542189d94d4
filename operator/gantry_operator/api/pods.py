"""Parts of the spec that become parts of a pod: resources and placement."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gantry_operator.api.base import QUANTITY, Model, Quantity, Rule, is_amount, parse_quantity

FIELDS: tuple[Literal["requests", "limits"], ...] = ("requests", "limits")


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
    """Return the rule by which the API server checks amounts: its words are better than those about a pattern. The
    pattern excludes what Kubernetes' quantities allow beyond it, such as -1 and 1e3.
    """
    value = f"string(self.{field}[k])"
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, {value}.matches(r'{QUANTITY}') && isQuantity({value}))",
        f"{field} has a value that is no amount: write it like 250m, 2 or 512Mi",
        lambda r: all(map(is_amount, getattr(r, field).values())),
        field,
    )


_MOST = {"cpu": "1024", "memory": "64Ti"}
"""Amounts above these are slips, such as cpu: 500 for 500m."""
_LEAST_REQUEST = "16Mi"
_LEAST_CPU_LIMIT = "50m"


def _compared(field: str, key: str, comparison: str, bound: str) -> str:
    """CEL: an amount is absent, unreadable (another rule says so), or compares so with the bound."""
    value = f"string(self.{field}['{key}'])"
    return (
        f"!has(self.{field}) || !('{key}' in self.{field}) || !isQuantity({value}) || "
        f"quantity({value}).compareTo(quantity('{bound}')) {comparison} 0"
    )


def _at_least(field: Literal["requests", "limits"], key: str, least: str, why: str) -> Rule:
    def check(r: Resources) -> bool:
        value = getattr(r, field).get(key)
        return value is None or not is_amount(value) or parse_quantity(value) >= parse_quantity(least)

    return Rule(_compared(field, key, ">=", least), f"{field}.{key} {why}: write at least {least}", check, field)


def _at_most(field: Literal["requests", "limits"], key: str) -> Rule:
    most = _MOST[key]
    hint = "500m is half a CPU" if key == "cpu" else "512Mi is half a GiB"

    def check(r: Resources) -> bool:
        value = getattr(r, field).get(key)
        return value is None or not is_amount(value) or parse_quantity(value) <= parse_quantity(most)

    message = f"{field}.{key} is more than any node has: write at most {most} ({hint})"
    return Rule(_compared(field, key, "<=", most), message, check, field)


def _enough_memory(least: str, process: str) -> Rule:
    why = f"is too little for {process}, which would be killed again and again (a number without a unit is in bytes)"
    return _at_least("limits", "memory", least, why)


class Resources(Model):
    """CPU and memory as in any pod spec. The broker keeps its caches within the memory limit."""

    requests: dict[str, Quantity] = Field(
        default_factory=dict, max_length=16, description="Reserved amounts on the node."
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="Upper limits. The broker keeps within its memory limit. Most clusters are faster without a CPU "
        "limit.",
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
        _at_least(
            "requests", "memory", _LEAST_REQUEST,
            "is less than any process needs (a number without a unit is in bytes)",
        ),
        _at_least("limits", "cpu", _LEAST_CPU_LIMIT, "slows the process down so much that it counts as dead"),
        *(_at_most(field, key) for field in FIELDS for key in _MOST),
    )  # fmt: skip


class BrokerResources(Resources):
    """CPU and memory as in any pod spec. The broker keeps its caches within the memory limit."""

    rules: ClassVar[tuple[Rule, ...]] = (*Resources.rules, _enough_memory("128Mi", "a broker"))


class NameServerResources(Resources):
    """CPU and memory as in any pod spec."""

    rules: ClassVar[tuple[Rule, ...]] = (*Resources.rules, _enough_memory("64Mi", "a NameServer"))


class ProxyResources(Resources):
    """CPU and memory as in any pod spec. The proxy keeps within its memory limit."""

    rules: ClassVar[tuple[Rule, ...]] = (*Resources.rules, _enough_memory("128Mi", "a proxy"))


class SparkPodResources(Resources):
    """CPU and memory as in any pod spec. Spark's heap and its Python workers follow the memory limit."""

    rules: ClassVar[tuple[Rule, ...]] = (*Resources.rules, _enough_memory("1Gi", "Spark's heap of 512 MiB"))


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
