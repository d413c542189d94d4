"""Error messages of the commands, and the lookup of clusters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gantry_operator.api.cluster import API_VERSION, KIND, BrokerCluster
from gantry_operator.api.manifest import load_manifest
from gantry_operator.cli.show import show_resource
from gantry_operator.cli.up import default_manifest
from gantry_operator.cluster.amounts import size
from gantry_operator.platforms.local.folder import (
    ClusterFolder,
    ClusterNotFound,
    default_folder,
    find_folder,
    known_clusters,
)
from gantry_operator.platforms.local.manifest import save_manifest

ROOT = Path(__file__).resolve().parents[2]


def gantry(
    state: Path, *args: str, name: str = "gantry", kubeconfig: str = "/nonexistent"
) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.argv[0] = {name!r}; from gantry_operator.cli import main; main()"
    environment = os.environ | {"XDG_STATE_HOME": str(state), "KUBECONFIG": kubeconfig}
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def manifest(path: Path, **spec: object) -> Path:
    wanted = {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 1}]} | spec
    path.write_text(json.dumps({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "t"}, "spec": wanted}))
    return path


def test_help_teaches(tmp_path: Path) -> None:
    said = gantry(tmp_path, "--help").stdout
    for command in ("up", "status", "top", "switchover", "down", "topic", "user", "dlq", "produce", "consume"):
        assert command in said
    assert "gantry up --detach" in said
    assert "Exit codes" in said


CONTROL = ("httpx", "gantry_operator.cluster.platform", "gantry_operator.failover", "gantry_broker.contracts.models")


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("--version", ("gantry_operator.api", "gantry_broker.client", "pydantic")),
        ("topic list --dir", CONTROL),
        ("group list --dir", CONTROL),
        ("user list --dir", CONTROL),
        ("table list --dir", ("pyiceberg", "sqlalchemy", "pyarrow")),
        ("status --dir", ("fastapi", "kopf", "aiohttp", "gantry_operator.console")),
    ],
)
def test_a_command_imports_what_it_needs(tmp_path: Path, command: str, unneeded: tuple[str, ...]) -> None:
    """Imports are most of the time of a command, and these are never used by it."""
    folder = ClusterFolder(tmp_path / "c")
    folder.make()
    save_manifest(folder, BrokerCluster.make("t", brokerGroups=[{"name": "a", "members": 1}]))
    code = (
        "import sys\n"
        "from gantry_operator.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sys.modules)\n"
        "api = sys.modules.get('gantry_operator.api.consumer_group')\n"
        "print('BUILT', api is not None and api.ConsumerGroup.__pydantic_complete__)"
    )
    words = command.split() + ([str(folder.root)] if "--dir" in command else [])
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=True,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    loaded, built = done.stdout.splitlines()[-2:]
    assert not {module for module in loaded.split() if module.startswith(unneeded)}
    assert built == "BUILT False", "the schema of a model that the command does not use"


def test_without_a_cluster_it_says_how_to_start_one(tmp_path: Path) -> None:
    commands = ("status", "switchover a", "down", "topic list", "dlq list", "dlq resend g", "produce T --count 1")
    for args in (command.split() for command in commands):
        done = gantry(tmp_path, *args)
        assert done.returncode == 3, args
        assert done.stderr == "error: no local cluster is running; start one with: gantry up\n"
        assert done.stdout == ""


def test_a_wrong_manifest_names_the_field_the_value_and_what_to_write(tmp_path: Path) -> None:
    file = manifest(tmp_path / "bad.yaml", replication="sync", brokerGroups=[{"name": "a", "members": 0}])
    done = gantry(tmp_path, "up", str(file))
    assert done.returncode == 2
    assert "spec.replication" in done.stderr
    assert '"sync"' in done.stderr
    assert "spec.brokerGroups[0].members" in done.stderr
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())
    assert not (tmp_path / "gantry").exists(), "nothing was made"


def test_examples_are_listed_and_printed(tmp_path: Path) -> None:
    files = {path.stem: path.read_text() for path in (ROOT / "examples").glob("*.yaml")}
    said = gantry(tmp_path, "examples").stdout
    assert [line.split()[0] for line in said.splitlines()] == sorted(files)
    assert {entry["name"] for entry in json.loads(gantry(tmp_path, "examples", "-o", "json").stdout)} == set(files)
    for name, text in files.items():
        assert gantry(tmp_path, "examples", name).stdout == text
    unknown = gantry(tmp_path, "examples", "nothing")
    assert (unknown.returncode, unknown.stderr.count("quickstart")) == (2, 1)


def test_up_without_a_file_starts_the_last_cluster_or_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert load_manifest(default_manifest(None)).name == "demo"
    assert load_manifest(default_manifest(tmp_path / "new")).name == "demo"
    _remember(tmp_path / "mine", "mine")
    assert load_manifest(default_manifest(tmp_path / "mine")).name == "mine"
    default_folder("demo").make()
    save_manifest(default_folder("demo"), BrokerCluster.make("demo", brokerGroups=[{"name": "other", "members": 1}]))
    assert load_manifest(default_manifest(None)).spec.brokerGroups[0].name == "other", "a changed cluster stays so"


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = gantry(tmp_path, "up", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "No such file" in done.stderr


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    done = gantry(tmp_path, "up", str(manifest(tmp_path / "c.yaml")), "--dir", str(tmp_path / "mine"))
    assert done.returncode == 2
    assert "is not empty and holds no cluster" in done.stderr


def test_help_of_dead_letters_says_the_effect(tmp_path: Path) -> None:
    said = " ".join(gantry(tmp_path, "dlq", "resend", "--help").stdout.replace("│", " ").split())
    assert "to this group alone, with all its tries" in said
    assert "The cluster stores the progress" in said
    assert "gantry dlq read billing" in " ".join(gantry(tmp_path, "dlq", "--help").stdout.split())


def test_produce_requires_a_source(tmp_path: Path) -> None:
    done = gantry(tmp_path, "produce", "T")
    assert done.returncode == 2
    assert "--count N" in done.stderr


def test_kubernetes_without_a_kubeconfig_says_so(tmp_path: Path) -> None:
    for done in (
        gantry(tmp_path, "status", "-n", "x"),
        gantry(tmp_path, "status", name="kubectl-gantry"),
        gantry(tmp_path, "topic", "list", "--context", "other"),
        gantry(tmp_path, "produce", "T", "--count", "1", "-n", "x"),
    ):
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "error: there is no kubeconfig at /nonexistent: set KUBECONFIG to yours, or leave out --context and "
            "--namespace for a cluster of this machine\n"
        )
    assert gantry(tmp_path, "status", "-n", "x", "--dir", str(tmp_path)).returncode == 2


def test_a_context_that_is_not_there_is_no_such_cluster(tmp_path: Path) -> None:
    """With a namespace, too."""
    one = {"name": "here", "context": {"cluster": "c", "user": "u"}}
    server = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    text = {"contexts": [one], "clusters": [server], "users": [{"name": "u", "user": {"token": "t"}}]}
    file = tmp_path / "config"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here"} | text))
    for where in ((), ("-n", "x")):
        done = gantry(tmp_path, "status", "--context", "nowhere", *where, kubeconfig=str(file))
        assert (done.returncode, done.stderr) == (3, "error: the kubeconfig has no context nowhere, but here\n")


def _remember(root: Path, name: str) -> ClusterFolder:
    folder = ClusterFolder(root)
    folder.make()
    save_manifest(folder, BrokerCluster.make(name, brokerGroups=[{"name": "a", "members": 1}]))
    folder.remember(name)
    return folder


def test_clusters_are_found_by_name_folder_or_because_there_is_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    one = _remember(tmp_path / "one", "one")
    assert find_folder(None, None) == one
    two = _remember(tmp_path / "two", "two")
    with pytest.raises(ClusterNotFound, match="--cluster one or --cluster two"):
        find_folder(None, None)
    assert find_folder(None, "two") == two
    assert find_folder(tmp_path / "one", None) == one
    with pytest.raises(ClusterNotFound, match="no local cluster is called 'three'"):
        find_folder(None, "three")
    with pytest.raises(ClusterNotFound, match="holds no cluster"):
        find_folder(tmp_path, None)
    _remember(tmp_path / "again", "two")
    with pytest.raises(ClusterNotFound, match="--dir"):
        find_folder(None, "two")
    two.forget()
    assert [n for n, _ in known_clusters()] == ["one", "two"]


def test_the_table_reads_the_resource_of_either_kind(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": "demo-a-0", "group": "a", "role": "Master", "brokerId": 0, "epoch": 3, "maxOffset": 2048, "lag": 0,
           "inSync": True, "address": "10.0.0.1:10911", "node": "n1", "reason": "[disk] full"}  # fmt: skip
    show_resource(
        {
            "metadata": {"name": "demo"},
            "spec": {"replication": "Sync", "minInSyncReplicas": 2, "flush": "Async", "mode": "MasterSlave"},
            "status": {
                "phase": "Degraded",
                "conditions": [
                    {
                        "type": "Available",
                        "status": "True",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                        "message": "[x]",
                    }
                ],
                "members": [row],
                "events": [{"type": "Warning", "reason": "Degraded", "time": None, "message": "m", "object": "a"}],
            },
        }
    )
    out = capsys.readouterr().out
    assert "demo  Degraded" in out
    assert "10.0.0.1:10911" in out
    assert "NODE" in out
    assert "[disk] full" in out, "square brackets of messages are no markup"
    assert "Sync, minInSyncReplicas 2, flush Async, mode MasterSlave" in out


def test_a_raft_groups_promise_is_its_majority(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"replication": "Async", "minInSyncReplicas": 1, "flush": "Async", "mode": "Raft"}
    show_resource({"metadata": {"name": "demo"}, "spec": settings, "status": {}})
    out = capsys.readouterr().out
    assert "a majority of the members has it on disk" in out
    assert "Async" not in out, "these settings do not count in this mode"


def test_sizes_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5_000_000, 2**41)] == ["0 B", "1023 B", "1.0 KiB", "4.8 MiB", "2.0 TiB"]
