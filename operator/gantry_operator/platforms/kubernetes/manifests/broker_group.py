"""A broker group: StatefulSet, headless Service, master Service, configs and disruption budget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gantry_broker.config import BrokerConfig

from gantry_operator.api.base import parse_quantity
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.spec import Storage
from gantry_operator.plan.plan import GroupPlan, MemberPlan, Plan, member_name
from gantry_operator.plan.process_config import LIVE_FIELDS, ArchiveFiles, BrokerAddresses, broker_config, text_of
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import broker_pod, name_servers, pod_parts
from gantry_operator.platforms.kubernetes.manifests.digest import digest


def member_host(cluster: BrokerCluster, member: MemberPlan) -> str:
    service = names.group_set(cluster.name, member.group)
    return f"{member.name}.{names.service_host(service, cluster.namespace)}"


def config(cluster: BrokerCluster, plan: Plan, member: MemberPlan, external: Mapping[str, str]) -> BrokerConfig:
    """Return the config of one broker. `external`: addresses by endpoint name, empty without `spec.external`."""
    master = names.service_host(names.master_service(cluster.name, member.group), cluster.namespace)
    outside = {}
    if external:
        group = external[names.group_set(cluster.name, member.group)]
        # A leaving member has no external address any more.
        outside = {names.EXTERNAL: {"group": group, "member": external.get(member.name, group)}}
    memory = cluster.spec.resources_of(member.group).limits.get("memory")
    return broker_config(
        cluster,
        member,
        BrokerAddresses(
            port=names.BROKER_PORT,
            http_port=names.BROKER_HTTP_PORT,
            replication_port=names.BROKER_REPLICATION_PORT,
            replication_address=_replication_address(cluster, member),
            member_address=f"{member_host(cluster, member)}:{names.BROKER_PORT}",
            group_address=f"{master}:{names.BROKER_PORT}",
            listener_addresses=outside,
            http_hosts=[
                *names.host_forms(member_host(cluster, member)),
                *names.host_forms(names.service_host(names.group_set(cluster.name, member.group), cluster.namespace)),
            ],
        ),
        listen_host="0.0.0.0",
        data_dir=Path(pod_parts.DATA_DIR),
        name_servers=name_servers.addresses(cluster, plan),
        registration_addresses=name_servers.registration_addresses(cluster, plan),
        token_file=pod_parts.TOKEN_FILE,
        archives=ArchiveFiles(cluster.metadata.uid, pod_parts.archive_secret),
        tls=pod_parts.tls_folders(cluster),
        memory_limit_bytes=None if memory is None else int(parse_quantity(memory)),
        raft_members={m.number: _replication_address(cluster, m) for m in plan.group(member.group).members},
    )


def _replication_address(cluster: BrokerCluster, member: MemberPlan) -> str:
    return f"{member_host(cluster, member)}:{names.BROKER_REPLICATION_PORT}"


def objects(
    cluster: BrokerCluster, plan: Plan, group: GroupPlan, image: str, external: Mapping[str, str], replicas: int,
    running: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the objects, in the order in which they are applied. `replicas` may exceed the plan's number while members
    leave. `running`: fewer processes than that, for a cluster that hibernates.
    """
    name = names.group_set(cluster.name, group.name)
    meta = names.metadata(cluster, name, names.BROKER, group.name)
    selector = names.selector(cluster.name, names.BROKER, group.name)
    members = with_leaving(cluster, group, replicas)
    configs = {f"{m.name}.json": text_of(config(cluster, plan, m, external)) for m in members}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": configs},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": _headless(selector)},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": names.metadata(
                cluster, names.master_service(cluster.name, group.name), names.BROKER, group.name
            ),
            "spec": _master(selector),
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta,
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": selector},
                # A broken member must not prevent a node from being drained.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        },
        _stateful_set(
            cluster,
            group,
            image,
            replicas if running is None else running,
            _common(configs[f"{group.members[0].name}.json"]),
        ),
    ]


def _common(first: str) -> str:
    """Return the hash of the first member's config without the other members' names: a new member restarts none."""
    return digest({k: v for k, v in json.loads(first).items() if k != "members" and k not in LIVE_FIELDS})


def with_leaving(cluster: BrokerCluster, group: GroupPlan, replicas: int) -> tuple[MemberPlan, ...]:
    """Return the planned members, and leaving members that still run."""
    more = range(len(group.members), replicas)
    return group.members + tuple(MemberPlan(member_name(cluster.name, group.name, i), group.name, i) for i in more)


def _headless(selector: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(selector),
        "ports": [
            {"name": "remoting", "port": names.BROKER_PORT, "targetPort": "remoting", "protocol": "TCP"},
            {
                "name": "replication",
                "port": names.BROKER_REPLICATION_PORT,
                "targetPort": "replication",
                "protocol": "TCP",
            },
            {"name": "http", "port": names.BROKER_HTTP_PORT, "targetPort": "http", "protocol": "TCP"},
        ],
    }


def _master(selector: Mapping[str, str]) -> dict[str, Any]:
    """Return the master's Service, which follows the role label alone. A readiness probe that fails under load must not
    cut clients off from a working master.
    """
    return {
        "type": "ClusterIP",
        "publishNotReadyAddresses": True,
        "selector": dict(selector) | {names.ROLE_LABEL: names.ROLE_MASTER},
        "ports": [{"name": "remoting", "port": names.BROKER_PORT, "targetPort": "remoting", "protocol": "TCP"}],
    }


def _stateful_set(
    cluster: BrokerCluster, group: GroupPlan, image: str, replicas: int, config_hash: str
) -> dict[str, Any]:
    name = names.group_set(cluster.name, group.name)
    selector = names.selector(cluster.name, names.BROKER, group.name)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": names.metadata(cluster, name, names.BROKER, group.name)
        | {"annotations": {names.BROKER_GROUP: _as_written(cluster, group.name)}},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            # A StatefulSet never deletes volumes. The operator does so under `reclaim: Delete`.
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": selector},
            "template": broker_pod.template(cluster, group.name, image, config_hash),
            "volumeClaimTemplates": [_claim(cluster.spec.storage_of(group.name), selector)],
        },
    }


def claim_metadata(storage: Storage, selector: Mapping[str, str]) -> dict[str, Any]:
    """Labels and annotations of a volume claim."""
    return {"labels": {**storage.labels, **selector}, "annotations": dict(storage.annotations)}


def _claim(storage: Storage, selector: Mapping[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.className is not None:
        spec["storageClassName"] = storage.className
    return {"metadata": {"name": "data", **claim_metadata(storage, selector)}, "spec": spec}


def _as_written(cluster: BrokerCluster, group: str) -> str:
    """Return the group's part of the spec, for the time when it is not in the spec any more."""
    spec_group = next(g for g in cluster.spec.brokerGroups if g.name == group)
    return spec_group.model_dump_json(exclude_none=True, exclude_defaults=True)
