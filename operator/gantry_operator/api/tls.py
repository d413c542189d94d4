"""Parts of `BrokerCluster.spec.security`: TLS, and the clients that NetworkPolicies admit."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gantry_operator.api.base import NETWORK, OBJECT_NAME, Model, Rule, either

INTERNAL_IN_KUBERNETES = True
"""Default of `tls.internal` in Kubernetes. On one machine it is false."""


class LabelExpression(Model):
    """A condition on a label, as in any label selector."""

    key: str = Field(description="Key of the label.", min_length=1, max_length=316)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="Comparison of the value.")
    values: list[str] = Field(default_factory=list, max_length=64, description="Values for In and NotIn.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "values do not fit operator: write values with In and NotIn, and none with Exists and DoesNotExist",
            lambda e: (e.operator in ("In", "NotIn")) == bool(e.values),
            "values",
        ),
    )


class LabelSelector(Model):
    """Pods or namespaces by their labels. An empty selector selects all."""

    matchLabels: dict[str, str] = Field(default_factory=dict, max_length=16, description="Labels with their values.")
    matchExpressions: list[LabelExpression] = Field(
        default_factory=list, max_length=16, description="Further conditions on labels."
    )


class IpBlock(Model):
    """A network, without parts of it. The API server checks it as a part of the NetworkPolicy."""

    cidr: str = Field(description="The network, for example 10.0.0.0/8.", pattern=NETWORK, max_length=64)
    except_: list[str] = Field(
        default_factory=list,
        max_length=64,
        alias="except",
        description="Parts of it that may not connect.",
    )


class Peer(Model):
    """Clients that may connect, as in a NetworkPolicy: pods, namespaces, pods of namespaces, or a network."""

    podSelector: LabelSelector | None = Field(
        None, description="Pods: of the cluster's own namespace, or of the namespaces of namespaceSelector."
    )
    namespaceSelector: LabelSelector | None = Field(None, description="Namespaces.")
    ipBlock: IpBlock | None = Field(None, description="A network, for clients that are no pods.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "write either ipBlock, or podSelector and namespaceSelector, or one of the two",
            lambda p: (p.ipBlock is not None) != (p.podSelector is not None or p.namespaceSelector is not None),
        ),
    )


class Tls(Model):
    """Encrypted connections, and the certificates that prove who is at their ends."""

    mode: Literal["Disabled", "Permissive", "Required"] = Field(
        "Disabled",
        description="The ports for clients. Disabled: clear text only. Permissive: TLS and clear text on the same "
        "port. Required: TLS only.",
    )
    clientCertificates: Literal["None", "Optional", "Required"] = Field(
        "None",
        description="Whether clients have a certificate of their own, by the authority that issued the cluster's.",
    )
    issuer: Literal["Operator", "Secret"] = Field(
        "Operator",
        description="Source of the certificates for clients. Operator: an authority that Gantry makes for this "
        "cluster and renews. Secret: the one that secretName names.",
    )
    secretName: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
        description="Secret with tls.crt, tls.key and ca.crt, as cert-manager writes it. Gantry reloads it after each "
        "change. Certificates between members stay those of the cluster's own authority.",
    )
    internal: bool | None = Field(
        None,
        description="TLS with certificates on both sides between members, and HTTPS for their HTTP interface, whatever "
        "mode is. It cannot be changed on a cluster that exists. Default: true in Kubernetes, false on one machine.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"({either('self.issuer', 'Operator')} == 'Secret') == has(self.secretName)",
            "secretName does not fit issuer: write secretName with issuer: Secret, and only then",
            lambda t: (t.issuer == "Secret") == (t.secretName is not None),
            "secretName",
        ),
        Rule(
            f"{either('self.clientCertificates', 'None')} == 'None' || {either('self.mode', 'Disabled')} != 'Disabled'",
            "clientCertificates needs TLS: write mode: Permissive or mode: Required, or clientCertificates: None",
            lambda t: t.clientCertificates == "None" or t.mode != "Disabled",
            "clientCertificates",
        ),
        Rule(
            f"{either('self.clientCertificates', 'None')} != 'Required' || "
            f"{either('self.mode', 'Disabled')} == 'Required'",
            "clientCertificates: Required means nothing while clear text is allowed: write mode: Required",
            lambda t: t.clientCertificates != "Required" or t.mode == "Required",
            "clientCertificates",
        ),
    )

    def between_members(self, *, kubernetes: bool) -> bool:
        """Whether members use TLS between each other."""
        return (kubernetes and INTERNAL_IN_KUBERNETES) if self.internal is None else self.internal
