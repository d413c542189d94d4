"""The ports of a local cluster."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from gantry_operator.api.manifest import load_manifest
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local import port_claims as claims
from gantry_operator.platforms.local import ports as module
from gantry_operator.platforms.local.folder import ClusterFolder, make_private
from gantry_operator.platforms.local.ports import HOST, OTHER_PORTS, Ports
from gantry_operator.platforms.local.ports import _free as is_free

from tests.support.free_ports import free_port

MANIFEST = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
CLUSTER = plan(load_manifest(MANIFEST))


@pytest.fixture(autouse=True)
def own_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster outside of this test counts."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def chosen(folder: Path) -> Ports:
    """Choose the ports of a cluster in this folder."""
    folder.mkdir(exist_ok=True)
    ports = Ports.load(folder / "ports.json")
    ports.choose(CLUSTER, frozenset())
    return ports


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Preferred ports that are free here. RocketMQ's own ports may be in use."""
    first = next(port for port in iter(free_port, None) if all(map(is_free, range(port, port + 40))))
    chosen = {"NAME_SERVER_PORT": first, "BROKER_PORT": first + 10, "HTTP_ABOVE": 20}
    for name, value in chosen.items():
        monkeypatch.setattr(module, name, value)
    return chosen


def test_every_use_has_a_port_of_its_own_and_the_same_at_the_next_start(tmp_path: Path) -> None:
    first = Ports.load(tmp_path / "ports.json")
    assert first.choose(CLUSTER, frozenset()) == []
    assert len(set(first.taken.values())) == len(first.taken) > 0
    again = Ports.load(tmp_path / "ports.json")
    assert again.choose(CLUSTER, frozenset()) == []
    assert again.taken == first.taken


@pytest.mark.parametrize("port", ["x", None, 1.5, [], 70_000, -1])
def test_an_invalid_port_is_chosen_again(tmp_path: Path, port: object) -> None:
    first = chosen(tmp_path)
    (tmp_path / "ports.json").write_text(json.dumps(first.taken | {"group/a": port}))
    again = chosen(tmp_path)
    instead = again["group/a"]
    assert again.taken == first.taken | {"group/a": instead}
    assert len(set(again.taken.values())) == len(again.taken)
    assert is_free(instead)


def test_instead_of_a_taken_port_comes_one_that_no_outgoing_connection_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(module, "BROKER_PORT", taken)
        ports = chosen(tmp_path)
    assert ports["group/a"] in OTHER_PORTS
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if ephemeral.exists():
        assert OTHER_PORTS.stop <= int(ephemeral.read_text().split()[0])


def test_where_there_are_no_more_ports_in_a_row_come_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BROKER_PORT", 65_534)
    ports = chosen(tmp_path)
    assert all(port < 1 << 16 for port in ports.taken.values())
    assert set(ports.taken.values()) & set(OTHER_PORTS)


def test_a_remembered_port_in_use_is_replaced_and_named(tmp_path: Path) -> None:
    ports = chosen(tmp_path)
    with socket.socket() as other:
        other.bind((HOST, ports["group/a"]))
        other.listen()
        assert ports.choose(CLUSTER, frozenset()) == ["group/a"]
        assert ports["group/a"] != other.getsockname()[1]
        kept = dict(ports.taken)
        assert ports.choose(CLUSTER, frozenset({"demo-a-0"})) == []
        assert ports.taken == kept


def test_a_port_of_another_running_cluster_is_in_use_without_a_listener(
    tmp_path: Path, preferred: dict[str, int]
) -> None:
    """Between the end of a master and the start of the next the group's port is free."""
    one, two = chosen(tmp_path / "one"), chosen(tmp_path / "two")
    assert not set(one.taken.values()) & set(two.taken.values())
    assert one.choose(CLUSTER, frozenset()) == [], "a cluster does not stand in its own way"
    (tmp_path / "one" / "ports.json").unlink()
    three = chosen(tmp_path / "three")
    assert set(three.taken.values()) & set(one.taken.values()), "a cluster that was removed takes no port"
    assert not set(three.taken.values()) & set(two.taken.values())


