"""The persistent part of the access table: its version, every user's keys, the users that mqadmin made."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MAX_VERSION = 2**53


class Keys(BaseModel):
    """The secret keys of one user. The former key is remembered after its end, too: a Secret may still hold it."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    current: str
    former: str = ""
    changed_at: float = 0.0
    """Unix time of the change from `former` to `current`."""
    request: str = ""
    """The last request for a rotation that was carried out or refused."""
    access_key: str = ""
    """The user's name in clients when the keys were decided."""


class AccessState(BaseModel):
    """Kept durably before any effect of it is visible."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    version: int = Field(0, ge=0, le=MAX_VERSION)
    digest: str = ""
    """Of the table with this version."""
    users: dict[str, Keys] = Field(default_factory=dict)
    """By name of the BrokerUser; the cluster's super user under an empty name."""
    made: list[dict[str, Any]] = Field(default_factory=list)
    """Users that mqadmin made at a member, as in the table."""
    merged: dict[str, int] = Field(default_factory=dict)
    """By member: the number of its last change that is part of the table."""
