"""kubectl, helm and access to the nodes, as the tests use them."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import kubernetes
from gantry_broker.client import Credentials

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
BROKER_IMAGE = os.environ.get("E2E_BROKER_IMAGE", "gantry-broker:e2e")
OPERATOR_IMAGE = os.environ.get("E2E_OPERATOR_IMAGE", "gantry-operator:e2e")
SPARK_IMAGE = os.environ.get("E2E_SPARK_IMAGE", "gantry-spark:e2e")
RUN = os.environ.get("E2E_RUN", "0")
"""Differs from run to run."""
SYSTEM = "gantry-system"

T = TypeVar("T")
Figure = Callable[[str, Any], None]
"""Records a figure under a name."""


class CommandFailed(AssertionError):
    """The exit code of a command was not 0; the text is its standard error."""


def run(*command: str, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
    """What a command prints. Raises CommandFailed, also when it is killed after `timeout` seconds."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{' '.join(command[:6])}: killed after {timeout:.0f} s") from None
    if check and done.returncode != 0:
        raise CommandFailed(f"{' '.join(command[:6])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


REPEATABLE = frozenset({"annotate", "apply", "describe", "get", "label", "logs", "patch", "uncordon"})
"""Commands of kubectl with one effect, however often they run."""
BUSY = (
    "TLS handshake timeout", "i/o timeout", "etcdserver: ", "connection refused", "connection reset",
    "http2: client connection lost", "unexpected EOF", "Timeout: request did not complete", "the server is currently",
    "too many requests", "Client.Timeout",
)  # fmt: skip
"""Words of a failure that says nothing about the request: the API server has no time."""
BUSY_S = 120.0
"""Seconds for which a request to a busy API server is repeated."""


def kubectl(*arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 300) -> str:
    """As `run`. A busy API server is asked again, where that changes nothing."""
    repeatable = any(word in REPEATABLE for word in arguments[:3])
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return run("kubectl", *arguments, stdin=stdin, check=check, timeout=timeout)
        except CommandFailed as error:
            busy = any(words in str(error) for words in BUSY)
            if not (busy and repeatable) or time.monotonic() > deadline:
                raise
        time.sleep(1)


class Api:
    """Reads of the API server. Conditions are asked for several times a second, and each kubectl takes 0.1 s of CPU."""

    def __init__(self) -> None:
        found = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(client_configuration=found)
        context = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            context.load_cert_chain(found.cert_file, found.key_file)
        headers = {"Authorization": found.get_api_key_with_prefix("authorization")} if found.api_key else {}
        self._client = httpx.Client(base_url=found.host, verify=context, headers=headers, timeout=30)
        self._kinds: dict[str, tuple[str, str, bool]] = {}
        """Path of the group, plural, and whether it lies in namespaces, by each name that kubectl knows."""

    def read(self, path: str, **query: str) -> Any:
        """The JSON at a path. Raises CommandFailed, with kubectl's words."""
        answer = self._asked(functools.partial(self._client.get, path, params=query))
        if not answer.is_success:
            status = answer.json() if answer.text.startswith("{") else {}
            reason, message = status.get("reason", answer.status_code), status.get("message", answer.text)
            raise CommandFailed(f"Error from server ({reason}): {message}")
        return answer.json()

    def refusal(self, namespace: str, document: dict[str, Any]) -> str:
        """What the API server says against making this object of ours; empty: nothing. Nothing is made."""
        _, plural, _ = self.kind(document["kind"].lower())
        path = f"/apis/{document['apiVersion']}/namespaces/{namespace}/{plural}"
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        answer = self._asked(functools.partial(self._client.post, path, params=query, json=document))
        return "" if answer.is_success else str(answer.json()["message"])

    def _asked(self, request: Callable[[], httpx.Response]) -> httpx.Response:
        """The answer to a request that changes nothing. A busy API server is asked again. Raises CommandFailed."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                answer = request()
                busy = answer.status_code in (429, 502, 503, 504) or "etcdserver: " in answer.text
                if not busy or time.monotonic() > deadline:
                    return answer
            except httpx.HTTPError as error:
                if time.monotonic() > deadline:
                    raise CommandFailed(f"the API server does not answer: {error!r}") from None
            time.sleep(0.5)

    def kind(self, name: str) -> tuple[str, str, bool]:
        """As `_kinds`. Raises CommandFailed."""
        if name not in self._kinds:
            groups = self.read("/apis")["groups"]
            preferred = [group["preferredVersion"]["groupVersion"] for group in groups]
            every = [version["groupVersion"] for group in groups for version in group["versions"]]
            for version in dict.fromkeys(["", *preferred, *every]):  # "": the core group
                path = f"/apis/{version}" if version else "/api/v1"
                for resource in self.read(path)["resources"]:
                    plural = resource["name"]
                    if "/" not in plural:
                        names = [plural, resource["singularName"], resource["kind"].lower()]
                        full = ".".join([plural, *reversed(version.split("/"))])
                        for known in (*names, *resource.get("shortNames", ()), full):
                            self._kinds.setdefault(known, (path, plural, resource["namespaced"]))
        if name not in self._kinds:
            raise CommandFailed(f'the server doesn\'t have a resource type "{name}"')
        return self._kinds[name]


api = functools.cache(Api)


def get(namespace: str, kind: str, name: str = "", selector: str = "") -> Any:
    """One object, or the items of a list, as `kubectl get -o json` prints them. Raises CommandFailed.

    `kind`: a name that kubectl knows, or plural.version.group; for a list also several, separated by commas.
    """
    if "," in kind:
        return [item for one in kind.split(",") for item in get(namespace, one, selector=selector)]
    group, plural, in_namespaces = api().kind(kind)
    path = f"{group}/namespaces/{namespace}/{plural}" if in_namespaces else f"{group}/{plural}"
    if name:
        return api().read(f"{path}/{name}")
    found = api().read(path, **({"labelSelector": selector} if selector else {}))
    named = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
    return [named | item for item in found["items"]]


def workers() -> list[str]:
    """The nodes without the control plane."""
    return [
        n["metadata"]["name"] for n in get("default", "nodes") if "control-plane" not in str(n["metadata"]["labels"])
    ]


def apply(namespace: str, text: str) -> str:
    return kubectl("-n", namespace, "apply", "-f", "-", stdin=text)


def example(name: str) -> str:
    return (EXAMPLES / name).read_text()


def helm_install(*more: str) -> None:
    """Installs the chart as a user would, or upgrades it."""
    run(
        "helm", "upgrade", "--install", "gantry", str(ROOT / "helm" / "gantry"), "-n", SYSTEM, "--create-namespace",
        "--set", f"image.operator={OPERATOR_IMAGE}", "--set", f"image.broker={BROKER_IMAGE}",
        "--set", f"image.spark={SPARK_IMAGE}",
        # Images keep their names, so a cluster that e2e/run kept needs another reason to start new pods.
        "--set-string", f"podAnnotations.run={RUN}",
        # Clusters of some tests name an image that does not exist, and quick JVMs for short runs.
        "--set", "image.allowed={gantry-broker:nowhere,gantry-broker:9.9.0}",
        "--set", "analytics.allowedSparkConf={spark.driver.extraJavaOptions,spark.executor.extraJavaOptions}", *more,
        "--wait", "--timeout", "8m", timeout=540,
    )  # fmt: skip


def state_of_system() -> str:
    """Nodes, and what the pods of the chart and of Kubernetes do: the reason why an installation failed."""
    asked = (
        ("describe", "nodes"),
        ("get", "pods", "-A", "-o", "wide"),
        ("-n", SYSTEM, "describe", "pods"),
        ("-n", SYSTEM, "get", "events", "--sort-by=.lastTimestamp"),
    )
    return "\n".join(kubectl(*words, check=False) for words in asked)


EXTRA_S = 180.0
"""A condition has so many seconds more than on an idle machine, to know a slow machine from a wait without end."""


class TooLate(AssertionError):
    """A send failed, something took too long, or a master failed over without the test's doing. Nothing is lost. That
    can be the machine.
    """


class Lost(AssertionError):
    """An acknowledged message is gone, or not where its answer said. No machine is slow enough to excuse it: e2e/run
    tries every other failed test once more, alone, and then it must hold.
    """


def until(what: str, condition: Callable[[], T | None], timeout: float = 90, every: float = 0.3) -> T:
    """The first true value of `condition`. An exception of it counts as not yet.

    `timeout`: seconds that suffice on an idle machine. A busy one has `EXTRA_S` more, so this checks no time: `within`
    does. Raises AssertionError if it stays false.
    """
    return _first_true(what, condition, timeout, every)[0]


def within(what: str, condition: Callable[[], T | None], limit: float, every: float = 0.1) -> T:
    """As `until`, where the time is what is tested. Raises TooLate if it becomes true after `limit` seconds."""
    value, took, problem = _first_true(what, condition, limit, every)
    if took >= limit:
        raise TooLate(f"{what}: after {took:.1f} s instead of {limit:.0f} s; before: {problem}")
    return value


def _first_true(what: str, condition: Callable[[], T | None], timeout: float, every: float) -> tuple[T, float, object]:
    """With the seconds until the look that found it, and what the look before found."""
    begin = time.monotonic()
    problem: object = None
    while (waited := time.monotonic() - begin) < timeout + EXTRA_S:
        try:
            value = condition()
            if value:
                return value, waited, problem
            problem = value
        except (CommandFailed, KeyError, IndexError, TypeError, StopIteration) as error:
            problem = error
        time.sleep(every)
    raise AssertionError(f"{what}: not within {waited:.0f} s, {timeout:.0f} s suffice elsewhere ({problem})")


IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"


@contextlib.contextmanager
def storage_class(name: str, *, expands: bool) -> Iterator[str]:
    """A storage class like the default one, except that its volumes may or may not grow."""
    # Other tests have classes of their own at the same time.
    classes = get("default", "storageclass")
    (ordinary,) = (c for c in classes if (c["metadata"].get("annotations") or {}).get(IS_DEFAULT) == "true")
    kept = {k: ordinary[k] for k in ("apiVersion", "kind", "provisioner", "reclaimPolicy", "volumeBindingMode")}
    apply("default", json.dumps(kept | {"metadata": {"name": name}, "allowVolumeExpansion": expands}))
    try:
        yield name
    finally:
        kubectl("delete", "storageclass", name)


@contextlib.contextmanager
def forwarded(namespace: str, service: str, port: int) -> Iterator[str]:
    """The URL of a port of a Service, through the API server."""
    command = ["kubectl", "-n", namespace, "port-forward", f"service/{service}", f":{port}", "--address", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            assert "Forwarding from" in line, line
            yield f"http://{line.split()[2]}"
        finally:
            running.terminate()


def with_storage(name: str, size: str, storage_class: str) -> str:
    """examples/quickstart.yaml under another name. Its volumes have this class, and are deleted with the cluster."""
    text = example("quickstart.yaml").replace("name: demo", f"name: {name}")
    storage = json.dumps({"size": size, "className": storage_class})
    return text.replace("spec:", f"spec:\n  reclaim: Delete\n  storage: {storage}")


def key_environment(secret: str) -> list[dict[str, Any]]:
    """Environment variables of a pod with the keys of a user, as the clients in client/ read them."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, key in (("GANTRY_ACCESS_KEY", "accessKey"), ("GANTRY_SECRET_KEY", "secretKey"))
    ]


