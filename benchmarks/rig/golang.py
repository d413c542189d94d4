"""The Go side: finds Go, builds programs once, and runs the commands of `tests/interop/go`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from .target import Target

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "interop" / "go"
OUT = ROOT / "build" / "interop"

Line = dict[str, Any]


TOO_OLD = re.compile("requires go|unknown directive|is not in (GOROOT|std)", re.IGNORECASE)
"""What an older Go says of newer modules, of a newer go.mod, and of newer packages of its own library."""
NEWER = "v0.0.1-go1.25.5"
"""The version of golang.org/toolchain that builds what is too new for the Go of this machine."""
SUMS = {"linux-amd64": "h1:IkknVKy/4hLMR+ZwWfP4Oqhjz2sKqNtEXz1meP8P3Nc="}
"""By platform: the checksum of this version."""


class GoMissing(Exception):
    """This machine cannot run the Go part; the text has the reason and the package to install."""


def build(sources: Path = SOURCES, package: str = ".", name: str = "go-driver") -> Path:
    """Returns the program, and builds it after a change of its sources. Only a build needs Go and its modules.
    Raises GoMissing.

    `sources`: a folder with go.mod and go.sum. `package`: of this folder, or of a module that go.mod requires.
    """
    digest = hashlib.sha256(package.encode())
    for path in sorted([*sources.glob("*.go"), sources / "go.mod", sources / "go.sum"]):
        digest.update(path.name.encode() + path.read_bytes())
    OUT.mkdir(parents=True, exist_ok=True)
    program = OUT / f"{name}-{digest.hexdigest()[:16]}"
    with (OUT / f"{name}-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        compile_program(sources, package, program)
    return program


def compile_program(sources: Path, package: str, program: Path) -> None:
    """Builds a program, by a newer Go where this machine's is too old. Raises GoMissing, RuntimeError.

    `package`: as `build` takes it.
    """
    version = re.findall(r"^go (\S+)", (sources / "go.mod").read_text(), re.MULTILINE)[0]
    go = shutil.which("go")
    if go is None:
        raise GoMissing(
            f"there is no Go here: install Go {version} or later (`python .ci/checks.py --tools`, as root, on Debian)"
        )
    words = ["build", "-o", str(program), package]
    made = subprocess.run([go, *words], cwd=sources, capture_output=True, text=True, check=False)
    if made.returncode != 0 and TOO_OLD.search(made.stderr):
        try:
            newer = _newer_go(go)
        except GoMissing as error:
            raise GoMissing(f"this Go is too old: install Go {version} or later; {error}") from None
        environment = {name: value for name, value in os.environ.items() if name != "GOROOT"}
        made = subprocess.run(
            [newer, *words], cwd=sources, capture_output=True, text=True, check=False,
            env=environment | {"GOTOOLCHAIN": "local"},
        )  # fmt: skip
    if made.returncode != 0:
        if "requires go" in made.stderr.lower():  # A missing package is a fault of the sources now.
            raise GoMissing(f"this Go is too old: install Go {version} or later; {made.stderr.strip()[-200:]}")
        if any(word in made.stderr for word in ("dial tcp", "lookup", "proxy", "missing go.sum")):
            raise GoMissing(f"Go could not get the program's modules: {made.stderr.strip()[-400:]}")
        raise RuntimeError(f"{sources.relative_to(ROOT)} does not build:\n{made.stderr[-4000:]}")


def _newer_go(go: str) -> str:
    """Fetches a newer Go as a module, as Go itself does since 1.21, and returns its command. Raises GoMissing."""
    system = subprocess.run([go, "env", "GOOS", "GOARCH"], capture_output=True, text=True, check=True).stdout
    platform = "-".join(system.split())
    wanted = f"golang.org/toolchain@{NEWER}.{platform}"
    if platform not in SUMS:
        raise GoMissing(f"{wanted} is not known here")
    made = subprocess.run(
        [go, "mod", "download", "-json", wanted], cwd=ROOT, capture_output=True, text=True, check=False
    )
    try:
        found = json.loads(made.stdout)
    except ValueError:
        raise GoMissing(f"{wanted} could not be fetched: {made.stderr.strip()[-300:]}") from None
    if made.returncode != 0 or found.get("Sum") != SUMS[platform]:
        raise GoMissing(f"{wanted} could not be fetched: {found.get('Error') or 'its checksum is another one'}")
    folder = Path(found["Dir"])
    for program in [*folder.glob("bin/*"), *folder.glob("pkg/tool/*/*")]:
        program.chmod(0o555)  # A module's files are not executable.
    return str(folder / "bin" / "go")


class GoCommand:
    """A running command of the program. Options become `-name value` (True: a switch), `_` becomes `-`."""

    def __init__(self, target: Target, home: Path, command: str, **options: object) -> None:
        words = [*target.prefix, str(build()), command, "-namesrv", target.namesrv]
        for name, value in options.items():
            words += [f"-{name.replace('_', '-')}"] if value is True else [f"-{name.replace('_', '-')}", str(value)]
        # The client stores offsets of broadcasting groups and its log below this home, not below the user's.
        home.mkdir(parents=True, exist_ok=True)
        self._popen = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(home)},
            start_new_session=True,
        )  # fmt: skip
        self.lines: list[Line] = []
        self._errors = ""
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for text in self._popen.stdout:
            if text.startswith("{"):
                self.lines.append(json.loads(text))

    def _read_errors(self) -> None:
        assert self._popen.stderr is not None
        self._errors = self._popen.stderr.read()[-4000:]

    def of(self, event: str) -> list[Line]:
        return [line for line in list(self.lines) if line["event"] == event]

    def wait_for(self, event: str, timeout_s: float = 60) -> Line:
        """Returns the first line of this kind. Raises AssertionError after a timeout."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and (not self._threads or self._threads[0].is_alive() or self.of(event)):
            found = self.of(event)
            if found:
                return found[0]
            time.sleep(0.02)
        raise AssertionError(f"no {event!r} from the Go client: {self.lines[-5:]} {self._errors}")

    def finish(self, timeout_s: float = 100) -> GoCommand:
        """Waits for the end. Raises AssertionError after a failure or a timeout."""
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"the Go client did not end within {timeout_s:g} s: {self.lines[-5:]}") from None
        for thread in self._threads:
            thread.join(5)
        assert code == 0, f"the Go client ended with {code}: {self.lines[-5:]} {self._errors}"
        return self

    def stop(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
