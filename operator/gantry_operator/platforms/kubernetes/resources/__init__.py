"""Topics, consumer groups and users as resources of Kubernetes."""
