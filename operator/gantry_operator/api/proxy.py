"""`BrokerCluster.spec.proxy`: the processes that serve clients by gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gantry_operator.api.base import OBJECT_NAME, Model, Rule, either, is_amount, parse_quantity
from gantry_operator.api.external import External
from gantry_operator.api.pod_template import ProxyPodTemplate
from gantry_operator.api.pods import ProxyResources

MAX_PROXIES = 64
TlsMode = Literal["Disabled", "Permissive", "Required"]


class ProxyTls(Model):
    """TLS of the port for gRPC. Client certificates are as security.tls.clientCertificates says."""

    mode: TlsMode | None = Field(
        None,
        description="Disabled: clear text only. Permissive: TLS and clear text on the same port. Required: TLS only. "
        "Default: Required if security.tls.mode is Required, otherwise Permissive, since most clients of RocketMQ 5 "
        "use TLS unless their configuration turns it off.",
    )
    secretName: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
        description="Secret with tls.crt and tls.key (and ca.crt, if clients have certificates), as cert-manager "
        "writes it. Default: a certificate by the issuer of security.tls.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.secretName) || !has(self.mode) || self.mode != 'Disabled'",
            "secretName needs TLS: write mode: Permissive or mode: Required, or leave secretName out",
            lambda t: t.secretName is None or t.mode != "Disabled",
            "secretName",
        ),
    )


class Autoscaling(Model):
    """A HorizontalPodAutoscaler, which sets the number of proxies by their use of CPU."""

    minReplicas: int = Field(2, ge=1, le=MAX_PROXIES, description="Lowest number of proxies.")
    maxReplicas: int = Field(ge=1, le=MAX_PROXIES, description="Highest number of proxies.")
    targetCPUUtilization: int = Field(
        70, ge=1, le=1_000, description="Use of CPU that it aims at, in percent of resources.requests.cpu."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{either('self.minReplicas', 2)} <= self.maxReplicas",
            "minReplicas is above maxReplicas: lower it, or write a higher maxReplicas",
            lambda a: a.minReplicas <= a.maxReplicas,
            "minReplicas",
        ),
    )


def _cpu_is_requested(proxy: Proxy) -> bool:
    cpu = proxy.resources.requests.get("cpu")
    return proxy.autoscaling is None or (cpu is not None and (not is_amount(cpu) or parse_quantity(cpu) > 0))


def without_cpu(proxy: Proxy) -> list[str]:
    """Sidecars that request no CPU: with one of them an autoscaler knows no percentage, and does nothing."""
    if proxy.autoscaling is None or proxy.podTemplate is None:
        return []
    names = []
    for container in proxy.podTemplate.spec.get("containers") or []:
        resources = container.get("resources")
        parts = [resources.get(p) for p in ("requests", "limits")] if isinstance(resources, Mapping) else []
        if container["name"] != "proxy" and not any(isinstance(p, Mapping) and p.get("cpu") for p in parts):
            names.append(str(container["name"]))
    return names


class Proxy(Model):
    """The endpoint for clients that speak gRPC. Proxies hold no state: each serves every client."""

    replicas: int = Field(
        2,
        ge=0,
        le=MAX_PROXIES,
        description="Number of proxies. 0: none. With autoscaling it is the number at the beginning.",
    )
    resources: ProxyResources = Field(
        default_factory=lambda: ProxyResources(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "512Mi"}),
        description="CPU and memory of each. A proxy uses one CPU at most, so more replicas serve more clients. It "
        "keeps within its memory limit.",
    )
    tls: ProxyTls | None = Field(None, description="TLS of the port for gRPC.")
    external: External | None = Field(None, description="An address for clients outside Kubernetes.")
    autoscaling: Autoscaling | None = Field(None, description="More and fewer proxies by load. Default: none.")
    podTemplate: ProxyPodTemplate | None = Field(None, description="Additions to the proxies' pods. Kubernetes only.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.autoscaling) || !has(self.resources) || "
            "(has(self.resources.requests) && 'cpu' in self.resources.requests && "
            "(!isQuantity(string(self.resources.requests['cpu'])) || "
            "quantity(string(self.resources.requests['cpu'])).isGreaterThan(quantity('0'))))",
            "autoscaling needs resources.requests.cpu, of which it takes its percentage: write for example cpu: 500m",
            _cpu_is_requested,
            "autoscaling",
        ),
        Rule(
            f"!has(self.autoscaling) || {either('self.replicas', 2)} > 0",
            "replicas is 0, so there is nothing to scale: write at least 1, or leave autoscaling out",
            lambda p: p.autoscaling is None or p.replicas > 0,
            "replicas",
        ),
    )

    @model_validator(mode="after")
    def _sidecars_request_cpu(self) -> Proxy:
        # Not in the CRD: its schema knows no fields of a podTemplate.
        sidecars = without_cpu(self)
        if sidecars:
            message = (
                f"autoscaling takes its percentage of what all containers request, and {', '.join(sidecars)} of "
                "podTemplate requests no CPU: write resources.requests.cpu there, for example 50m"
            )
            raise PydanticCustomError("rule", "{message}", {"message": message, "field": "autoscaling"})
        return self

    def tls_mode(self, of_brokers: TlsMode) -> TlsMode:
        """Return the mode that holds. `of_brokers`: `security.tls.mode`."""
        if self.tls is not None and self.tls.mode is not None:
            return self.tls.mode
        return "Required" if of_brokers == "Required" else "Permissive"
