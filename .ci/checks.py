"""All checks of this project, one after the other: what ran, how long it took, what was skipped and why.

`make test` runs it with the environment's Python. With --lint: style and types only; with --tools: only the packages
that tests need are installed. The exit code is 0 when everything that ran is right.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
JAVA_VERSIONS = (17, 21)
"""Those that Spark and RocketMQ run with. A distribution has one of them."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""As in tests/support/browser.py."""
CORE = ROOT / "broker_image" / "gantry_core"
PROMETHEUS = ROOT / "build" / "prometheus"
"""As in tests/dashboards/programs.py."""
REAL_PROCESSES = (
    "chaos",
    "client",
    "console",
    "dashboards",
    "delivery",
    "integration",
    "interop",
    "interop5",
    "local",
    "proxy",
    "security",
    "spark",
)
"""Folders of tests whose subject are whole processes, which mostly wait; the others, which do not, come before them."""

PYTHON_CORE = (
    "tests/broker/test_sends_of_a_read.py",
    "tests/store/test_append.py",
    "tests/store/test_keyindex.py",
)
"""Tests that also run with the Python body of the core; the others run with the compiled one where it is built.

Those of tests/core name the bodies that they compare.
"""

LINT = {
    "style": [[BIN / "ruff", "check", "."], [BIN / "ruff", "format", "--check", "."]],
    "words": [[BIN / "codespell", "-q", "3"]],
    "types": [[BIN / "mypy"]],
    "lock files": [[sys.executable, "requirements/lock.py", "--check"]],
    "CRD": [[sys.executable, "-m", "gantry_operator.api.crd", "--check"]],
    "dashboards": [[sys.executable, "-m", "helm.dashboards", "--check"]],
}


STEP_LIMIT = 2400.0
"""Seconds that one command may take. The slowest takes half of it; the others must run when one hangs."""
FAILED_TESTS = (0, 1)
"""Exit codes of pytest when all tests ran."""


def run(command: list[str | Path]) -> int:
    """Return the exit code of a command. One that takes too long is ended with all that it started: 124."""
    shown = " ".join(Path(c).name if Path(c).is_absolute() else str(c) for c in command)
    print(f"$ {shown}", flush=True)
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(STEP_LIMIT)
    except subprocess.TimeoutExpired:
        print(f"\nended after {STEP_LIMIT:.0f} s: {shown}", flush=True)
        return 124
    finally:
        # Ctrl-C does not reach a session of its own.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def java_version() -> int:
    """Major version of the Java on the path; 0: none."""
    if shutil.which("java") is None:
        return 0
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0