class Cluster:
    """A BrokerCluster in a namespace of its own. Its clients are its super user unless they say otherwise."""

    def __init__(self, namespace: str, name: str = "demo") -> None:
        self.namespace = namespace
        self.name = name

    def object(self) -> Any:
        return get(self.namespace, "bc", self.name)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.object().get("status") or {}
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        return next(c for c in self.status()["conditions"] if c["type"] == kind)

    def wait_true(self, *kinds: str) -> None:
        """Waits until these conditions are true: a busy machine's members are late for a moment now and then."""
        for kind in kinds:
            until(f"the condition {kind} is true", lambda kind=kind: self.condition(kind)["status"] == "True")

    def wait_running(self, timeout: float = 180, members: int | None = None) -> dict[str, Any]:
        def running() -> dict[str, Any] | None:
            obj = self.object()
            status: dict[str, Any] = obj.get("status") or {}
            good = status.get("phase") == "Running" and status["observedGeneration"] == obj["metadata"]["generation"]
            return status if good and members in (None, len(status["members"])) else None

        try:
            return until(f"{self.name} runs", running, timeout)
        except AssertionError as error:
            raise type(error)(f"{error}\n{kubectl('-n', self.namespace, 'describe', 'bc', self.name)}") from None

    def epoch(self, group: str = "a") -> int:
        """The highest epoch that a member of the group follows, by the status."""
        return max(int(m.get("epoch", 0)) for m in self.status()["members"] if m["group"] == group)

    def first_epoch(self, group: str = "a") -> None:
        """Checks that all members of a group follow its first leader: it was begun once. Raises TooLate if the status
        tells of a failover since.
        """
        status = self.status()
        epochs = {m.get("epoch") for m in status["members"] if m["group"] == group}
        since = status.get("lastFailover") or {}
        if epochs != {1} and since.get("group") == group and not since["planned"]:
            raise TooLate(f"a failover that nobody asked for: {since}")
        assert epochs == {1}, status

    def same_leader(self, master: str, epoch: int, group: str = "a") -> None:
        """Checks that nothing changed the leader. Raises TooLate: a master on a starved machine can seem to be dead."""
        if (found := self.epoch(group)) != epoch:
            since = self.status().get("lastFailover")
            raise TooLate(f"{master} led in epoch {epoch}; the epoch is {found} now: {since}")
        assert self.master_name(group) == master

    def wait_recovered(self, epoch: int, timeout: float = 120) -> None:
        """All members are ready and in sync in an epoch above `epoch`: a status from before the failure does not
        count.
        """

        def recovered() -> bool:
            status = self.status()
            rows = [m for m in status["members"] if m["group"] == "a"]
            return status["phase"] == "Running" and len({m["epoch"] for m in rows}) == 1 and rows[0]["epoch"] > epoch

        until(f"all in sync above epoch {epoch}", recovered, timeout)

    def pods(self, selector: str = "app.kubernetes.io/component=broker") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = get(self.namespace, "pods", selector=f"gantry.dev/cluster={self.name},{selector}")
        return found

    def uids(self) -> dict[str, str]:
        """The uid of every broker's pod, with the number of its container's restarts."""
        return {
            p["metadata"]["name"]: f"{p['metadata']['uid']} {sum(c['restartCount'] for c in containers(p))}"
            for p in self.pods()
        }

    def masters(self, group: str = "a") -> list[dict[str, Any]]:
        """The pods behind the master's Service. For a moment after a handover the former master is one of them."""
        return self.pods(f"gantry.dev/group={group},gantry.dev/role=master")

    def master(self, group: str = "a") -> dict[str, Any]:
        """The pod behind the master's Service, once there is one."""
        return until("one master", lambda: found[0] if len(found := self.masters(group)) == 1 else None, 30, 0.1)

    def master_name(self, group: str = "a") -> str:
        return str(self.master(group)["metadata"]["name"])

    def wait_other_master(self, old: str, timeout: float = 30, group: str = "a") -> None:
        """Waits until the master's Service leads to another pod than `old`."""
        until("another master", lambda: {p["metadata"]["name"] for p in self.masters(group)} - {old}, timeout, 0.1)

    def wait_recovered_from(self, old: str, epoch: int) -> None:
        """Waits for another master than `old`, and for all members in sync in an epoch above `epoch`."""
        self.wait_other_master(old)
        self.wait_recovered(epoch)

    def switch_over(self, group: str = "a") -> None:
        """Has another member lead, or with `GROUP=MEMBER` a certain one. A request that fails is made again: on a busy
        machine a member can be out of sync for a moment.
        """

        def asked() -> bool:
            # Each request has another text, so that it differs from answered requests.
            request = f"{group} #{time.time_ns()}"
            kubectl(
                "-n", self.namespace, "annotate", "bc", self.name, f"gantry.dev/switchover={request}", "--overwrite"
            )
            said = until("the request is answered", lambda: self._answer_to(request), 60, 0.2)
            if not said.startswith("done: "):
                print(f"switchover of {group}: {said}")
                raise CommandFailed(said)
            return True

        until(f"a switchover of {group}", asked, 60, 1)

    def _answer_to(self, request: str) -> str:
        said = str(self.object()["metadata"]["annotations"]["gantry.dev/switchover-result"])
        return said.removeprefix(f"{request} ") if said.startswith(f"{request} ") else ""

    def drain(self, node: str) -> None:
        """Drains a node of the brokers of this cluster alone: clusters of other modules have the same name."""
        pods = [p["metadata"]["name"] for p in self.pods()]
        kubectl("-n", self.namespace, "label", "pod", *pods, f"e2e-drained={self.namespace}", "--overwrite")
        try:
            kubectl(
                "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s",
                "--pod-selector", f"e2e-drained={self.namespace}", timeout=330,
            )  # fmt: skip
        finally:
            kubectl("uncordon", node)

    def patch(self, patch: dict[str, Any]) -> None:
        kubectl("-n", self.namespace, "patch", "bc", self.name, "--type", "merge", "-p", json.dumps(patch))

    def events(self) -> list[dict[str, Any]]:
        found = get(self.namespace, "events")
        return [e for e in found if e["involvedObject"]["kind"] == "BrokerCluster"]

    @property
    def needs_tls(self) -> bool:
        security = self.object()["spec"].get("security") or {}
        return bool((security.get("tls") or {}).get("mode") == "Required")

    @property
    def admin_secret(self) -> str:
        """With the keys of the super user."""
        return f"{self.name}-admin-user"

    def credentials(self, secret: str | None = None) -> Credentials:
        """Of the super user, or those in another Secret."""
        data = get(self.namespace, "secret", secret or self.admin_secret)["data"]
        return Credentials(*(base64.b64decode(data[key]).decode() for key in ("accessKey", "secretKey")))

    @property
    def name_servers(self) -> str:
        return str(self.status()["addresses"]["nameServers"])


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The statuses of its containers; none before the kubelet has seen the pod."""
    found: list[dict[str, Any]] = pod["status"].get("containerStatuses") or []
    return found


class Load:
    """`client/load.py` in a pod: sends for some seconds or until `stop`, then accounts for the acknowledged
    messages.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        seconds: float = 3600,
        node: str | None = None,
        senders: int = 4,
        secret: str | None = None,
        script: str = "load.py",
        labels: dict[str, str] | None = None,
        more: tuple[str, ...] = (),
    ) -> None:
        """`secret`: with the keys of the user that sends; default: the super user. `script`: in client/. `labels`: of
        the pod. `more`: options of the script.
        """
        self.cluster = cluster
        self.name = name
        source = (Path(__file__).parent / "client" / script).read_text()
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "load",
                        "image": BROKER_IMAGE,
                        "imagePullPolicy": "IfNotPresent",
                        "env": key_environment(secret or cluster.admin_secret),
                        "command": [
                            "python",
                            "-c",
                            source,
                            cluster.name_servers,
                            f"T-{name}",
                            str(seconds),
                            "--senders",
                            str(senders),
                            *more,
                        ],
                    }
                ],
            },
        }
        if cluster.needs_tls:
            (container,) = pod["spec"]["containers"]
            pod["spec"]["volumes"] = [{"name": "ca", "secret": {"secretName": f"{cluster.name}-ca-cert"}}]
            container["volumeMounts"] = [{"name": "ca", "mountPath": "/etc/ca"}]
            container["env"] = [*container["env"], {"name": "GANTRY_CA_FILE", "value": "/etc/ca/ca.crt"}]
        if node is not None:
            pod["spec"]["nodeName"] = node
        apply(cluster.namespace, json.dumps(pod))
        until("the load begins", self._begun, 60, 0.2)

    def _begun(self) -> bool:
        log = self._log()
        ended = get(self.cluster.namespace, "pod", self.name)["status"]["phase"] == "Failed"
        assert not ended, f"{self.name} ended before its first message was taken: {log or self._log()}"
        return "sending" in log

    def _log(self) -> str:
        return kubectl("-n", self.cluster.namespace, "logs", self.name)

    def stop(self, timeout: float = 180) -> dict[str, Any]:
        """Ends the sends, and returns the findings as `result` does."""
        kubectl("-n", self.cluster.namespace, "exec", self.name, "--", "sh", "-c", "kill -TERM 1")
        return self.result(timeout)

    def result(self, timeout: float = 180) -> dict[str, Any]:
        """The findings, once it has ended. Raises AssertionError with its log after a failure, and Lost when an
        acknowledged message is not at the place in its master's answer.
        """

        def ended() -> str | None:
            phase = get(self.cluster.namespace, "pod", self.name)["status"]["phase"]
            return phase if phase in ("Succeeded", "Failed") else None

        phase = until("the load ends", ended, timeout, 0.5)
        assert phase == "Succeeded", self._log()
        found: dict[str, Any] = json.loads(self._log().splitlines()[-1])
        kubectl("-n", self.cluster.namespace, "delete", "pod", self.name, "--wait=false")
        if found["lost"] or found["elsewhere"]:
            raise Lost(str(found))
        return found


