"""What Apache RocketMQ 4.9.7 and 5.5.0 with access control answer to right and wrong keys, and what Gantry answers.

`play` sends the same signed frames to a system and lets the official clients try the same. The answers of both Apache
versions and of Gantry are in `tests/data/access_answers.json`; `python -m tests.interop.access_answers` plays all of it
again, and writes the recording and the table of docs/security.md. It needs what the other tests of this folder need.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

if not __package__:  # Run as a script: start it again as a module, so that it finds the package `tests`.
    os.execl(sys.executable, sys.executable, "-m", "tests.interop.access_answers", *sys.argv[1:])

import httpx
from gantry_broker.access.signature import ACCESS_KEY, SIGNATURE, sign
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.headers import CreateTopicHeader, Long, PullHeader, SendHeader

from benchmarks.rig import gantry, rocketmq
from benchmarks.rig.driver import Driver
from benchmarks.rig.golang import GoCommand
from benchmarks.rig.processes import until
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.support.heartbeats import heartbeat

RECORDED: Final = Path(__file__).resolve().parents[1] / "data" / "access_answers.json"
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- access answers: begin -->\n", "<!-- access answers: end -->\n"
SYSTEMS: Final = {"4.9.7": "RocketMQ 4.9.7", "5.5.0": "RocketMQ 5.5.0", "gantry": "Gantry"}
TOPIC, GROUP = "Orders", "billing"
GO: Final = "Go 2.1.2"
OTHER_KEY: Final = "another-secret"


class Who(NamedTuple):
    """A name of at least 7 characters, which 4.9.7 asks for, and a key."""

    name: str
    key: str


ADMIN = Who("administrator", "admin-secret")
WRITER = Who("orderswriter", "writer-secret")
READER = Who("ordersreader", "reader-secret")
NOBODY = Who("nobodyknown", "nobody-secret")

_WITH_SUBSCRIPTION: Final = 4
"""The flag of a pull that brings its subscription: its consumer needs no heartbeat before."""
_COMMIT: Final = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
_SEND: Final = SendHeader("p", TOPIC, "TBW102", 4, 0, 0, Long(1_700_000_000_000), 0, "", 0, False)
_PULL: Final = PullHeader(GROUP, TOPIC, 0, Long(0), 32, _WITH_SUBSCRIPTION, Long(0), Long(0), Long(0), "*")
_BEAT: Final = heartbeat(GROUP, TOPIC)


class Request(NamedTuple):
    """`may`: who has the right for it; `may_not`: a user without."""

    code: int
    ext: dict[str, str]
    body: bytes
    may: Who
    may_not: Who
    at_namesrv: bool = False


REQUESTS: Final = {
    "send": Request(RequestCode.SEND_MESSAGE_V2, _SEND.short_ext(), b"x", WRITER, READER),
    "pull": Request(RequestCode.PULL_MESSAGE, _PULL.ext(), b"", READER, WRITER),
    "heartbeat of a consumer": Request(RequestCode.HEART_BEAT, {}, json.dumps(_BEAT).encode(), READER, WRITER),
    "commit of an offset": Request(RequestCode.UPDATE_CONSUMER_OFFSET, _COMMIT, b"", READER, WRITER),
    "create a topic": Request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        CreateTopicHeader("Made", "TBW102", 1, 1, 6, "SINGLE_TAG").ext(), b"", ADMIN, WRITER,
    ),
    "settings of the broker": Request(RequestCode.GET_BROKER_CONFIG, {}, b"", ADMIN, WRITER),
    "route at the NameServer": Request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}, b"", WRITER, NOBODY, at_namesrv=True
    ),
}  # fmt: skip


def signed(ext: dict[str, str], body: bytes, who: Who) -> dict[str, str]:
    named = ext | {ACCESS_KEY: who.name}
    return named | {SIGNATURE: sign(named, body, who.key)}


class Replay(NamedTuple):
    """A frame that `who` signed, sent once more, under another code."""

    first: int
    again: int
    ext: dict[str, str]
    who: Who
    body: bytes = b""


REPLAYS: Final = {
    "the same send twice": Replay(
        RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE_V2, _SEND.short_ext(), WRITER, b"x"
    ),
    "a pull as the commit of an offset, which its user may": Replay(
        RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET, _PULL.ext(), READER
    ),
    "a pull as a question for the largest offset, which its user may": Replay(
        RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET, _PULL.ext(), READER
    ),
    "a pull as a send, which its user may not": Replay(
        RequestCode.PULL_MESSAGE, RequestCode.SEND_MESSAGE, _PULL.ext() | _SEND.ext(), READER
    ),
    "a send as the creation of a topic, which its user may not": Replay(
        RequestCode.SEND_MESSAGE, RequestCode.UPDATE_AND_CREATE_TOPIC,
        _SEND.ext() | CreateTopicHeader(TOPIC, "TBW102", 9, 9, 6, "SINGLE_TAG").ext(), WRITER,
    ),
}  # fmt: skip


def play(target: Target, drivers: dict[str, Driver]) -> dict[str, str]:
    """Returns the answer to each case: a code, or for an official client what it shows to its program.

    `drivers`: by the client's version, 49 and 55.
    """
    answers = {}
    for name, request in REQUESTS.items():
        address = target.namesrv if request.at_namesrv else target.broker_address
        for case, ext in _signatures(request):
            with Wire(address, prefix=target.prefix) as wire:
                answers[f"{name}: {case}"] = str(wire.ask(request.code, ext, request.body).code)
    for name, replay in REPLAYS.items():
        ext = signed(replay.ext, replay.body, replay.who)
        with Wire(target.broker_address, prefix=target.prefix) as wire:
            wire.ask(replay.first, ext, replay.body)
        with Wire(target.broker_address, prefix=target.prefix) as wire:
            answers[f"replay: {name}"] = str(wire.ask(replay.again, ext, replay.body).code)
    for version, driver in drivers.items():
        client = f"Java {'4.9.7' if version == '49' else '5.5.0'}"
        for case, who in _clients(WRITER, READER):
            answers[f"{client}, send: {case}"] = _sent(driver, who)
        for case, who in _clients(READER, WRITER):
            answers[f"{client}, pull: {case}"] = _pulled(driver, who)
    return answers


def play_go(target: Target, folder: Path) -> dict[str, str]:
    """Returns what the Go client shows to its program in the cases of the Java clients; `folder` is for its files."""
    numbers = itertools.count()

    def run(command: str, who: dict[str, str], **options: object) -> GoCommand:
        return GoCommand(target, folder / str(next(numbers)), command, topic=TOPIC, count=1, **options, **who)

    answers = {}
    for case, who in _clients(WRITER, READER):
        answers[f"{GO}, send: {case}"] = _shown(run("produce", who), "sent", "SEND_OK")
    pulls = dict(_clients(READER, WRITER))
    for case, who in pulls.items():
        pulled = run("pull", who, group=GROUP, queues=1, broker=target.broker_name)
        answers[f"{GO}, pull: {case}"] = _shown(pulled, "message", "FOUND")
    # One more message, as the pull has committed its offset. The right one is last: what it gets was there for others.
    run("produce", _right(WRITER)).finish()
    waiting = {
        case: run("consume", who, group=GROUP, timeout="6s") for case, who in pulls.items() if who != _right(READER)
    }
    for case, consumer in waiting.items():
        answers[f"{GO}, consume: {case}"] = _shown(consumer, "message", "FOUND")
    answers[f"{GO}, consume: right key"] = _shown(run("consume", _right(READER), group=GROUP), "message", "FOUND")
    return answers


def _shown(command: GoCommand, event: str, success: str) -> str:
    """`code 16`, or without a code the beginning of the text."""
    with contextlib.suppress(AssertionError):  # it ends with 1 after an error, which it prints
        command.finish()
    if command.of(event):
        return success
    texts = [line["text"] for line in (*command.of("failed"), *command.of("error"))]
    if not texts:
        return "nothing"
    found = re.search(r"code: (\d+)", texts[0], re.IGNORECASE)
    return f"code {found[1]}" if found else repr(re.sub(rf"the topic={TOPIC} |, it may.*", "", texts[0]))


def _signatures(request: Request) -> Iterator[tuple[str, dict[str, str]]]:
    may, ext, body = request.may, request.ext, request.body
    yield "right key", signed(ext, body, may)
    yield "wrong key", signed(ext, body, Who(may.name, OTHER_KEY))
    yield "unknown user", signed(ext, body, NOBODY)
    yield "another body than was signed", signed(ext, body + b" ", may)
    if request.may_not is not NOBODY:
        yield "without the right", signed(ext, body, request.may_not)
    yield "no key", ext


def _clients(may: Who, may_not: Who) -> Iterator[tuple[str, dict[str, str]]]:
    for case, who in (
        ("right key", may), ("wrong key", Who(may.name, OTHER_KEY)), ("unknown user", NOBODY),
        ("without the right", may_not),
    ):  # fmt: skip
        yield case, _right(who)
    yield "no key", {}


def _right(who: Who) -> dict[str, str]:
    return {"access_key": who.name, "secret_key": who.key}


def _sent(driver: Driver, who: dict[str, str]) -> str:
    done = driver.run("produce", topic=TOPIC, run="r", count=1, each=True, retries=0, timeout_ms=20_000, **who)
    return "SEND_OK" if done.of("sent") else _failure(done.of("error"))


def _pulled(driver: Driver, who: dict[str, str]) -> str:
    done = driver.run("consume", topic=TOPIC, group=GROUP, run="r", mode="pull", once=True, each=True, **who)
    pulled = done.of("pulled")
    return pulled[0]["status"] if pulled else _failure(done.of("error"))


def _failure(errors: list[dict[str, Any]]) -> str:
    """`MQBrokerException 16`, or for a failure without a code the exception and the beginning of its text."""
    if not errors:
        return "nothing"
    error = errors[0]
    said = re.search(r"No route info of this topic|Can not find Message Queue for this topic", error["message"])
    shown = f"{error['type']} {error['code']}" if error.get("code") else error["type"]
    return f"{shown}, {said[0]!r}" if said else shown


# ---- systems


@contextlib.contextmanager
def system(name: str, folder: Path) -> Iterator[Target]:
    """Starts a system of SYSTEMS with the three users and the topic. Raises JavaMissing or NamespaceUnavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    with {"4.9.7": _apache49, "5.5.0": _apache55, "gantry": _gantry}[name](folder) as target:
        config = CreateTopicHeader(TOPIC, "TBW102", 1, 1, 6, "SINGLE_TAG")
        with Wire(target.broker_address, prefix=target.prefix) as broker:
            broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, signed(config.ext(), b"", ADMIN))

        def routed() -> bool:
            with Wire(target.namesrv, prefix=target.prefix) as names:
                ext = signed({"topic": TOPIC}, b"", ADMIN)
                return names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext).code == 0

        until("the topic's route", routed, 40)
        with Wire(target.broker_address, prefix=target.prefix) as broker:
            broker.call(RequestCode.SEND_MESSAGE_V2, signed(_SEND.short_ext(), b"x", ADMIN), b"x")
        yield target


