"""Which ports a local cluster is given."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from gantry_operator.api import load_manifest
from gantry_operator.local import ports as module
from gantry_operator.local.ports import HOST, OTHER_PORTS, Ports
from gantry_operator.plan import plan

MANIFEST = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
CLUSTER = plan(load_manifest(MANIFEST))


def test_every_use_has_a_port_of_its_own_and_the_same_at_the_next_start(tmp_path: Path) -> None:
    first = Ports.load(tmp_path / "ports.json")
    assert first.choose(CLUSTER, frozenset()) == []
    assert len(set(first.taken.values())) == len(first.taken) > 0
    again = Ports.load(tmp_path / "ports.json")
    assert again.choose(CLUSTER, frozenset()) == []
    assert again.taken == first.taken


def test_instead_of_a_taken_port_comes_one_that_no_outgoing_connection_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(module, "BROKER_PORT", taken)
        ports = Ports.load(tmp_path / "ports.json")
        ports.choose(CLUSTER, frozenset())
    assert ports["group/a"] in OTHER_PORTS
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if ephemeral.exists():
        assert OTHER_PORTS.stop <= int(ephemeral.read_text().split()[0])


def test_a_remembered_port_that_somebody_else_has_taken_is_replaced_and_named(tmp_path: Path) -> None:
    ports = Ports.load(tmp_path / "ports.json")
    ports.choose(CLUSTER, frozenset())
    with socket.socket() as other:
        other.bind((HOST, ports["group/a"]))
        other.listen()
        assert ports.choose(CLUSTER, frozenset()) == ["group/a"]
        assert ports["group/a"] != other.getsockname()[1]
        kept = dict(ports.taken)
        assert ports.choose(CLUSTER, frozenset({"demo-a-0"})) == []
        assert ports.taken == kept
