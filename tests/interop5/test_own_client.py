"""The project's client by gRPC does the same against Apache RocketMQ's proxy and against Gantry's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol.codes import ResponseCode

from benchmarks.rig.processes import NamespaceUnavailable
from tests.interop5 import own_program, systems
from tests.interop5.clients import ToolMissing
from tests.support.certificates import Authority

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


SYSTEMS = {"gantry": systems.ours, "rocketmq": systems.apache}


def ran(found: systems.System, endpoints: str, *words: str) -> Any:
    """Return what the program printed."""
    command = [*found.target.prefix, sys.executable, own_program.__file__, endpoints, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture
def running(system: str, tmp_path: Path) -> Iterator[systems.System]:
    try:
        with SYSTEMS[system](tmp_path) as found:
            yield found
    except (ToolMissing, NamespaceUnavailable) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("system", SYSTEMS)
def test_sends_receives_acknowledges_delays_and_keeps_the_order(running: systems.System) -> None:
    topics = [running.topic(f"Own{kind}", kind) for kind in ("NORMAL", "DELAY", "FIFO")]
    assert ran(running, running.endpoints, "simple", *topics, running.group("own")) == {
        "tagged": [[n, str(n), "a", [f"k{n}"], str(n)] for n in (0, 2, 4, 6)],
        "order": ["0", "1", "2", "3", "4", "5"],
        "queues": 1,
        "early_ms": 0,
        "again": [True, 2],
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_calls_the_application_in_order_in_transactions_and_by_tls(running: systems.System, tmp_path: Path) -> None:
    topics = [running.topic(f"Own{kind}", kind) for kind in ("NORMAL", "DELAY", "FIFO", "TRANSACTION")]
    groups = running.group("own"), running.group("orderly", orderly=True)
    files = Authority().issue(tmp_path / "tls", "127.0.0.1", "localhost", rsa_key=True)
    with running.another_proxy(tmp_path, "second", tls=files) as (secured, _):
        for number, (endpoints, ca) in enumerate(((running.endpoints, ()), (secured, (str(files.ca),)))):
            assert ran(running, endpoints, "called", *topics, *groups, *ca) == {
                "seen": [["again", 0], ["again", 1], ["late", 0], ["perhaps", 0], ["plain", 0], ["yes", 0]],
                "order": ["0", "1", "1", "2", "3"],
                "asked": ["perhaps"],
            }, f"by {('clear text', 'TLS')[number]}"


def test_a_user_of_apache_rocketmq(tmp_path: Path) -> None:
    """Users of Gantry are in tests/client/test_grpc_consumers.py."""
    auth, name, secret = "org.apache.rocketmq.auth.authentication.provider", "owner", "12345678"
    settings = {
        "authenticationEnabled": "true", "authenticationProvider": f"{auth}.DefaultAuthenticationProvider",
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": name, "secretKey": secret}),
    }  # fmt: skip
    broker = settings | {
        "authenticationMetadataProvider": f"{auth}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": name, "password": secret}),
    }
    proxy = settings | {
        "authenticationEnabled": True,
        "enableAclRpcHookForClusterMode": True,
        "authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
    }
    try:
        with systems.apache(tmp_path, broker, proxy) as found:
            got = ran(found, found.endpoints, "user", found.target.namesrv, name, secret)
    except (ToolMissing, NamespaceUnavailable) as error:
        pytest.skip(str(error))
    assert got == {"bodies": ["mine"], "refused": [ResponseCode.NO_PERMISSION] * 2}
