"""Everything that uses the Kubernetes API.

Pure: `names`, `pods`, `nameserver`, `group`, `access`, `external` and `desired_objects` (from the spec to objects),
`member_state` (from observations to the status). At the edge: `client` (the API), `cluster_controller` (one cluster),
`platform` and `lease_registry` (for the group controllers), `operator` (kopf, leader election).
"""
