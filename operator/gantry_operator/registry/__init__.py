"""The role registry: the truth about who is master, one cell per group (DESIGN section 4).

`RoleRegistry` is what the failover needs of it. Local mode keeps files (`FileRegistry`), Kubernetes keeps Leases.
"""

from gantry_operator.registry.base import Entry, RegistryUnavailable, RoleRegistry
from gantry_operator.registry.file import FileRegistry

__all__ = ["Entry", "FileRegistry", "RegistryUnavailable", "RoleRegistry"]
