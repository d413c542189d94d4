"""Everything that uses the Kubernetes API: the operator's process, and the rooms of its parts.

From the lowest up; a room imports only lower ones. `names` (names and labels of objects), `api` (requests, caches,
events, Leases), `manifests` (from the spec to objects, pure) and `monitoring` (metrics), `objects` (applies them),
`members` (pods for the group controllers), `resources` (topics and users), `analytics`, `requests` (of people, in
annotations of a cluster) and `tables` (runs of the job that writes them), `reconcile` (one cluster's controller),
`operator` and `uninstall` (processes), and `targets` (what the command `gantry` asks of Kubernetes).
"""
