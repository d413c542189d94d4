"""Requests to the Kubernetes API, local copies of its objects, events, Leases, and what the objects of a pod say."""
