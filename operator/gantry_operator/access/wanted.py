"""What is wanted of one user, by its BrokerUser or by the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gantry_operator.api.base import parse_duration
from gantry_operator.api.user import ROTATE, BrokerUser

ADMIN = "admin"
"""AccessKey of the super user that every cluster has."""
ADMIN_NAME = ""
"""Its name among the users: no BrokerUser can have it."""
PROXY = "gantry-proxy"
"""AccessKey of the super user by whom proxies sign their requests to brokers."""
PROXY_NAME = " proxy"
"""Its name among the users: no BrokerUser can have it."""
OVERLAP_S = 3600.0
"""Seconds for which the former key of these two stays valid after a rotation."""
SECRET_KEY = "secretKey"
ACCESS_KEY = "accessKey"
"""Keys of the Secrets that the control plane makes."""


@dataclass(frozen=True, slots=True)
class WantedUser:
    """One user as it should be."""

    name: str
    access_key: str
    secret: str
    """Name of the Secret with its key."""
    secret_key: str = SECRET_KEY
    """Key of the Secret."""
    own_secret: bool = True
    """The control plane makes the Secret; otherwise its owner does."""
    overlap_s: float = 3600.0
    rotate: str = ""
    created: str = ""
    super_user: bool = False
    enabled: bool = True
    rules: Sequence[Mapping[str, Any]] = ()
    quotas: Mapping[str, int | None] = field(default_factory=dict)


def secret_name(cluster: str, user: str) -> str:
    """Name of the Secret that is made for a user, also for the cluster's own two."""
    if user in (ADMIN_NAME, PROXY_NAME):
        return f"{cluster}-proxy-user" if user == PROXY_NAME else f"{cluster}-admin-user"
    return f"{cluster}-user-{user}"


def wanted_user(user: BrokerUser) -> WantedUser:
    spec = user.spec
    return WantedUser(
        name=user.name,
        access_key=user.access_key,
        secret=secret_name(spec.cluster, user.name) if spec.secret is None else spec.secret.name,
        secret_key=SECRET_KEY if spec.secret is None else spec.secret.key,
        own_secret=spec.secret is None,
        overlap_s=parse_duration(spec.rotation.overlap),
        rotate=user.metadata.annotations.get(ROTATE, ""),
        created=user.metadata.creationTimestamp,
        super_user=spec.superUser,
        enabled=spec.enabled,
        rules=tuple(r.model_dump(mode="json") for r in spec.rules),
        quotas=spec.quotas.model_dump(mode="json"),
    )


def wanted_admin(cluster: str, rotate: str = "") -> WantedUser:
    """Return the cluster's super user. `rotate`: the request for a rotation at its Secret."""
    return WantedUser(ADMIN_NAME, ADMIN, secret_name(cluster, ""), overlap_s=OVERLAP_S, rotate=rotate, super_user=True)


def wanted_proxy(cluster: str, rotate: str = "") -> WantedUser:
    """Return the user of the cluster's proxies. `rotate`: the request for a rotation at its Secret."""
    return WantedUser(
        PROXY_NAME, PROXY, secret_name(cluster, PROXY_NAME), overlap_s=OVERLAP_S, rotate=rotate, super_user=True
    )
