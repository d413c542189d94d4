"""The disk of a member, as a platform lists it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Volume:
    """One disk. `used_by`: why it is not to be deleted; empty: its member is gone."""

    name: str
    member: str
    bytes: int | None
    """On Kubernetes the size of the volume, on one machine what the folder holds; None: not known."""
    used_by: str = ""
