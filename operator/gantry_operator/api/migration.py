"""`spec.bootstrap.fromRocketMQ`: a cluster that begins as the copy of a running Apache RocketMQ."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from gantry_operator.api.base import ADDRESS, BROKER_NAME, GROUP_NAME, OBJECT_NAME, Model


class SourceBroker(Model):
    """The source of one broker group."""

    group: str = Field(description="A broker group of this cluster.", min_length=1, max_length=16, pattern=GROUP_NAME)
    broker: str = Field(description="The brokerName at the source.", min_length=1, max_length=100, pattern=BROKER_NAME)


class SourceTls(Model):
    """TLS of the source."""

    caSecret: str = Field(
        description="Secret whose key ca.crt has the authorities of the source's certificates.",
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
    )


class FromRocketMQ(Model):
    """The log, topics, consumer groups and offsets of a running Apache RocketMQ 4.9 or 5.x, kept up to date until
    `gantry migrate cutover`. Until then nothing of it is served.
    """

    nameServers: list[Annotated[str, StringConstraints(pattern=ADDRESS, min_length=3, max_length=260)]] = Field(
        description="Addresses of the source's NameServers, as host:port. After the cutover the brokers register "
        "there, too.",
        min_length=1,
        max_length=16,
    )
    cluster: str | None = Field(
        None, description="The source's cluster: another one is refused. Default: any.", min_length=1, max_length=255
    )
    brokers: list[SourceBroker] = Field(
        default_factory=list,
        description="The source's broker for each group whose name differs from it. Default: each group has the "
        "broker with its own brokerName.",
        max_length=100,
    )
    accessKeySecret: str | None = Field(
        None,
        description="Secret with accessKey and secretKey of an administrator of the source. Default: no signatures.",
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
    )
    tls: SourceTls | None = Field(None, description="TLS of the source's remoting ports. Default: none.")
    kvNamespaces: list[Annotated[str, StringConstraints(min_length=1, max_length=255)]] = Field(
        default_factory=list,
        description="Namespaces of the source's key-value configuration that the NameServers of this cluster get, kept "
        "up to date until a cutover. The order configuration of topics comes without being named. No NameServer lists "
        "its namespaces.",
        max_length=16,
    )
    dropAccessControl: bool = Field(
        False,
        description="The source asks for signatures, and security.authentication is not Enabled: follow it all the "
        "same, and let everybody do everything after the cutover. Default: such a source is refused.",
    )

    def broker_of(self, group: str, default: str) -> str:
        """Return the source's brokerName for a group."""
        return next((b.broker for b in self.brokers if b.group == group), default)
