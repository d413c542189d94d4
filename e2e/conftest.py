"""One operator for the whole run, a namespace for each module.

Modules run side by side, except those with the mark `alone`. These disturb others (they stop operators or nodes, or
change the chart), or measure times that others would disturb.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from kube import (
    ROOT,
    SYSTEM,
    Cluster,
    CommandFailed,
    Figure,
    Host,
    Lost,
    TooLate,
    apply,
    example,
    get,
    helm_install,
    kubectl,
    run,
    state_of_system,
    until,
)

collect_ignore = [] if os.environ.get("E2E_ROUNDS") else ["test_n_rounds.py"]
"""Figures over many rounds are measured on demand."""

FIGURES = Path(os.environ.get("E2E_FIGURES", ROOT / "build" / "e2e-figures.json"))


NOTHING_LOST = 75
"""Exit code of a run with failed tests none of which raised `Lost`: e2e/run tries these alone."""
ONLY_LATE = 76
"""The same, where each failed test raised `TooLate`: e2e/run tries these once more also after a try alone."""
FAILED, LATE, LOST = pytest.StashKey[int](), pytest.StashKey[int](), pytest.StashKey[int]()
UNSURE = pytest.StashKey[bool]()
"""Of a module: a test has failed, and may have left `demo` as no test expects it."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: disturbs the other modules, or measures times that they would disturb")
    config.stash[FAILED] = config.stash[LATE] = config.stash[LOST] = 0
    config.pluginmanager.register(Counted(config))


LONG = (
    "test_m_analytics",
    "test_r_knobs",
    "test_f_life",
    "test_q_tls",
    "test_d_drift",
    "test_g_external",
    "test_r_topics",
    "test_b_failover",
    "test_t_archive",
    "test_i_raft",
    "test_k_command",
    "test_r_groups",
    "test_o_changes",
)
"""Modules of more than a minute, the longest first: a run must not end with one alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if call.excinfo is not None:
        for kind, word in ((Lost, "lost"), (TooLate, "late")):
            if call.excinfo.errisinstance(kind):
                report.user_properties.append((word, True))
    if report.failed:
        module_of(item).stash[UNSURE] = True
    return report


def module_of(item: pytest.Item) -> pytest.Module:
    found = item.getparent(pytest.Module)
    assert found is not None
    return found


class Counted:
    """Counts failed tests where all reports arrive: in the process that the others report to."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            words = {word for word, _ in map(tuple, report.user_properties)}
            self.config.stash[FAILED] += 1
            self.config.stash[LATE] += "late" in words
            self.config.stash[LOST] += "lost" in words

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        failed, late, lost = (self.config.stash[key] for key in (FAILED, LATE, LOST))
        if exitstatus == pytest.ExitCode.TESTS_FAILED and failed and not lost:
            session.exitstatus = ONLY_LATE if late == failed else NOTHING_LOST


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install() -> None:
    """Install the chart for the first time. A machine that is busy with images has a second try."""
    try:
        helm_install()
    except CommandFailed as error:
        print(f"{error}\n{state_of_system()}")
        # A killed helm leaves a release that nothing can upgrade.
        run("helm", "uninstall", "gantry", "-n", SYSTEM, "--no-hooks", "--ignore-not-found", "--wait", timeout=180)
        helm_install()


@pytest.fixture(scope="session")
def operator(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """The chart, installed as a user would: by the first of the parallel workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with locked(shared / "install.lock"):
        if not (shared / "installed").exists():
            _install()
            until("the definition is served", lambda: kubectl("get", "bc", "-A") is not None)
            (shared / "installed").touch()
    yield
    print(kubectl("-n", SYSTEM, "get", "pods", "-o", "wide", check=False))
    for pod in kubectl("-n", SYSTEM, "get", "pods", "-o", "name", check=False).split():
        for previous in ("false", "true"):
            logs = kubectl("-n", SYSTEM, "logs", pod, f"--previous={previous}", check=False)
            if logs:
                name = pod.replace("/", "-") + ("-previous" if previous == "true" else "")
                (ROOT / "build" / f"e2e-{name}.log").write_text(logs)


@pytest.fixture(scope="session")
def any_host() -> Host:
    """The nodes, whether or not this run can reach them."""
    return Host()


@pytest.fixture(scope="session")
def host(any_host: Host) -> Host:
    """The nodes, for faults that Kubernetes cannot cause: kill or freeze one process, cut off a pod or a node."""
    if not any_host.available:
        pytest.skip(
            "processes and nodes are killed, frozen or cut off behind Kubernetes' back only in a cluster that e2e/run "
            "made: install kind and Docker, and run it without KUBECONFIG"
        )
    return any_host


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest, operator: None) -> Iterator[str]:
    """Deleted afterwards with all its objects."""
    name = "e2e-" + request.path.stem.removeprefix("test_").replace("_", "-")
    kubectl("delete", "namespace", name, "--ignore-not-found", timeout=480)
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def demo(request: pytest.FixtureRequest, namespace: str) -> Cluster:
    """examples/quickstart.yaml, ready: as the test before left it, and as written after a failed test."""
    cluster, text = Cluster(namespace), example("quickstart.yaml")
    if not any(found["metadata"]["name"] == cluster.name for found in get(namespace, "bc")):
        apply(namespace, text)
    elif module_of(request.node).stash.get(UNSURE, False):
        kubectl("-n", namespace, "replace", "-f", "-", stdin=text)
    module_of(request.node).stash[UNSURE] = False
    cluster.wait_running()
    return cluster


@pytest.fixture(scope="session")
def figure() -> Iterator[Figure]:
    """Records a figure of this run: prints it at once, and adds it to a file at the end. e2e/run begins a new file."""
    found: dict[str, Any] = {}
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def record(name: str, value: Any) -> None:
        found[name] = value
        print(f"FIGURE {name}: {value}")

    yield record
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    with locked(FIGURES.with_suffix(".lock")):
        others = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"begun": begun}
        FIGURES.write_text(json.dumps(others | found, indent=1))
