"""`gantry debug` on stores that no broker has open, and what it says of wrong arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import gantry
from tests.store.test_describe import content, fill
from tests.store.test_recorded_stores import unpack


@pytest.fixture
def store(tmp_path: Path) -> Path:
    from gantry_broker.settings import BrokerSettings

    root = tmp_path / "store"
    fill(root, BrokerSettings(mappedFileSizeCommitLog=65_536))
    return root


def test_log_prints_a_line_for_each_record(tmp_path: Path, store: Path) -> None:
    done = gantry(tmp_path, "debug", "log", str(store))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len([line for line in lines if " message " in line]) == 31
    assert "epoch 1 begins: member 0 of group a leads" in done.stdout
    assert "blank" in lines[-1]
    one = gantry(tmp_path, "debug", "log", str(store), "--topic", "U", "-o", "json")
    assert [json.loads(line)["topic"] for line in one.stdout.splitlines()] == ["U"]
    some = gantry(tmp_path, "debug", "log", str(store), "--from", "5000", "--count", "2", "-o", "json")
    found = [json.loads(line) for line in some.stdout.splitlines()]
    assert len([entry for entry in found if "topic" in entry]) == 2
    assert some.stderr == f"no record begins at 5000; the next one begins at {found[0]['offset']}\n"
    control = gantry(tmp_path, "debug", "log", str(store), "--count", "1", "-o", "json")
    assert json.loads(control.stdout)["control"].startswith("epoch 1 begins")


def test_epochs_checkpoint_and_member_of_a_path(tmp_path: Path, store: Path) -> None:
    said = gantry(tmp_path, "debug", "epochs", str(store)).stdout.splitlines()
    assert [line.split(":")[0] for line in said] == ["epoch 1", "epoch 3"]
    assert json.loads(gantry(tmp_path, "debug", "epochs", str(store), "-o", "json").stdout)[0]["epoch"] == 1
    said = gantry(tmp_path, "debug", "checkpoint", str(store)).stdout.splitlines()
    assert "a start would be: one after a crash" in [" ".join(line.split()) for line in said]
    planned = json.loads(gantry(tmp_path, "debug", "checkpoint", str(store), "-o", "json").stdout)
    assert planned["abortFile"]
    assert planned["start"]["damage"] is None
    assert "belongs to no member yet" in gantry(tmp_path, "debug", "member", str(store)).stdout
    assert json.loads(gantry(tmp_path, "debug", "member", str(store), "-o", "json").stdout)["replica"] is None


def test_no_command_writes_anything(tmp_path: Path) -> None:
    root = unpack("5x-running", tmp_path)
    before = content(root)
    for command in ("log", "epochs", "checkpoint", "member"):
        done = gantry(tmp_path, "debug", command, str(root))
        assert done.returncode == 0, done.stderr
    assert content(root) == before


def test_wrong_arguments_say_what_to_write(tmp_path: Path, store: Path) -> None:
    none = gantry(tmp_path, "debug", "log", "./nothing")
    assert (none.returncode, none.stderr.count("\n")) == (2, 1)
    assert "write the path of a store" in none.stderr
    empty = gantry(tmp_path, "debug", "epochs", str(tmp_path))
    assert (empty.returncode, "no folder commitlog" in empty.stderr) == (1, True)
    far = gantry(tmp_path, "debug", "log", str(store), "--from", "999999999")
    assert "is outside of the log, whose files have 0 to" in far.stderr
    assert gantry(tmp_path, "debug", "log", "demo-a-0").returncode == 3
    (store / "config" / "epochs.json").write_text("{")
    broken = gantry(tmp_path, "debug", "checkpoint", str(store))
    assert (broken.returncode, broken.stderr.count("\n")) == (1, 1)
    assert "epochs.json" in broken.stderr
