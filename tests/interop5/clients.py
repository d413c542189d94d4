"""The official gRPC clients: installs each from its registry into a cache outside this repository, and starts drivers.

A driver (`drivers/`) is a program with one client. It reads commands as JSON lines and prints events as JSON lines.
`Client.session` starts one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rig import golang, java
from benchmarks.rig.driver import Result, Running, Session
from benchmarks.rig.processes import error_line

SOURCES = Path(__file__).with_name("drivers")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gantry-interop5"


class ToolMissing(Exception):
    """This machine cannot build or run a driver; the text says what to install."""


def _tool(name: str, install: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"there is no `{name}` here: install {install}")
    return found


def _run(words: list[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """Raises ToolMissing when the registry does not answer, RuntimeError when the sources are wrong."""
    done = subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
    )
    if done.returncode == 0:
        return
    text = (done.stdout + done.stderr)[-2000:]
    if any(sign in text.lower() for sign in _NOT_REACHED):
        raise ToolMissing(
            f"{Path(words[0]).name} could not get the client from its registry: let it reach that, or name a mirror. "
            f"It says: {error_line(text)}"
        )
    raise RuntimeError(f"{' '.join(words)} in {cwd}: {text}")


_NOT_REACHED = (
    "could not resolve", "could not transfer", "no matching distribution", "max retries", "dial tcp", "enotfound",
    "etimedout", "failed to download", "could not find a version",
)  # fmt: skip


def _made(name: str, build: Callable[[Path, Path], None], pattern: str = "**/*") -> Path:
    """Returns the folder that `build(sources, folder)` filled; it runs again after a change of what it depends on."""
    sources = SOURCES / name
    digest = hashlib.sha256(sys.version.encode() if name == "python" else b"")
    for path in sorted(path for path in sources.glob(pattern) if path.is_file()):
        digest.update(str(path.relative_to(sources)).encode() + path.read_bytes())
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = CACHE / f"{name}-{digest.hexdigest()[:16]}"
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(sources, folder)
            (folder / "made").touch()
    return folder


def java_classpath(module: str) -> Path:
    """Returns the folder of jars of one module of drivers/java. Raises ToolMissing."""
    try:
        version = java.java_version()
    except java.JavaMissing as e:
        raise ToolMissing(str(e)) from None
    if version < 17:
        raise ToolMissing(f"Java {version} is too old: {java.INSTALL}")

    def build(sources: Path, folder: Path) -> None:
        maven = _tool("mvn", "Maven 3.8 or later, which the first build needs")
        _run([maven, "-q", "-B", "-ntp", f"-Dgantry.out={folder}", "package"], sources)

    return _made("java", build) / "classpath" / module


def _java(module: str, home: Path) -> list[str]:
    flags = [f"-Duser.home={home}", "-XX:TieredStopAtLevel=1", "-Drocketmq.log.level=warn"]
    jars = java_classpath(module)
    return java.command(jars, "dev.gantry.interop5.Driver", heap="512m", flags=flags)


def python_environment() -> Path:
    """Returns the Python of an environment that has the official client. Raises ToolMissing."""

    def build(sources: Path, folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder / "venv")], sources)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _run([*pip, "-r", "requirements.txt"], sources)

    return _made("python", build, "requirements.txt") / "venv/bin/python"


def _python(home: Path, program: str = "driver.py") -> list[str]:
    return [str(python_environment()), "-P", str(SOURCES / "python" / program)]


def _node(home: Path) -> list[str]:
    node = _tool("node", "Node.js 20 or later (Debian: nodejs)")

    def build(sources: Path, folder: Path) -> None:
        npm = _tool("npm", "npm, which the first build needs (Debian: npm)")
        for name in ("package.json", "package-lock.json"):
            shutil.copy(sources / name, folder)
        _run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder)

    modules = _made("node", build, "package*.json") / "node_modules"
    return ["env", f"NODE_PATH={modules}", node, str(SOURCES / "node/driver.js")]


def _go(home: Path) -> list[str]:
    def build(sources: Path, folder: Path) -> None:
        try:
            golang.compile_program(sources, ".", folder / "driver")
        except golang.GoMissing as e:
            raise ToolMissing(str(e)) from None

    return [str(_made("go", build) / "driver")]


def _rust(home: Path) -> list[str]:
    def build(sources: Path, folder: Path) -> None:
        cargo = _tool("cargo", "Rust 1.70 or later with Cargo, which the first build needs")
        target = CACHE / "rust-target"  # it stays: the first build takes minutes, one after a change seconds
        _run([cargo, "build", "--locked"], sources, {"CARGO_TARGET_DIR": str(target)})
        shutil.copy(target / "debug/gantry-interop5", folder / "driver")

    return [str(_made("rust", build) / "driver")]


@dataclass(frozen=True)
class Client:
    """One official client in one version.

    `lacks`: what it cannot do; `tls`: whether it uses TLS by default; `roots`: the environment variable that names a
    file with the authorities to trust (without one it takes any certificate).
    """

    name: str
    words: Callable[[Path], list[str]] = field(repr=False)
    tls: bool = False
    lacks: frozenset[str] = frozenset()
    roots: str = ""

    @property
    def cannot(self) -> frozenset[str]:
        return self.lacks if self.roots else self.lacks | {"verification"}

    def session(
        self, folder: Path, prefix: list[str], endpoints: str, trust: Path | None = None, **options: object
    ) -> Driven:
        """Starts a driver. `prefix` as in Target; `trust`: the file of authorities; `options` are fields of every
        command. Raises ToolMissing.
        """
        home = folder / f"home-{self.name}"
        home.mkdir(parents=True, exist_ok=True)
        given: dict[str, object] = {"endpoints": endpoints, "tls": self.tls, **options}
        return Driven(self, [*prefix, *self.words(home)], folder / f"{self.name}.log", home, given, trust)


class Driven(Session):
    """A running driver. Commands: produce, push, simple, recall, idle; fields as `Command` in the drivers."""

    def __init__(
        self, client: Client, words: list[str], log: Path, home: Path, options: Mapping[str, object],
        trust: Path | None = None,
    ) -> None:  # fmt: skip
        self.client, self._options = client, options
        environment = {"HOME": str(home), "PYTHONPATH": "", "rocketmq.client.logLevel": "warn"}
        if trust is not None:
            environment[client.roots] = str(trust)
        super().__init__(f"the driver of {client.name}", words, log, environment, home)

    def start(self, do: str, **fields: Any) -> Running:
        """Starts a command; its names are those of Python (`timeout_ms`), the driver's are as in JSON (`timeoutMs`)."""
        named = {_camel(name): value for name, value in fields.items() if value is not None}
        given = {"timeoutMs": 30_000, **self._options, "do": do, **named}
        return self.submit([do, json.dumps(named)], lambda number: json.dumps({**given, "id": number}))

    def run(self, do: str, within_s: float = 90, **fields: Any) -> Result:
        return self.start(do, **fields).finish(within_s)

    def send(self, running: Running, command: object) -> None:
        """Gives a running command of the driver of single calls one more thing to send."""
        self.write(json.dumps({"do": "send", "of": running.number, "command": command}))

    def stop(self, running: Running) -> None:
        """Asks a command to end."""
        self.write(json.dumps({"do": "stop", "of": running.number}))


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