@contextlib.contextmanager
def _apache49(folder: Path) -> Iterator[Target]:
    accounts = [
        {"accessKey": ADMIN.name, "secretKey": ADMIN.key, "admin": True},
        {"accessKey": WRITER.name, "secretKey": WRITER.key, "topicPerms": [f"{TOPIC}=PUB"]},
        {"accessKey": READER.name, "secretKey": READER.key, "topicPerms": [f"{TOPIC}=SUB"],
         "groupPerms": [f"{GROUP}=SUB"]},
    ]  # fmt: skip
    denied = {"defaultTopicPerm": "DENY", "defaultGroupPerm": "DENY"}
    conf = folder / "home" / "conf"
    conf.mkdir(parents=True)
    # JSON is YAML.
    (conf / "plain_acl.yml").write_text(json.dumps({"accounts": [denied | account for account in accounts]}))
    with rocketmq.rocketmq(folder, {"aclEnable": "true"}, heap="512m", direct="512m") as target:
        yield target


@contextlib.contextmanager
def _apache55(folder: Path) -> Iterator[Target]:
    own = json.dumps({"accessKey": ADMIN.name, "secretKey": ADMIN.key})
    first = json.dumps({"username": ADMIN.name, "password": ADMIN.key})
    auth = "org.apache.rocketmq.auth"
    settings = {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{auth}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{auth}.authentication.provider.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": first, "innerClientAuthenticationCredentials": own,
        "authorizationEnabled": "true",
        "authorizationProvider": f"{auth}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{auth}.authorization.provider.LocalAuthorizationMetadataProvider",
    }  # fmt: skip
    with rocketmq.rocketmq(folder, settings, heap="512m", direct="512m", server="server55") as target:
        with contextlib.closing(Driver(target, "55", "JSON", folder / "admin.log")) as driver:
            for who, rules in (
                (WRITER, [(f"Topic:{TOPIC}", "PUB")]), (READER, [(f"Topic:{TOPIC}", "SUB"), (f"Group:{GROUP}", "SUB")]),
            ):  # fmt: skip
                _mqadmin(driver, "createUser", "-u", who.name, "-p", who.key, "-t", "Normal")
                for resource, action in rules:
                    words = ["-s", f"User:{who.name}", "-r", resource, "-a", action, "-d", "Allow"]
                    _mqadmin(driver, "createAcl", *words)
        yield target


