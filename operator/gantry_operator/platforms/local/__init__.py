"""Local mode: the same plan and the same failover as on Kubernetes, over processes of this machine."""
