"""The benchmark rig: it checks its tools before it starts anything, and it leaves no process behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig.processes import NamespaceUnavailable, Started, namespace, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("options", [("--kind", "partition"), ("--system", "dledger", "--kind", "kill9")])
def test_failover_refuses_to_start_without_iptables(tmp_path: Path, options: tuple[str, ...]) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    done = subprocess.run(
        [sys.executable, "benchmarks/failover.py", "-n", "1", "--client", "gantry", "--dir", str(tmp_path), *options],
        cwd=ROOT, env={"PATH": str(tools), "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "apt-get install iptables" in done.stderr
    assert list(tmp_path.iterdir()) == [tools]


def test_a_namespace_leaves_no_process_behind(tmp_path: Path) -> None:
    try:
        with namespace("rig") as prefix:
            member = Started([*prefix, "sleep", "600"], tmp_path / "log")
            until("sleep runs", lambda: Path(f"/proc/{member.pid}/comm").read_text() == "sleep\n", 30)
            raise RuntimeError("a benchmark fails")
    except NamespaceUnavailable as error:
        pytest.skip(str(error))
    except RuntimeError:
        assert member.popen.wait(10) == -9
