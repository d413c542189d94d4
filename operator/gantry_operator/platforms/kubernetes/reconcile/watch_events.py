"""Passes the watch events about the objects of a cluster to the parts that they concern."""

from __future__ import annotations

from gantry_operator.cluster.control import ClusterControl
from gantry_operator.platforms.kubernetes.analytics.reconciler import PODS
from gantry_operator.platforms.kubernetes.api.client import Object
from gantry_operator.platforms.kubernetes.reconcile.cluster_platform import ClusterPlatform
from gantry_operator.platforms.kubernetes.resources.topics import KINDS as TOPIC_KINDS
from gantry_operator.platforms.kubernetes.tables import runs as table_runs

TABLE_RUNS = (table_runs.JOBS, table_runs.PODS)


def take(event: str, kind: str, obj: Object, platform: ClusterPlatform, control: ClusterControl) -> bool:
    """Take an event. True: a pass over the cluster's objects has to begin."""
    pass_is_due = False
    if kind in ("BrokerUser", "Secret"):
        control.access.wake()
    if kind in TOPIC_KINDS:
        if event == "DELETED":
            platform.topics.forget(obj["metadata"]["uid"])
        if event == "DELETED" or platform.topics.is_news(obj):
            control.topics.wake()
            control.tables.wake()
    elif kind in TABLE_RUNS:
        control.tables.wake()
    elif kind == "BrokerUser":
        if event == "DELETED":
            platform.users.forget(obj["metadata"]["uid"])
    elif kind == "Lease":
        platform.registry.heard(event, obj)
    else:
        pass_is_due = True
    if kind == PODS:
        platform.reports.applications.saw(obj)
    if kind in ("Pod", "Lease"):
        control.groups.wake()
        platform.news()
    return pass_is_due
