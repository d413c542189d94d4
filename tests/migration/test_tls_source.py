"""A source that takes TLS only moves with clients that speak TLS, and gets them back; INTEROP=full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.migration.scene import Scene, put, scene
from tests.support.certificates import Authority

CLIENT = "-Dtls.enable=true"


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_a_source_with_tls_only_moves_and_gets_its_clients_back(
    java_side: Path, tmp_path: Path, server: str, client: str
) -> None:
    files = Authority().issue(tmp_path / "certificates", "127.0.0.1", "localhost")
    config = tmp_path / "tls.properties"
    config.write_text(
        "tls.test.mode.enable=false\ntls.server.need.client.auth=none\ntls.server.authClient=false\n"
        f"tls.server.certPath={files.cert}\ntls.server.keyPath={files.key}\n"
        f"tls.client.authServer=true\ntls.client.trustCertPath={files.ca}\n"
    )
    flags = ["-Dtls.server.mode=enforcing", f"-Dtls.config.file={config}", CLIENT]
    secret = tmp_path / "config" / "gantry" / "secrets" / "source-ca"
    secret.mkdir(parents=True)
    (secret / "ca.crt").write_bytes(files.ca.read_bytes())
    with scene(tmp_path, server, flags=flags) as made:
        made.environment |= {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        made.flags = [CLIENT]
        moves(made, client)


def moves(made: Scene, client: str) -> None:
    theirs = made.driver(client)
    theirs.mqadmin("updateTopic", "-c", made.source.cluster, "-t", "Orders", "-r", "4", "-w", "4")
    put(theirs, topic="Orders", count=200, size=500, run="run")
    theirs.run("consume", topic="Orders", group="billing", run="run", count=200, settle_ms=100)
    security = {"tls": {"mode": "Required"}}
    made.write(security=security)
    plain = made.gantry("migrate", "check", str(made.file), check=False)
    assert plain.returncode == 1, "without TLS the source gives no answer"
    source = {"nameServers": [made.source.namesrv], "tls": {"caSecret": "source-ca"}}
    made.write(bootstrap={"fromRocketMQ": source}, security=security)
    checked = json.loads(made.gantry("migrate", "check", str(made.file), "-o", "json").stdout)["a"]
    assert {"log", "topics"} <= {item["item"] for item in checked}
    made.gantry("migrate", "start", str(made.file), "--dir", str(made.folder))
    made.until_following()
    put(theirs, topic="Orders", first=200, count=50, size=500, run="run")
    assert "Gantry leads" in made.migrate("cutover", "--settle", "0", "--routes", "5").stdout
    ours = made.driver(client)
    put(ours, topic="Orders", first=250, count=50, size=500, run="run")
    got = ours.run("consume", topic="Orders", group="billing", run="run", count=100, settle_ms=1_000)
    assert (got.summary["unique"], got.summary["repeated"]) == (100, 0)
    assert "the source leads again" in made.migrate("rollback", "--settle", "0").stdout
    back = made.driver(client)
    everything = back.run("consume", topic="Orders", group="all", run="run", count=300, settle_ms=1_000)
    assert (everything.summary["unique"], everything.summary["repeated"]) == (300, 0)
