"""The role registry holds the leadership record of each group: epoch, version, master and in-sync set.

`RoleRegistry` is the interface. Local mode stores files (`FileRegistry`), Kubernetes stores Leases.
"""

from gantry_operator.registry.base import Entry, RegistryUnavailable, RoleRegistry
from gantry_operator.registry.file import FileRegistry

__all__ = ["Entry", "FileRegistry", "RegistryUnavailable", "RoleRegistry"]
