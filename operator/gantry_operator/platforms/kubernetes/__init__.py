"""Everything that uses the Kubernetes API: one cluster's controller, the operator's process, and their rooms.

From the lowest up; a room imports only lower ones. `names` (names and labels of objects), `api` (requests, caches,
events, Leases), `manifests` (from the spec to objects, pure) and `monitoring` (metrics), `objects` (applies them),
`members` (pods for the group controllers), `resources` (topics and users) and `analytics`, `cluster_controller` and
`operator`, and `targets` (what the command `gantry` asks of Kubernetes).
"""
