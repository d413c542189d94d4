"""The members of a cluster as pods: the ports of `cluster.platform` that are about processes."""