def test_a_cluster_of_which_nothing_runs_takes_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both choose as if every port of this machine was free: what other programs take does not matter."""
    monkeypatch.setattr(module, "_free", lambda port: True)
    ended = tmp_path / "ended"
    ended.mkdir()
    chooser = (
        "import sys, pathlib; from gantry_operator.platforms.local import ports;"
        "from gantry_operator.plan.plan import plan;"
        "from gantry_operator.api.manifest import load_manifest;"
        "ports._free = lambda port: True;"
        "p = ports.Ports.load(pathlib.Path(sys.argv[1]) / 'ports.json');"
        "p.choose(plan(load_manifest(pathlib.Path(sys.argv[2]))), frozenset())"
    )
    subprocess.run([sys.executable, "-c", chooser, str(ended), str(MANIFEST)], check=True)
    before = Ports.load(ended / "ports.json").taken
    mine = chosen(tmp_path)
    assert mine.taken == before


def test_a_program_that_stands_still_while_it_chooses_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Like a `gantry up` that was stopped with Ctrl-Z."""
    claims.claims_folder().mkdir()
    with open(claims.claims_folder() / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        again = threading.Timer(claims.LOCK_WAIT_S + 40, lock.close)
        again.start()
        begun = time.monotonic()
        ports = Ports.load(tmp_path / "ports.json")
        assert ports.choose(CLUSTER, frozenset()) == []
        assert time.monotonic() - begun < claims.LOCK_WAIT_S + 30
        again.cancel()
    assert len(set(ports.taken.values())) == len(ports.taken) > 0
    assert "another cluster may choose ports at the same time: another `gantry up` holds" in caplog.text


def test_ports_that_a_busy_disk_has_not_taken_yet_are_known_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preferred: dict[str, int]
) -> None:
    monkeypatch.setattr(claims, "LOCK_WAIT_S", 0.2)
    others: list[Ports] = []
    real = module.write_durably

    def slow(path: Path, text: str) -> None:
        if path.parent.name == "one":
            others.append(chosen(tmp_path / "two"))
        real(path, text)

    monkeypatch.setattr(module, "write_durably", slow)
    one, [two] = chosen(tmp_path / "one"), others
    assert not set(one.taken.values()) & set(two.taken.values())


def test_without_the_lock_ports_of_other_clusters_are_avoided_and_own_ports_are_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preferred: dict[str, int]
) -> None:
    monkeypatch.setattr(claims, "LOCK_WAIT_S", 0.05)
    one = chosen(tmp_path / "one")
    over = claims.claims_folder() / ClusterFolder(tmp_path / "over").file_name
    over.write_text(json.dumps({"folder": str(tmp_path / "over")}))
    with open(claims.claims_folder() / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        two = chosen(tmp_path / "two")
    assert not set(one.taken.values()) & set(two.taken.values())
    assert over.exists(), "the holder of the lock may be writing it"
    (tmp_path / "one" / "ports.json").unlink()
    three = chosen(tmp_path / "three")
    assert not set(two.taken.values()) & set(three.taken.values())
    assert not over.exists()


def test_a_link_at_the_folder_of_claims_leads_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may make one in the temporary directory."""
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    for name, text in (("package.json", '{"name": "x"}'), ("empty.json", ""), ("list.json", "[1]")):
        (mine / name).write_text(text)
    claims.claims_folder().symlink_to(mine)
    before = {path.name: path.read_text() for path in mine.iterdir()}
    assert Ports.load(tmp_path / "ports.json").choose(CLUSTER, frozenset()) == []
    assert {path.name: path.read_text() for path in mine.iterdir()} == before
    assert mine.stat().st_mode & 0o777 == 0o755
    assert "is a link or no folder" in caplog.text


def test_in_the_folder_of_claims_only_claims_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    folder = claims.claims_folder()
    folder.mkdir(mode=0o777)
    foreign = {"notes.json": '{"a": 1}', "empty.json": "", "deep.json": "[" * 50_000, "0.json": '{"folder": "/x"}'}
    for name, text in foreign.items():
        (folder / name).write_text(text)
    target = tmp_path / "target.json"
    target.write_text(json.dumps({"folder": str(tmp_path / "gone")}))
    linked = folder / ClusterFolder(tmp_path / "gone").file_name
    linked.symlink_to(target)
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    chosen(tmp_path)
    assert {name: (folder / name).read_text() for name in foreign} == foreign
    assert linked.is_symlink()
    assert target.exists()
    assert folder.stat().st_mode & 0o777 == 0o700, "only its owner may enter"
    (mine,) = (path for path in folder.iterdir() if path.name == ClusterFolder(tmp_path.resolve()).file_name)
    assert mine.stat().st_mode & 0o777 == 0o600


def test_a_link_at_the_lock_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    claims.claims_folder().mkdir()
    (claims.claims_folder() / "lock").symlink_to(tmp_path / "elsewhere")
    chosen(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    assert "another cluster may choose ports at the same time" in caplog.text


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(tmp_path / "mine")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(PermissionError, match="belongs to user"):
        make_private(tmp_path / "mine")


def test_another_port_than_the_usual_one_is_said(tmp_path: Path, preferred: dict[str, int]) -> None:
    usual = chosen(tmp_path)
    assert list(usual.unusual(CLUSTER)) == []
    first = preferred["NAME_SERVER_PORT"]
    with socket.socket() as other:
        other.bind((HOST, first))
        other.listen()
        ports = Ports.load(tmp_path / "others.json")
        ports.choose(CLUSTER, frozenset())
        (said,) = ports.unusual(CLUSTER)
        port = ports[CLUSTER.name_servers[0].name]
        assert said.startswith(f"port {first} belongs to another program, so the NameServer has {port}")
        assert said.endswith(f"write {HOST}:{port} in clients")
    assert next(ports.unusual(CLUSTER)).startswith(f"port {first} was taken, so")
