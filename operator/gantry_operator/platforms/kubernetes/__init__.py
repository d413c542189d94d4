"""Everything that touches the Kubernetes API.

Pure: `names`, `pods`, `nameserver`, `group`, `access`, `external`, `render` (spec -> objects), `state` (what was
seen -> status and conditions). At the edge: `client` (the API), `cluster` (one cluster's reconcile), `platform` and
`leases` (what the failover loop needs), `operator` (kopf, leader election).
"""