def _mqadmin(driver: Driver, command: str, *words: str) -> None:
    out = driver.mqadmin(
        command, "--access-key", ADMIN.name, "--secret-key", ADMIN.key, "-b", driver.target.broker_address, *words
    )
    if "success" not in out:
        raise RuntimeError(f"mqadmin {command}: {out}")


@contextlib.contextmanager
def _gantry(folder: Path) -> Iterator[Target]:
    topic = {"type": "Topic", "name": TOPIC}
    users = [
        {"name": ADMIN.name, "keys": [ADMIN.key], "super": True},
        {"name": WRITER.name, "keys": [WRITER.key], "rules": [topic | {"actions": ["Pub"]}]},
        {"name": READER.name, "keys": [READER.key], "rules": [
            topic | {"actions": ["Sub"]}, {"type": "Group", "name": GROUP, "actions": ["Sub"]}
        ]},
    ]  # fmt: skip
    with gantry.single(folder) as target:
        port = json.loads((folder / "broker.json").read_text())["http_port"]
        table = {"version": 1, "mode": "Enabled", "users": users}
        httpx.put(f"http://127.0.0.1:{port}/v1/access", content=json.dumps(table), timeout=30).raise_for_status()
        yield target


def play_java(target: Target, folder: Path) -> dict[str, str]:
    """`play` with a session of each version of the client, whose logs go to `folder`."""
    with contextlib.ExitStack() as stack:
        drivers = {}
        for version in ("49", "55"):
            drivers[version] = Driver(target, version, "JSON", folder / f"driver-{version}.log")
            stack.callback(drivers[version].close)
        return play(target, drivers)


