"""The official Java clients and mqadmin with `tls.enable=true`, against a system that takes TLS only and one that takes
both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.rig import gantry
from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target
from tests.support.certificates import Authority, Files

COUNT = 300
TLS = "-Dtls.enable=true"
VERIFIES = [TLS, "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true"]
"""The client's default is its test mode, in which it takes any certificate, whatever else is set."""
LOCAL = ("127.0.0.1", "localhost")
Start = Callable[..., Driver]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Authority().issue(tmp_path_factory.mktemp("certificates"), *LOCAL)


@pytest.fixture(scope="session")
def systems(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Callable[[str], Target]]:
    """A running system by the TLS mode of its ports; the names of its files follow `files`."""
    started: dict[str, Target] = {}
    with ExitStack() as stack:

        def get(mode: str) -> Target:
            if mode not in started:
                tls = {"mode": mode.partition("-")[0], "cert_file": str(files.cert), "key_file": str(files.key)}
                if mode.endswith("-clients"):
                    tls |= {"client_ca_file": str(files.ca), "client_certificates": "Required"}
                started[mode] = stack.enter_context(gantry.single(tmp_path_factory.mktemp(mode), tls=tls))
            return started[mode]

        yield get


@pytest.fixture
def start(java_side: Path, systems: Callable[[str], Target], tmp_path: Path) -> Iterator[Start]:
    """`start(mode, version, *flags)`: a JVM for this system."""
    made: list[Driver] = []

    def make(mode: str, version: str, *flags: str) -> Driver:
        made.append(Driver(systems(mode), version, "JSON", tmp_path / f"{len(made)}.log", flags))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


def round_trip(driver: Driver, topic: str) -> None:
    """mqadmin makes the topic; then messages of 300 bytes and of a megabyte go both ways."""
    out = driver.mqadmin("updateTopic", "-t", topic, "-c", driver.target.cluster, "-r", 4, "-w", 4)
    assert "success" in out, out
    sent = driver.run("produce", topic=topic, run=topic, count=COUNT, properties=True)
    assert sent.summary["statuses"] == {"SEND_OK": COUNT}
    got = driver.run("consume", topic=topic, group=f"g_{topic}", run=topic, count=COUNT, properties=True).summary
    assert (got["unique"], got["wrong"]) == (COUNT, 0)
    assert got["digest"] == sent.summary["digest"]


def nothing_sent(driver: Driver, topic: str) -> None:
    refused = driver.run("produce", topic=topic, run=topic, count=1, timeout=1000)
    assert refused.summary["statuses"] == {}, refused.lines


@pytest.mark.parametrize("version", ["49", "55"])
@pytest.mark.parametrize("mode", ["Required", "Permissive"])
def test_java_with_tls(start: Start, mode: str, version: str, fresh: str) -> None:
    round_trip(start(mode, version, TLS), f"{fresh}_{version}")


@pytest.mark.parametrize("version", ["49", "55"])
def test_java_without_tls(start: Start, version: str, fresh: str) -> None:
    """A system in mode Permissive serves it; one in mode Required does not."""
    round_trip(start("Permissive", version), f"{fresh}_{version}")
    nothing_sent(start("Required", version), fresh)


def test_java_checks_the_server_only_when_configured(start: Start, files: Files, fresh: str, tmp_path: Path) -> None:
    """It verifies the chain with `tls.client.authServer` outside of its test mode."""
    other = Authority("another CA").write(tmp_path / "other.crt")
    right, wrong = f"-Dtls.client.trustCertPath={files.ca}", f"-Dtls.client.trustCertPath={other}"
    round_trip(start("Required", "49", *VERIFIES, right), f"{fresh}_right")
    nothing_sent(start("Required", "49", *VERIFIES, wrong), fresh)
    round_trip(start("Required", "49", TLS, "-Dtls.client.authServer=true", wrong), f"{fresh}_test_mode")


def test_java_with_a_client_certificate(start: Start, files: Files, fresh: str) -> None:
    trust = [*VERIFIES, f"-Dtls.client.trustCertPath={files.ca}"]
    own = [f"-Dtls.client.certPath={files.cert}", f"-Dtls.client.keyPath={files.key}"]
    round_trip(start("Required-clients", "49", *trust, *own), f"{fresh}_with")
    nothing_sent(start("Required-clients", "49", *trust), fresh)
