"""What is published: the client alone needs one package and no Unix, and both distributions together are everything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

import orjson
import pytest
from gantry_broker.testing import LocalBroker, broker

from distributions import client_reference
from distributions.build import EXTRAS, NEEDED, ROOT, SOURCES, build, client_modules, others_of, project

ABSENT = (
    "fcntl", "grp", "pwd", "resource", "termios", "uvloop", "fastapi", "pydantic", "uvicorn", "httpx", "typer", "rich",
    "google", "cryptography", "lz4", "zstandard",
)  # fmt: skip
"""Modules that Windows or a plain install of the client does not have."""
PROGRAM = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None
from gantry_broker.client.sync import Consumer, Producer, SimpleConsumer
import gantry_broker.client
with Producer(sys.argv[1]) as producer:
    sent = producer.send("Alone", b"x" * 10_000, keys="k")
with SimpleConsumer(sys.argv[1], "alone") as consumer:
    consumer.subscribe("Alone")
    got = consumer.receive(wait_s=10)
    consumer.ack_all(got)
import json
others = {{name.partition(".")[0] for name, m in sys.modules.items() if m}} - set(sys.stdlib_module_names)
print(json.dumps({{"status": sent.status.name, "bodies": [len(m.body) for m in got], "others": sorted(others),
                  "file": gantry_broker.client.__file__}}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with broker() as made:
        yield made


def wheel(built: list[Path], name: str) -> Path:
    return next(path for path in built if path.name.startswith(f"{name}-") and path.suffix == ".whl")


def metadata(path: Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(path) as archive:
        text = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    parsed = HeaderParser().parsestr(text)
    return {name: parsed.get_all(name) or [] for name in set(parsed.keys())}


def modules(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if name.endswith(".py")}


def test_the_client_alone_works_with_one_package_and_without_unix(
    built: list[Path], mq: LocalBroker, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel(built, "gantry_mq_client")) as archive:
        archive.extractall(tmp_path)
    shutil.copytree(Path(orjson.__file__).parent, tmp_path / "orjson")
    (tmp_path / "__main__.py").write_text(PROGRAM)
    # -I -S: neither the environment of this test nor the folder of the sources.
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path), mq.name_servers],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["status"] == "SEND_OK"
    assert said["bodies"] == [10_000]
    assert Path(said["file"]).is_relative_to(tmp_path)
    assert set(said["others"]) <= {"gantry_broker", *NEEDED, "__main__"}


def test_the_client_names_every_package_that_it_may_import() -> None:
    modules_of = {"grpcio": "grpc", "protobuf": "google"}
    packages = {package for some in EXTRAS.values() for package in some}
    named = {modules_of.get(package, package.partition("-")[0]) for package in packages}
    assert others_of(client_modules()) == set(NEEDED) | named


def test_every_module_is_in_one_distribution(built: list[Path]) -> None:
    client, rest = modules(wheel(built, "gantry_mq_client")), modules(wheel(built, "gantry_mq"))
    assert not client & rest
    sources = {
        str(path.relative_to((ROOT / source).parent)) for source in SOURCES for path in (ROOT / source).rglob("*.py")
    }
    assert client | rest == sources


def test_versions_requirements_and_extras(built: list[Path]) -> None:
    version = project()["version"]
    client, rest = metadata(wheel(built, "gantry_mq_client")), metadata(wheel(built, "gantry_mq"))
    assert client["Version"] == rest["Version"] == [version]
    needed = [r for r in client["Requires-Dist"] if "extra ==" not in r]
    assert [r.replace("<", ">").partition(">")[0] for r in needed] == list(NEEDED)
    assert set(client["Provides-Extra"]) == set(EXTRAS)
    assert f"gantry-mq-client=={version}" in rest["Requires-Dist"]
    assert {"operator", "spark", "test"} <= set(rest["Provides-Extra"])
    for made in (client, rest):
        assert made["Description-Content-Type"] == ["text/markdown"]
        assert made["License-Expression"] == ["Apache-2.0"]


def test_both_together_are_the_command(built: list[Path], tmp_path: Path) -> None:
    for name in ("gantry_mq_client", "gantry_mq"):
        with zipfile.ZipFile(wheel(built, name)) as archive:
            archive.extractall(tmp_path)
    (tmp_path / "__main__.py").write_text(
        "import os, sys, gantry_operator, gantry_operator.cli as cli\n"
        "assert gantry_operator.__file__.startswith(os.getcwd()), gantry_operator.__file__\n"
        "sys.argv[0] = 'gantry'; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path), "examples", "quickstart"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kind: BrokerCluster" in done.stdout


def test_the_reference_of_the_client_is_from_its_docstrings() -> None:
    assert client_reference.PAGE.read_text() == client_reference.page(), "python -m distributions.client_reference"
