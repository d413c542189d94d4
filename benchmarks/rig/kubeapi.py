"""A Kubernetes API server with its etcd in a network of its own, without controllers and nodes.

`etcd`, `kube-apiserver`, `kubectl` and `helm` come from PATH. All addresses of the pods' and the Services' ranges are
local in that network, so that stand-ins can listen on them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml
from gantry_operator.platforms.kubernetes.api.client import KubeApi
from kubernetes.aio.client.configuration import Configuration

from .processes import Started, namespace, until

PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
ADVERTISED = "10.244.255.254"
URL = "https://127.0.0.1:6443"
SYSTEM = "gantry-system"
ACCOUNT = "gantry-operator"
NEEDED = ("etcd", "kube-apiserver", "kubectl", "helm")


class ApiServer:
    """Runs during the `with` block. Its files lie in `folder`; `admin` is a kubeconfig with all rights."""

    def __init__(self, folder: Path) -> None:
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if missing:
            raise SystemExit(f"not on PATH: {', '.join(missing)}")
        self._folder = folder
        self._audit = folder / "audit.log"
        self._stack = contextlib.ExitStack()
        self._token = secrets.token_hex(16)
        self.admin = folder / "admin.conf"

    def __enter__(self) -> ApiServer:
        folder = self._folder
        key = str(folder / "sa.key")
        self.run("openssl", "genrsa", "-out", key, "2048")
        (folder / "tokens.csv").write_text(f"{self._token},rig,rig,system:masters\n")
        (folder / "audit.json").write_text(json.dumps(self._audit_policy()))
        self.admin.write_text(kubeconfig(self._token))
        with contextlib.ExitStack() as stack:
            etcd = stack.enter_context(
                Started(
                    ["etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level", "warn"],
                    folder / "etcd.log",
                )
            )
            server = stack.enter_context(Started(self._server_words(key), folder / "apiserver.log"))
            until("the API server is ready", self._ready, 90, [etcd, server])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Runs kubectl as the administrator. Raises CalledProcessError."""
        return self.run("kubectl", "--kubeconfig", str(self.admin), *words, stdin=stdin)

    def client(self) -> KubeApi:
        """Returns an API client of the administrator."""
        configuration = Configuration()
        configuration.host, configuration.verify_ssl = URL, False
        configuration.api_key = {"BearerToken": f"Bearer {self._token}"}
        return KubeApi(configuration)

    def requests(self) -> Counter[str]:
        """Returns the number of the operator's answered requests by "verb resource". Watches count when they end."""
        found: Counter[str] = Counter()
        with self._audit.open() as lines:
            for line in lines:
                event = json.loads(line)
                what = event.get("objectRef") or {}
                resource = "/".join(p for p in (what.get("resource", "?"), what.get("subresource")) if p)
                own = " of the operator itself" if what.get("name") == "gantry-operator" else ""
                found[f"{event['verb']} {resource}{own}"] += 1
        return found

    def _ready(self) -> bool:
        words = ["kubectl", "--kubeconfig", str(self.admin), "get", "--raw", "/readyz"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout == "ok"

    def _server_words(self, key: str) -> list[str]:
        folder = self._folder
        return [
            "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--secure-port=6443",
            f"--advertise-address={ADVERTISED}", f"--service-cluster-ip-range={SERVICES}", f"--cert-dir={folder}",
            f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            # Only the operator makes accounts here; it makes those of the brokers.
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={folder / 'audit.json'}", f"--audit-log-path={self._audit}",
        ]  # fmt: skip

    def _audit_policy(self) -> dict[str, object]:
        return {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata", "users": [f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"]}, {"level": "None"}],
        }

    def run(self, *words: str, stdin: str | None = None) -> str:
        """Returns the output of a command. Shows the errors of a failed one and raises CalledProcessError."""
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            done.check_returncode()
        return done.stdout


def kubeconfig(token: str) -> str:
    """Returns a kubeconfig for a token, as JSON (which is YAML)."""
    named = "rig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": named,
        "clusters": [{"name": named, "cluster": {"server": URL, "insecure-skip-tls-verify": True}}],
        "users": [{"name": named, "user": {"token": token}}],
        "contexts": [{"name": named, "context": {"cluster": named, "user": named}}],
    }
    return json.dumps(config)


@contextlib.contextmanager
def own_network(label: str) -> Iterator[list[str]]:
    """Makes a network in which all pods' and Services' addresses are local; yields the prefix of commands that run in
    it.

    Raises NamespaceUnavailable.
    """
    with namespace(label) as prefix:
        for addresses in (PODS, SERVICES):
            subprocess.run([*prefix, "ip", "route", "add", "local", addresses, "dev", "lo"], check=True)
        yield prefix


@contextlib.contextmanager
def operator(server: ApiServer, chart: Path, folder: Path) -> Iterator[Started]:
    """Starts the operator as a process, with the account and exactly the rights of the chart."""
    version = json.loads(server.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    rendered = server.run("helm", "template", "gantry", str(chart), "-n", SYSTEM, "--kube-version", version)
    wanted = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
    objects = [o for o in yaml.safe_load_all(rendered) if o is not None and o["kind"] in wanted]
    server.kubectl("create", "namespace", SYSTEM)
    server.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))
    server.kubectl("wait", "--for=condition=Established", "crd", "--all")
    token = server.kubectl("create", "token", ACCOUNT, "-n", SYSTEM, "--duration=4h").strip()
    (folder / "operator.conf").write_text(kubeconfig(token))
    env = {
        "KUBECONFIG": str(folder / "operator.conf"),
        "POD_NAME": "gantry-operator-0",
        "POD_NAMESPACE": SYSTEM,
        "GANTRY_BROKER_IMAGE": "gantry-broker:stand-in",
        "GANTRY_SPARK_IMAGE": "gantry-spark:stand-in",
    }
    with Started(
        [sys.executable, "-m", "gantry_operator.platforms.kubernetes.operator"], folder / "operator.log", env
    ) as process:
        yield process
