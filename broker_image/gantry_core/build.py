"""Builds the compiled core beside its sources and says which core runs: `python broker_image/gantry_core/build.py`.

Needs only the standard library. Without `cargo`, or after a build that fails, the Python body runs: the exit code is 0
with one line that says so. With `--must` the exit code is then 1. Cargo keeps what it has built in `target/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "gantry_core_native.abi3.so"
LIMIT_S = 600
COST = "single sends then cost a broker up to five, batches up to twelve times the CPU time"


def cargo() -> str | None:
    """The program; rustup puts it where a non-interactive shell may not look."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    return shutil.which("cargo") or shutil.which("cargo", path=home / "bin")


def build() -> str:
    """Empty: the module is there; else why not."""
    program = cargo()
    if program is None:
        return "there is no cargo; install Rust 1.68 or newer (Debian 13, Ubuntu: package cargo; Debian 12: cargo-web)"
    command = [program, "build", "--release", "--locked", "--manifest-path", str(HERE / "Cargo.toml")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the build did not end: {error}"
    if done.returncode != 0:
        if "--must" in sys.argv[1:]:
            sys.stderr.write(done.stderr)
        lines = [line.strip() for line in done.stderr.splitlines()]
        return f"the build failed: {next((line for line in lines if line.startswith('error')), 'no error is named')}"
    folder = Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target"))
    library = next((folder / "release" / f"libgantry_core_native.{end}" for end in ("so", "dylib")
                 if (folder / "release" / f"libgantry_core_native.{end}").exists()), None)  # fmt: skip
    if library is None:
        return f"the build left no module in {folder}"
    if not NATIVE.exists() or NATIVE.read_bytes() != library.read_bytes():
        fresh = NATIVE.with_suffix(".new")
        shutil.copyfile(library, fresh)
        fresh.replace(NATIVE)  # Processes that run keep the module that they have.
    return ""


def main() -> int:
    why = build()
    if why:
        print(f"core: Python; {COST}. {why}")
        return 1 if "--must" in sys.argv[1:] else 0
    print("core: Rust")
    return 0


if __name__ == "__main__":
    sys.exit(main())