def apt_install(*packages: str) -> str:
    """Empty: done; else why not."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "only root can install it, with apt"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
        if subprocess.run(command, env=environment, check=False, **quiet).returncode != 0:  # type: ignore[call-overload]
            return f"`{' '.join(command)}` failed"
    return ""


def bring_java() -> str:
    """Spark and the official RocketMQ client need Java. Empty: it is there; else why not."""
    if java_version() >= JAVA_VERSIONS[0] and shutil.which("mvn"):
        return ""
    print("installing Java and Maven for Spark and for RocketMQ's own client", flush=True)
    for version in JAVA_VERSIONS:
        why = apt_install(f"openjdk-{version}-jdk-headless", "maven")
        if not why:
            return "" if java_version() >= JAVA_VERSIONS[0] else "it is not on the path after its installation"
    return why


def bring_browser() -> str:
    """The page of a report is drawn and looked at. Empty: it is there; else why not."""
    if any(shutil.which(name) for name in BROWSERS):
        return ""
    print("installing Chromium, in which the page of a report is drawn", flush=True)
    return apt_install("chromium")


GO_PROGRAMS = "from benchmarks.rig import golang; from tests.archive import s3; golang.build(); s3.build()"


def bring_go() -> str:
    """RocketMQ's own Go client and the S3 server are built with it. Empty: they are there; else why not.

    They are built here, since that takes longer on a fresh machine than a test may.
    """
    if shutil.which("go") is None:
        print("installing Go for RocketMQ's own client and the S3 server", flush=True)
        if why := apt_install("golang-go", "ca-certificates"):
            return why
    command = [sys.executable, "-c", GO_PROGRAMS]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return built.stderr.strip().rpartition("\n")[2] if built.returncode else ""


def bring_rust() -> str:
    """The compiled core is built with it. Empty: it is there; else why not."""
    build = runpy.run_path(str(CORE / "build.py"))
    if build["cargo"]() is None:
        print("installing Rust for the compiled core", flush=True)
        # Debian 12's own cargo is too old for today's registry; it has a newer one beside it.
        if (why := apt_install("cargo-web", "gcc", "libc6-dev")) and apt_install("cargo", "gcc", "libc6-dev"):
            return why
    return str(build["build"]())


def bring_firewall() -> str:
    """Chaos runs lose packets by it, and e2e enforces NetworkPolicies. Empty: it is there; else why not."""
    if all(shutil.which(command) for command in ("iptables", "ip", "ipset")):
        return ""
    print("installing iptables, iproute2 and ipset, by which packets are lost and refused", flush=True)
    return apt_install("iptables", "iproute2", "ipset")


def bring_prometheus() -> str:
    """Alerts and dashboards are tested with it. Empty: it is there; else why not.

    Debian's package is unpacked into build/, which needs no root and starts no service.
    """
    brought = PROMETHEUS / "usr" / "bin" / "promtool"
    if shutil.which("promtool") or brought.exists():
        return ""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "only apt can bring it"
    print("fetching Prometheus, with which alerts and dashboards are tested", flush=True)
    PROMETHEUS.mkdir(parents=True, exist_ok=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update"], check=False, **quiet)  # type: ignore[call-overload]
    for name in ("prometheus", "promtool"):
        if name == "promtool" and brought.exists():
            break  # Debian 12 has both programs in one package.
        fetched = subprocess.run(["apt-get", "download", name], cwd=PROMETHEUS, check=False, **quiet)  # type: ignore[call-overload]
        package = next(PROMETHEUS.glob(f"{name}_*.deb"), None)
        if fetched.returncode != 0 or package is None:
            return f"`apt-get download {name}` failed"
        if subprocess.run(["dpkg-deb", "-x", str(package), str(PROMETHEUS)], check=False).returncode != 0:
            return f"`dpkg-deb -x {package.name}` failed"
    return ""


def bring_tools() -> list[tuple[str, str]]:
    """Install what tests use from outside of Python. The result: what cannot be tested, and why."""
    bringers = {
        "tests with Java": bring_java,
        "tests with Go": bring_go,
        "compiled core": bring_rust,
        "page in a browser": bring_browser,
        "lost packets": bring_firewall,
        "alerts, dashboards": bring_prometheus,
    }
    return [(what, why) for what, bring in bringers.items() if (why := bring())]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `run` ends what it started.
    done: list[tuple[str, str, float]] = []
    failed = False

    broken = False

    def step(name: str, commands: list[list[str | Path]]) -> None:
        nonlocal failed, broken
        started = time.monotonic()
        codes = [run(c) for c in commands]
        wrong = any(codes)
        failed = failed or wrong
        broken = broken or any(code not in FAILED_TESTS for code in codes)
        done.append((name, "FAILED" if wrong else "ok", time.monotonic() - started))

    if "--tools" in sys.argv:
        for what, why in bring_tools():
            print(f"{what}: {why}")
        return 0
    for name, commands in LINT.items():
        step(name, commands)
    if "--lint" not in sys.argv:
        done += [(what, f"skipped: {why}", 0.0) for what, why in bring_tools()]
        # Failed tests are named at the end of their run, and skipped ones say why.
        pytest: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-rfEs", "--durations=10"]

        def to(name: str) -> str:
            """Where the times of this layer go, for .ci/slowest.py."""
            return f"--junitxml={ROOT / 'build' / 'junit' / name}.xml"

        jobs = int(os.environ.get("JOBS", "3"))

        def workers(count: int) -> list[str | Path]:
            # Files in the order of tests/conftest.py: the long ones first.
            return ["-n", str(count), "--dist", "loadfile", "--no-loadscope-reorder"]

        real = [f"tests/{name}" for name in REAL_PROCESSES]
        step("tests", [[*pytest, *workers(jobs), to("tests"), *(f"--ignore={folder}" for folder in real)]])
        step("Python core", [["env", "GANTRY_CORE=python", *pytest, *workers(jobs), to("python-core"), *PYTHON_CORE]])
        step("real processes", [[*pytest, *workers(jobs + 1), to("real-processes"), *real]])
        if any(result == "FAILED" for _, result, _ in done[-3:]):
            # What depends on time is told apart from what is wrong: it must pass alone, and it is named.
            print("\nWhat failed runs once more, alone. What passes now depends on time, and needs a repair:")
            # A layer that a crash or the limit ended has tests that never ran.
            failed = broken or any(result == "FAILED" for _, result, _ in done[:-3])
            step("once more", [[*pytest, "-v", "--last-failed", "--last-failed-no-failures", "none"]])
    print()
    for name, result, seconds in done:
        print(f"  {name:<16} {seconds:6.0f} s   {result}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