CLIENTS = {
    client.name: client
    for client in (
        Client("python-5.1.2", _python, roots="GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
        Client("java-5.2.0", lambda home: _java("client520", home), tls=True),
        # It has TLS only.
        Client("java-5.0.3", lambda home: _java("client503", home), tls=True, lacks=frozenset({"plaintext", "recall"})),
        # What these two lack, they lack with Apache's proxy, too: after a failure Go goes on with the next message of
        # the message group, and Node makes a dead letter of it at once; Node takes zlib's format for gzip's.
        Client("go-5.1.4", _go, tls=True, lacks=frozenset({"retry in order"})),
        Client(
            "node-1.0.8",
            _node,
            lacks=frozenset({"retry in order", "dead letters in order", "zlib"}),
            roots="GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        ),
        Client("rust-5.0.0", _rust, lacks=frozenset({"push", "recall", "change", "zlib"}), roots="SSL_CERT_FILE"),
    )
}
"""By name. The first two run in CI; they have the most users."""


RAW = Client("raw", lambda home: _python(home, "raw.py"))
"""Single calls as a client could make them: `drivers/python/raw.py`."""


def able(needs: Iterable[str] = (), names: Iterable[str] = tuple(CLIENTS)) -> list[str]:
    """Returns the names of those clients that can do all of it."""
    return [name for name in names if not CLIENTS[name].cannot & set(needs)]
