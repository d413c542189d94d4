"""A source that asks for signatures moves with its users: each command has the administrator's key; INTEROP=full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.migration.scene import Scene, as_documented, put, scene

ROOT, CLIENT = ("rootuser", "root-secret-key"), ("orderuser", "orders-secret-key")
AUTH = "org.apache.rocketmq.auth"
MANAGED = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT[0], "secretKey": ROOT[1]}),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_a_guarded_source_moves_with_its_users_and_back(
    java_side: Path, tmp_path: Path, server: str, client: str
) -> None:
    accounts = [
        {"accessKey": ROOT[0], "secretKey": ROOT[1], "admin": True},
        {"accessKey": CLIENT[0], "secretKey": CLIENT[1], "topicPerms": ["Orders=PUB|SUB"], "groupPerms": ["g=SUB"]},
        {"accessKey": "shortkey", "secretKey": "seven-7", "defaultTopicPerm": "SUB"},
    ]
    conf = tmp_path / "rocketmq" / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(json.dumps({"accounts": accounts}))  # JSON is YAML.
    with scene(tmp_path, server, MANAGED if client == "55" else {"aclEnable": "true"}) as made:
        moves(made, client)


def keys(of: tuple[str, str]) -> dict[str, str]:
    return {"access_key": of[0], "secret_key": of[1]}


def moves(made: Scene, client: str) -> None:
    secret = made.base / "config" / "gantry" / "secrets" / "source"
    secret.mkdir(parents=True)
    for name, text in zip(("accessKey", "secretKey"), ROOT, strict=True):
        (secret / name).write_text(text)
        (secret / name).chmod(0o600)
    made.environment |= {"XDG_CONFIG_HOME": str(made.base / "config")}
    theirs = made.driver(client)
    admin = ["--access-key", ROOT[0], "--secret-key", ROOT[1]]
    theirs.mqadmin("updateTopic", *admin, "-c", made.source.cluster, "-t", "Orders", "-r", "1", "-w", "1")
    if client == "55":
        for who, key in (CLIENT, ("shortkey", "seven-7")):
            theirs.mqadmin("createUser", *admin, "-b", made.source.broker_address, "-u", who, "-p", key, "-t", "Normal")
        for resource, action in (("Topic:Orders", "PUB,SUB"), ("Group:g", "SUB")):
            theirs.mqadmin(
                "createAcl", *admin, "-b", made.source.broker_address, "-s", f"User:{CLIENT[0]}", "-r", resource,
                "-a", action, "-d", "Allow",
            )  # fmt: skip
    put(theirs, topic="Orders", count=20, run="run", **keys(CLIENT))
    source: dict[str, Any] = {"nameServers": [made.source.namesrv], "accessKeySecret": "source"}
    made.write(bootstrap={"fromRocketMQ": source})
    refused = made.gantry("migrate", "start", str(made.file), "--dir", str(made.folder), check=False)
    assert refused.returncode == 1, refused.stdout
    assert "fromRocketMQ.dropAccessControl: true" in refused.stderr
    assert not (made.folder / "log").exists(), "nothing was started"
    made.write(bootstrap={"fromRocketMQ": source}, security={"authentication": "Enabled"})
    checked = json.loads(made.gantry("migrate", "check", str(made.file), "-o", "json").stdout)["a"]
    by_name = {item["item"]: item for item in checked}
    assert (by_name["users and rules"]["kind"], by_name["users and rules"]["amount"]) == ("changed", "2")
    assert by_name["user shortkey"]["kind"] == "missing"
    made.gantry("migrate", "start", str(made.file), "--dir", str(made.folder))
    said = made.gantry("migrate", "users", str(made.file), "--dir", str(made.folder))
    said.stdout = said.stdout.replace("the password must", "secretKey must")  # As each version calls it.
    as_documented("migrate users migrate.yaml", said)
    again = made.gantry("migrate", "users", str(made.file), "--dir", str(made.folder))
    assert "they exist, and stay as they are: orderuser, rootuser" in again.stderr
    made.until_following()
    made.migrate("cutover", "--settle", "0", "--routes", "0")
    ours = made.driver(client)
    put(ours, topic="Orders", count=10, first=20, run="run", **keys(CLIENT))
    got = ours.run("consume", topic="Orders", group="g", run="run", count=30, settle_ms=100, **keys(CLIENT))
    assert got.summary["unique"] == 30
    wrong = ours.run(
        "produce", topic="Orders", count=1, first=99, run="run", retries=0, **keys((CLIENT[0], "wrong-secret"))
    )
    assert not wrong.of("summary") or not wrong.summary["statuses"], wrong.lines
    exported = made.gantry("export", "--to", str(made.base / "out"), "--dir", str(made.folder))
    assert "storePathRootDir" in exported.stdout + exported.stderr
    said = made.migrate("rollback")
    assert "the source leads again" in said.stdout
    back = made.driver(client)
    got = back.run("consume", topic="Orders", group="g3", run="run", count=30, settle_ms=100, **keys(ROOT))
    assert got.summary["unique"] == 30
    texts = [path.read_text(errors="replace") for path in (made.folder / "log").glob("*")]
    texts += [said.stdout, said.stderr, again.stdout, again.stderr, json.dumps(checked)]
    for key in (ROOT[1], CLIENT[1], "seven-7"):
        assert not [text for text in texts if key in text], "a key is in a log"
