"""Broker groups that come and go: which topics a new group gets, and when a leaving group is empty. Pure."""