def unharmed(result: dict[str, Any], gap_ms: int | None = None) -> None:
    """Checks the findings of a load: nothing is lost, no send failed, and no gap has `gap_ms` or more.

    Raises Lost for a lost message, and TooLate for a failed send and for a gap.
    """
    if result.get("lost", 0):
        raise Lost(str(result))
    if result.get("errors", 0) or (gap_ms is not None and result["maxGapMs"] >= gap_ms):
        raise TooLate(f"failed sends, or a gap of {gap_ms} ms or more: {result}")


UNANSWERED_MS = 1_000
"""A client sends a message again, on another connection, after so long without an answer."""


def calm(result: dict[str, Any], sends: int) -> None:
    """Checks the findings of a load that nothing disturbs: as `unharmed`, each message once, and more than `sends` of
    them. Raises TooLate for few, and for a message that was sent again because its answer was late.
    """
    unharmed(result)
    if result["sendOk"] <= sends or (result["twice"] and result["slowestMs"] >= UNANSWERED_MS):
        raise TooLate(f"{sends} sends or fewer, or late answers: {result}")
    assert result["twice"] == 0, result


def brokers_process(member: str) -> str:
    """A pattern for pgrep that finds the broker of a member."""
    return f"gantry_broker.broker --config /etc/gantry/{member}.json"


