"""The parts of images; .ci/supply_chain.py reports a weakness, but not a network that is away."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("supply_chain", ROOT / ".ci" / "supply_chain.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_stage_begins_with_the_one_base_image() -> None:
    """So one digest fixes all of them."""
    assert re.search(r"^ARG BASE_IMAGE=python:3\.\d+-slim@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    stages = {"${BASE_IMAGE}"}
    for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE):
        assert base in stages, f"FROM {base}"
        stages.add(name)
    assert 'image.base.name="${BASE_IMAGE}"' in DOCKERFILE


def test_images_contain_only_packages_with_a_hash() -> None:
    installs = re.findall(r"pip install (.*)$", DOCKERFILE, re.MULTILINE)
    assert installs
    assert all("--require-hashes --no-deps" in line for line in installs)
    locks = {re.search(r"-r (\w+)\.txt", line)[1] for line in installs}  # type: ignore[index]
    assert locks == set(load().IMAGES), "each lock file has an SBOM"


def test_the_core_is_built_of_vendored_crates_without_network() -> None:
    """Cargo compares the crates with the hashes of Cargo.lock as it vendors them, and their files as it builds."""
    steps = [line for line in DOCKERFILE.splitlines() if "gantry_core" in line and line.startswith("RUN")]
    vendor, build = steps
    assert re.search(
        r"cargo vendor --locked --manifest-path gantry_core/Cargo.toml crates > .cargo/config.toml$", vendor
    )
    assert build.startswith("RUN CARGO_NET_OFFLINE=true python gantry_core/build.py --must ")
    packages = (ROOT / "broker_image/gantry_core/Cargo.lock").read_text().split("[[package]]")[1:]
    assert all('checksum = "' in package for package in packages if "source = " in package)


@pytest.mark.parametrize(
    ("code", "out", "err", "begins"),
    [
        (0, "", "No known vulnerabilities found", ""),
        (1, "", "requests.exceptions.ConnectionError: Max retries exceeded", "not audited: "),
        (1, "x 1.0 GHSA-1", "Found 1 known vulnerability in 1 package", "x 1.0 GHSA-1"),
        (1, "", "error: the lock file is damaged", "error: the lock file"),
    ],
)
def test_a_failed_audit_differs_from_a_vulnerability(
    monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str, begins: str
) -> None:
    module = load()
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, code, out, err))
    said = module.audit(Path("bin"), "broker")
    assert said.startswith(begins)
    assert bool(said) == (code != 0)


def test_a_command_that_takes_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load()
    with pytest.raises(SystemExit, match=r"error: the SBOM of x did not end within 0\.1 s"):
        module.run("the SBOM of x", 0.1, ["sleep", "60"])
    with pytest.raises(SystemExit, match="error: the SBOM of x ended with code 1"):
        module.run("the SBOM of x", 60, ["false"])

    def never(command: Any, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(module.subprocess, "run", never)
    assert module.audit(Path("bin"), "broker") == (
        "not audited: the service with known weaknesses has not answered within 180 s"
    )
