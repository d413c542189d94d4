"""A newer Go is used only with the checksum that this project knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rig import golang


def fake_go(folder: Path, answer: str, platform: str = "linux\namd64") -> str:
    program = folder / "go"
    program.write_text(f"#!/bin/sh\nif [ $1 = env ]; then echo '{platform}'; else echo '{answer}'; fi\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    "line",
    [
        "go.mod:5: unknown directive: toolchain",
        "note: module requires Go 1.25",
        "go: go.mod requires go >= 1.25 (running go 1.21.0; GOTOOLCHAIN=local)",
        "metrics.go:19:8: package maps is not in GOROOT (/usr/lib/go-1.19/src/maps)",
        "random.go:3:8: package math/rand/v2 is not in std (/usr/lib/go-1.21/src/math/rand/v2)",
    ],
)
def test_words_of_a_go_that_is_too_old(line: str) -> None:
    assert golang.TOO_OLD.search(line)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (json.dumps({"Sum": "h1:another", "Dir": "/"}), "its checksum is another one"),
        (json.dumps({"Error": "403 Forbidden"}), "403 Forbidden"),
        ("no module", "could not be fetched"),
    ],
)
def test_a_toolchain_that_is_not_the_known_one(tmp_path: Path, answer: str, reason: str) -> None:
    with pytest.raises(golang.GoMissing, match=reason):
        golang._newer_go(fake_go(tmp_path, answer))


def test_a_platform_without_a_known_checksum(tmp_path: Path) -> None:
    with pytest.raises(golang.GoMissing, match=r"linux-riscv64 is not known here"):
        golang._newer_go(fake_go(tmp_path, "", "linux\nriscv64"))


def test_its_programs_become_executable(tmp_path: Path) -> None:
    for name in ("bin/go", "pkg/tool/linux_amd64/link"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch(0o444)
    found = golang._newer_go(fake_go(tmp_path, json.dumps({"Sum": golang.SUMS["linux-amd64"], "Dir": str(tmp_path)})))
    assert found == str(tmp_path / "bin" / "go")
    assert all((tmp_path / name).stat().st_mode & 0o111 for name in ("bin/go", "pkg/tool/linux_amd64/link"))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("go: go.mod requires go >= 1.99 (running go 1.25.5; GOTOOLCHAIN=local)", golang.GoMissing),
        ("driver.go:3:8: package nowhere is not in std", RuntimeError),
    ],
)
def test_a_newer_go_that_fails_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, error: type[Exception]
) -> None:
    """A package that no Go has is a fault of the sources, and no reason to skip a test."""
    newer = tmp_path / "newer" / "bin"
    newer.mkdir(parents=True)
    found = json.dumps({"Sum": golang.SUMS["linux-amd64"], "Dir": str(newer.parent)})
    fails = f"if [ $1 = build ]; then echo '{line}' >&2; exit 1; fi\n"
    for folder in (tmp_path, newer):
        program = Path(fake_go(folder, found))
        program.write_text(program.read_text().replace("#!/bin/sh\n", "#!/bin/sh\n" + fails))
    monkeypatch.setattr(golang.shutil, "which", lambda name: str(tmp_path / "go"))
    with pytest.raises(error):
        golang.compile_program(golang.SOURCES, ".", tmp_path / "program")
