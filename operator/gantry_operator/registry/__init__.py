"""The role registry holds the leadership record of each group: epoch, version, master and in-sync set.

`RoleRegistry` is the interface. Local mode stores files (`FileRegistry`), Kubernetes stores Leases.
"""
