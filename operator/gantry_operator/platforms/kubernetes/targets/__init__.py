"""What the command `gantry` asks of a cluster on Kubernetes."""
