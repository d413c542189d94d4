"""Which body of the core runs, and what the build says where it cannot be done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gantry_core
import pytest

from tests.core.twins import NOT_BUILT

SOURCES = Path(gantry_core.__file__).parent
SAY = "import gantry_core as core; print(core.NAME, core.WHY_PYTHON, sep='|')"


def said(folder: Path, choice: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder), "GANTRY_CORE": choice}
    return subprocess.run([sys.executable, "-c", SAY], env=environment, capture_output=True, text=True, check=False)


def copied(tmp_path: Path, *, native: bool = True) -> Path:
    """The package in another folder. A compiled module elsewhere on the path is of the same sources at most."""
    skip = shutil.ignore_patterns("target", "__pycache__", *(() if native else ("*.so",)))
    shutil.copytree(SOURCES, tmp_path / "gantry_core", ignore=skip)
    return tmp_path


def test_python_can_be_chosen(tmp_path: Path) -> None:
    assert said(copied(tmp_path), "python").stdout == "python|GANTRY_CORE is python\n"


def test_another_word_is_refused(tmp_path: Path) -> None:
    done = said(copied(tmp_path), "fast")
    assert done.returncode == 1
    assert "GANTRY_CORE is 'fast'; python, rust or nothing is expected" in done.stderr


@pytest.mark.skipif(not (SOURCES / "gantry_core_native.abi3.so").exists(), reason=NOT_BUILT)
def test_a_module_of_other_sources_is_not_used(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    if said(folder, "").stdout != "rust|\n":
        pytest.fail("the compiled module is older than its sources: python broker_image/gantry_core/build.py")
    with (folder / "gantry_core" / "src" / "lib.rs").open("a") as file:
        file.write("// another\n")
    assert said(folder, "").stdout.startswith("python|")
    assert said(folder, "").stdout.endswith("is of other sources\n")
    done = said(folder, "rust")
    assert done.returncode == 1
    assert "there is no compiled core" in done.stderr
    shutil.rmtree(folder / "gantry_core" / "src")
    assert said(folder, "").stdout == "rust|\n", "an image has no sources"


@pytest.mark.parametrize("script", [None, "#!/bin/sh\necho 'error: no network' >&2\nexit 101\n"])
def test_an_installation_goes_on_without_a_build(tmp_path: Path, script: str | None) -> None:
    folder = copied(tmp_path, native=False)
    tools = tmp_path / "bin"
    tools.mkdir()
    if script is not None:
        (tools / "cargo").write_text(script)
        (tools / "cargo").chmod(0o755)
    environment = {"PATH": f"{tools}:/nowhere", "CARGO_HOME": str(tmp_path / "none")}
    for words, code in (([], 0), (["--must"], 1)):
        done = subprocess.run(
            [sys.executable, str(folder / "gantry_core" / "build.py"), *words],
            env=environment | ({"PATH": f"{tools}:/bin:/usr/bin"} if script else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        [line] = done.stdout.splitlines()
        assert line.startswith("core: Python; ")
        assert ("error: no network" if script else "there is no cargo") in line
