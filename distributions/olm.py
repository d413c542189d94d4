"""`helm template gantry helm/gantry -n gantry-system | python -m distributions.olm [FOLDER]`: build the OLM bundle.

The bundle is the chart in another form, so the chart stays the one place of rights, probes and settings: its Deployment
and its rules go into the ClusterServiceVersion, its other objects beside it. Objects that OLM makes itself (the account
and its bindings), that it does not know (network policies), or that are Helm's own (hooks) are left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from distributions.address import urls
from distributions.build import ROOT, project

PACKAGE: Final = "gantry"
CHANNEL: Final = "alpha"
LEVEL: Final = "Seamless Upgrades"
"""The highest level all of whose criteria are met: docs/images.md has the table."""
BESIDE: Final = frozenset({"ConfigMap", "PodDisruptionBudget", "PrometheusRule", "Service", "ServiceMonitor"})
"""Kinds that a bundle may have beside the ClusterServiceVersion and the definitions."""
DROPPED: Final = frozenset({"ClusterRoleBinding", "NetworkPolicy", "RoleBinding", "ServiceAccount"})
TARGETS: Final = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['olm.targetNamespaces']"}}}
"""The namespaces that a person chose, as OLM tells an operator."""
EXAMPLES: Final = ("quickstart.yaml", "topics.yaml", "users.yaml")
ICON: Final = ROOT / "operator/gantry_operator/console/static/icon.svg"
DESCRIPTIONS: Final = {
    "BrokerCluster": "NameServers and replicated broker groups",
    "BrokerTopic": "A topic of a cluster",
    "BrokerUser": "A user of a cluster, and what it may do",
    "ConsumerGroup": "A consumer group of a cluster",
}


class BundleError(Exception):
    """The rendered chart cannot become a bundle; the text says why."""


def load_all(text: str) -> list[Any]:
    """The documents of a YAML text. The definitions are long: the parser in C reads them in a tenth of the time."""
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@cache
def definitions() -> list[dict[str, Any]]:
    """The definitions of the resources."""
    return [load_all(path.read_text())[0] for path in sorted((ROOT / "crds").glob("*.yaml"))]


def bundle(rendered: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The files of a bundle by path. Raises BundleError for an object that has no place in one."""
    objects = [o for o in rendered if o and "helm.sh/hook" not in (o["metadata"].get("annotations") or {})]
    deployments = [o for o in objects if o["kind"] == "Deployment"]
    if not deployments:
        raise BundleError("the rendered chart has no Deployment: pass what `helm template` prints")
    files: dict[str, Any] = {
        f"manifests/{PACKAGE}.clusterserviceversion.yaml": _version(objects, deployments),
        "metadata/annotations.yaml": {"annotations": _annotations()},
    }
    for definition in definitions():
        files[f"manifests/{definition['metadata']['name']}.yaml"] = definition
    for found in objects:
        kind = found["kind"]
        if kind in BESIDE:
            meta = {k: v for k, v in found["metadata"].items() if k != "namespace"}
            files[f"manifests/{meta['name']}.{kind.lower()}.yaml"] = found | {"metadata": meta}
        elif kind not in DROPPED | {"ClusterRole", "CustomResourceDefinition", "Deployment", "Role"}:
            raise BundleError(f"{kind} {found['metadata']['name']} has no place in a bundle: leave it out by a value")
    return files


def _version(objects: list[dict[str, Any]], deployments: list[dict[str, Any]]) -> dict[str, Any]:
    made = project()
    pages = urls(made["version"])
    accounts = {d["spec"]["template"]["spec"]["serviceAccountName"] for d in deployments}
    if len(accounts) != 1:
        raise BundleError(f"the Deployments have the accounts {', '.join(sorted(accounts))}: a bundle is for one")
    (account,) = accounts

    def rules(kind: str) -> list[dict[str, Any]]:
        return [rule for o in objects if o["kind"] == kind for rule in o["rules"]]

    install = {
        "deployments": [{"name": d["metadata"]["name"], "spec": _told_namespaces(d["spec"])} for d in deployments],
        "clusterPermissions": [{"serviceAccountName": account, "rules": rules("ClusterRole")}],
        "permissions": [{"serviceAccountName": account, "rules": rules("Role")}],
    }
    operator = deployments[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    examples: dict[str, dict[str, Any]] = {}
    for name in EXAMPLES:
        for document in load_all((ROOT / "examples" / name).read_text()):
            if document and document["kind"] in DESCRIPTIONS:
                examples.setdefault(document["kind"], document)
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{made['version']}",
            "namespace": "placeholder",
            "annotations": {
                "alm-examples": json.dumps(list(examples.values()), indent=1),
                "capabilities": LEVEL,
                "categories": "Streaming & Messaging",
                "containerImage": operator,
                "description": made["description"],
                **({"repository": pages["Source"], "support": pages["Issues"]} if pages else {}),
            },
        },
        "spec": {
            "displayName": "Gantry",
            "description": made["description"] + ".\n\nNetwork policies for the operator's own ports are in the Helm "
            "chart only.\n",
            "version": made["version"],
            "maturity": CHANNEL,
            "minKubeVersion": "1.29.0",
            "keywords": ["rocketmq", "messaging", "queue", "streaming"],
            "provider": {"name": "Gantry", **({"url": pages["Homepage"]} if pages else {})},
            "icon": [{"base64data": b64encode(ICON.read_bytes()).decode(), "mediatype": "image/svg+xml"}],
            "links": [{"name": name, "url": url} for name, url in pages.items()],
            "installModes": [
                {"type": kind, "supported": True}
                for kind in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "customresourcedefinitions": {"owned": [_owned(d) for d in definitions()]},
            "install": {"strategy": "deployment", "spec": install},
        },
    }


def _told_namespaces(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of a Deployment that watches the namespaces which a person chose in OLM."""
    found: dict[str, Any] = json.loads(json.dumps(spec))
    for container in found["template"]["spec"]["containers"]:
        container["env"] = [
            {"name": e["name"], **TARGETS} if e["name"] == "GANTRY_WATCH_NAMESPACES" else e
            for e in container.get("env", [])
        ]
    return found


def _owned(definition: dict[str, Any]) -> dict[str, str]:
    spec = definition["spec"]
    kind = spec["names"]["kind"]
    stored = next(v["name"] for v in spec["versions"] if v["storage"])
    return {
        "name": definition["metadata"]["name"], "kind": kind, "version": stored, "displayName": kind,
        "description": DESCRIPTIONS[kind],
    }  # fmt: skip


def _annotations() -> dict[str, str]:
    base = "operators.operatorframework.io.bundle"
    return {
        f"{base}.mediatype.v1": "registry+v1",
        f"{base}.manifests.v1": "manifests/",
        f"{base}.metadata.v1": "metadata/",
        f"{base}.package.v1": PACKAGE,
        f"{base}.channels.v1": CHANNEL,
        f"{base}.channel.default.v1": CHANNEL,
    }


def dockerfile() -> str:
    """The image that carries the bundle."""
    labels = "".join(f"LABEL {name}={value}\n" for name, value in _annotations().items())
    return f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"


def build(rendered: str, folder: Path) -> list[Path]:
    """Write the bundle, and return its files. `rendered`: what `helm template` prints. Raises BundleError."""
    files = bundle(load_all(rendered))
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))
    (folder / "bundle.Dockerfile").write_text(dockerfile())
    return sorted(path for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist" / "bundle")
    for made in build(sys.stdin.read(), parser.parse_args().folder):
        print(made)
