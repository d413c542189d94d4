"""The benchmark rig: it checks its tools before it starts anything, and it leaves no process behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig.processes import NamespaceUnavailable, Started, namespace, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words",
    [
        ("failover.py", "-n", "1", "--client", "gantry", "--kind", "partition"),
        ("failover.py", "-n", "1", "--client", "gantry", "--system", "dledger", "--kind", "kill9"),
        ("end_to_end.py", "--kind", "Sync"),
    ],
)
def test_a_benchmark_refuses_to_start_without_iptables(tmp_path: Path, words: tuple[str, ...]) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    done = subprocess.run(
        [sys.executable, f"benchmarks/{words[0]}", *words[1:], "--dir", str(tmp_path)],
        cwd=ROOT, env={"PATH": str(tools), "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "iptables" in done.stderr.partition("apt-get install")[2]
    assert list(tmp_path.iterdir()) == [tools]


def test_a_namespace_leaves_no_process_behind(tmp_path: Path) -> None:
    try:
        with namespace("rig") as prefix:
            member = Started([*prefix, "sleep", "600"], tmp_path / "log")
            until("sleep runs", lambda: Path(f"/proc/{member.pid}/comm").read_text() == "sleep\n", 30)
            raise RuntimeError("a benchmark fails")
    except NamespaceUnavailable as error:
        pytest.skip(f"the end of a network namespace is not tested here: {error}")
    except RuntimeError:
        assert member.popen.wait(10) == -9


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_end_of_a_benchmark_ends_its_processes(tmp_path: Path, how: signal.Signals) -> None:
    program = """
import signal, sys, time
from pathlib import Path
from benchmarks.rig.processes import Started, exit_on_sigterm
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job ignores it.
exit_on_sigterm()
with Started(["sleep", "600"], Path(sys.argv[1]) / "log") as started:
    print(started.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    ) as benchmark:  # fmt: skip
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        benchmark.send_signal(how)
        benchmark.wait(30)
    until("the end of its process", lambda: not Path(f"/proc/{pid}").exists(), 30)
