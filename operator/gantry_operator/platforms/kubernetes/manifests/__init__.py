"""The objects of a cluster, made from its spec. Pure."""
