"""`gantry down` and a supervisor that is just starting, which has processes before it can be asked to stop."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from gantry_operator.cli import down
from gantry_operator.cli.errors import CliError
from gantry_operator.platforms.local.folder import ClusterFolder, default_folder
from gantry_operator.platforms.local.supervisor_lock import AlreadySupervised, take_lock

from tests.support.failing_calls import raising


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    made = ClusterFolder(tmp_path / "cluster")
    made.make()
    made.manifest.write_text("{}")
    return made


def test_it_waits_for_one_that_is_just_starting(folder: ClusterFolder) -> None:
    lock = take_lock(folder)
    ended: list[float] = []
    threading.Timer(0.3, lambda: (ended.append(time.monotonic()), lock.close())).start()
    down.down(folder.root, None, delete_data=False)
    assert ended
    assert time.monotonic() >= ended[0]


def test_nothing_is_ended_beside_one_that_does_not_end(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(down, "SUPERVISOR_S", 0.1)
    monkeypatch.setattr(down, "_end_all", lambda *_: pytest.fail("it would start everything again"))
    with take_lock(folder), pytest.raises(CliError, match="just starting"):
        down.down(folder.root, None, delete_data=False)


def test_no_process_is_started_while_the_cluster_ends(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def end_all(folder: ClusterFolder, delete_data: bool) -> str:
        with pytest.raises(AlreadySupervised):
            take_lock(folder)
        return "nothing ran"

    monkeypatch.setattr(down, "_end_all", end_all)
    down.down(folder.root, None, delete_data=False)
    take_lock(folder).close()


def test_a_folder_that_cannot_be_deleted_is_named(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member's folder may be a disk of its own."""
    mounted = folder.data("demo-a-0")
    monkeypatch.setattr(down.shutil, "rmtree", raising(OSError(errno.EBUSY, "Device or resource busy", str(mounted))))
    said = f"^0 processes stopped, but {mounted} cannot be deleted: Device or resource busy; delete the rest yourself$"
    with pytest.raises(CliError, match=said):
        down.down(folder.root, None, delete_data=True)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found by /proc: run it on Linux")
def test_a_process_without_a_record_is_ended_as_well(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise it would go on with deleted files. A process that only reads a config is not the cluster's, and
    neither is one in another folder, where the same arguments mean another cluster.
    """
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    config = str(folder.config("demo-a-0"))
    run, root, elsewhere = [*sleep, "-m", "gantry_broker.broker", "--config"], folder.root, tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(root)
    broker = subprocess.Popen([*run, config], cwd=root)
    others = [
        subprocess.Popen([*sleep, config], cwd=root),
        subprocess.Popen([*run, "/etc/gantry/demo-a-0.json"], cwd=root),
        subprocess.Popen([*run, config], cwd=elsewhere),
        subprocess.Popen([*run, "config/demo-a-0.json"], cwd=elsewhere),
    ]
    try:
        down.down(folder.root, None, delete_data=True)
        assert broker.poll() is not None
        assert [p.poll() for p in others] == [None] * 4
        assert "1 processes stopped" in capsys.readouterr().out
        assert not folder.root.exists()
    finally:
        for process in (broker, *others):
            process.kill()
            process.wait()


def test_a_stopped_cluster_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = [default_folder(name) for name in ("one", "two", "three")]
    for folder in made:
        folder.make()
        folder.manifest.write_text("{}")
    made[2].remember("three")
    with pytest.raises(CliError, match="no local cluster is called 'four'"):
        down.down(None, "four", delete_data=True)
    down.down(None, None, delete_data=True)
    assert [folder.root.exists() for folder in made] == [True, True, False], "the running one is meant first"
    with pytest.raises(CliError, match="choose with --cluster one or --cluster two"):
        down.down(None, None, delete_data=True)
    with pytest.raises(CliError, match="no local cluster is running"):
        down.down(None, None, delete_data=False)
    down.down(None, "two", delete_data=True)
    down.down(None, None, delete_data=True)
    assert not any(folder.root.exists() for folder in made)