def record(name: str, folder: Path) -> dict[str, str]:
    """Returns all answers of a system of its own."""
    with system(name, folder) as target:
        return play_java(target, folder) | play_go(target, folder)


# ---- the page

ROUTE: Final = "MQClientException 10005, 'No route info of this topic'"
QUEUES: Final = "MQClientException 16, 'Can not find Message Queue for this topic'"
NO_ROUTE: Final = "'route info not found'"
REASONS: Final = {
    ("1", "16", "16"): "4.9.7 answers with the text of an exception, which shows whether the user exists. Gantry has "
    "one answer for clients of all versions.",
    ("MQClientException 1", "MQClientException 16", "MQClientException 16"): "The client shows the answer's code.",
    ("MQBrokerException 1", "MQBrokerException 16", "MQBrokerException 16"): "The client shows the answer's code.",
    ("0", "0", "16"): "Gantry's NameServers check each request, and settings need a right of the cluster.",
    ("MQClientException 1", "MQClientException 16", ROUTE): "The NameServer refuses the route. The client logs its "
    "answer (16) and shows the program that it has no route. Apache's NameServers give routes to everybody.",
    ("MQBrokerException 1", "MQBrokerException 16", QUEUES): "The NameServer refuses the route. The "
    "exception's cause has the answer's code and text.",
    ("code 1", "code 16", NO_ROUTE): "The NameServer refuses the route; the client logs why.",
    ("nothing", "nothing", NO_ROUTE): "The NameServer refuses the route, so the consumer does not start.",
    ("code 1", "code 16", "code 16"): "The client shows the answer's code.",
    ("FOUND", "FOUND", NO_ROUTE): "This client's pull consumer signs what it asks brokers, but not what it asks "
    "NameServers. Its push consumer and its producer sign both.",
    ("0", "16", "0"): "5.5.0 asks for `Get`. Clients of consumers ask it, so `Sub` suffices here.",
}
"""Why answers are not the same in all three systems, by the answers in the order of SYSTEMS."""


def differences(recorded: dict[str, dict[str, str]]) -> dict[tuple[str, ...], list[str]]:
    """Returns the cases by their answers in the order of SYSTEMS, where these are not all the same."""
    found: dict[tuple[str, ...], list[str]] = {}
    for case in recorded["gantry"]:
        answers = tuple(recorded[name][case] for name in SYSTEMS)
        if len(set(answers)) > 1:
            found.setdefault(answers, []).append(case)
    return found


def table(recorded: dict[str, dict[str, str]]) -> str:
    """Returns the table of docs/security.md."""
    rows = [f"| request: what is wrong with it | {' | '.join(SYSTEMS.values())} | reason |", "|---|---|---|---|---|"]
    for answers, cases in differences(recorded).items():
        rows.append(f"| {_in_short(cases)} | {' | '.join(answers)} | {REASONS[answers]} |")
    return "\n".join(rows) + "\n"


def _in_short(cases: list[str]) -> str:
    """Returns requests with the same faults in one phrase."""
    faults: dict[str, list[str]] = {}
    for case in cases:
        request, fault = case.split(": ", 1)
        faults.setdefault(request, []).append(fault)
    requests: dict[str, list[str]] = {}
    for request, found in faults.items():
        requests.setdefault(", ".join(found), []).append(request)
    return "; ".join(f"**{' / '.join(names)}**: {fault}" for fault, names in requests.items())


def main() -> None:
    recorded = {}
    with tempfile.TemporaryDirectory() as name:
        for system_name in SYSTEMS:
            recorded[system_name] = record(system_name, Path(name) / system_name)
            print(f"{SYSTEMS[system_name]}: {len(recorded[system_name])} answers")
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + table(recorded) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