class Host:
    """Faults of processes and nodes from outside of Kubernetes. `available`: whether this run can cause them."""

    def __init__(self) -> None:
        self.kind = os.environ.get("E2E_HOST", "none")
        self.available = self.kind in ("kind", "scripts")

    def _on(self, node: str, *command: str) -> str:
        return run(*(["docker", "exec", node] if self.kind == "kind" else []), *command)

    def signal(self, signal: str, pod: dict[str, Any]) -> None:
        """Sends a signal to the broker's process of a pod."""
        until(
            f"the broker of {pod['metadata']['name']} gets the signal",
            lambda: self._on(pod["spec"]["nodeName"], "kill", f"-{signal}", self._processes_of(pod)[0]) is not None,
            15,
        )

    def separate(self, pod: dict[str, Any], others: Iterable[dict[str, Any]]) -> None:
        """Drops all packets between a broker's pod and the other brokers. All others still reach it."""
        addresses = [other["status"]["podIP"] for other in others]
        rules = [f"-I INPUT -s {a} -j DROP\n-I OUTPUT -d {a} -j DROP" for a in addresses]
        text = "\n".join(["*filter", *rules, "COMMIT"])
        # All at once: one rule after the other would cut off the members before the operators.
        self._in_network_of(pod, "sh", "-c", f"echo '{text}' | iptables-restore -w --noflush")

    def reunite(self, pod: dict[str, Any]) -> None:
        self._in_network_of(pod, "iptables", "-w", "-F")

    def _in_network_of(self, pod: dict[str, Any], *command: str) -> None:
        """Runs a command of the node in the network namespace of a broker's pod."""
        processes = self._processes_of(pod)
        assert processes, f"no broker runs at {pod['status']['podIP']} on {pod['spec']['nodeName']}"
        self._on(pod["spec"]["nodeName"], "nsenter", "-t", processes[0], "-n", *command)

    def _processes_of(self, pod: dict[str, Any]) -> list[str]:
        """The broker's process of this pod: other modules have pods of the same name."""
        node, address = pod["spec"]["nodeName"], pod["status"]["podIP"]
        pattern = brokers_process(pod["metadata"]["name"])
        found = []
        for pid in self._on(node, "pgrep", "-f", pattern).split():
            with contextlib.suppress(CommandFailed):  # It has ended meanwhile.
                if f" {address}/" in self._on(node, "nsenter", "-t", pid, "-n", "ip", "-o", "address"):
                    found.append(pid)
        return found

    @contextlib.contextmanager
    def without_api_server(self) -> Iterator[None]:
        """The API server stands still within: it answers no request."""
        nodes = [node["metadata"]["name"] for node in get("", "nodes")]
        node = next((name for name in nodes if name.endswith("control-plane")), "")
        self._on(node, "pkill", "-STOP", "-x", "kube-apiserver")
        try:
            yield
        finally:
            self._on(node, "pkill", "-CONT", "-x", "kube-apiserver")
        until("the API server answers again", lambda: bool(get("default", "namespace", "default")), 60)

    @contextlib.contextmanager
    def small_disks(self, name: str, count: int, mebibytes: int) -> Iterator[str]:
        """Volumes of a new class `name`, each a file system of its own of this size, in memory. Yields the name."""
        nodes = [node["metadata"]["name"] for node in get("", "nodes")] if self.kind == "kind" else [""]
        disks = [f"/var/tmp/{name}-{number}" for number in range(count)]
        options = f"size={mebibytes}m,mode=0777"
        made: list[dict[str, Any]] = [
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": name},
                "provisioner": "kubernetes.io/no-provisioner",
            }
        ]
        for disk in disks:
            for node in nodes:
                self._on(node, "sh", "-c", f"mkdir -p {disk} && mount -t tmpfs -o {options} tmpfs {disk}")
            spec = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": name,
                "hostPath": {"path": disk},
            }
            meta = {"name": disk.rsplit("/", 1)[1]}
            made.append({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec})
        try:
            apply("default", json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
            yield name
        finally:
            for item in made:
                meta = item["metadata"]["name"]
                kubectl("delete", item["kind"].lower(), meta, "--ignore-not-found", "--wait=false", check=False)
            for disk in disks:
                for node in nodes:
                    self._on(node, "sh", "-c", f"umount -l {disk}; rmdir {disk}; true")

    def disk_of(self, namespace: str, claim: str) -> tuple[str, str]:
        """The node of a broker's pod and the folder of its volume, one of `small_disks`."""
        volume = get(namespace, "pvc", claim)["spec"]["volumeName"]
        node = get(namespace, "pod", claim.removeprefix("data-"))["spec"]["nodeName"]
        return node, get("", "persistentvolume", volume)["spec"]["hostPath"]["path"]

    def fill(self, disk: tuple[str, str]) -> None:
        """Leaves no byte free on a disk of `disk_of`."""
        node, folder = disk
        self._on(node, "sh", "-c", f"dd if=/dev/zero of={folder}/filled bs=64k 2>/dev/null; true")

    def make_room(self, disk: tuple[str, str]) -> None:
        node, folder = disk
        self._on(node, "rm", "-f", f"{folder}/filled")

    def node(self, action: str, node: str) -> None:
        """kill, start, cut or heal."""
        if self.kind == "scripts":
            run(f"{os.environ['E2E_KUBE_SCRIPTS']}/node", action, node, timeout=180)
            return
        commands = {
            "kill": ["docker", "kill", node],
            "start": ["docker", "start", node],
            "cut": ["docker", "network", "disconnect", "kind", node],
            "heal": ["docker", "network", "connect", "kind", node],
        }
        run(*commands[action])
