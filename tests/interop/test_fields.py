"""Bad fields get RocketMQ's code and a remark with the field's name; they write and crash nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from gantry_broker.protocol.codes import GantryCode, ResponseCode
from gantry_broker.protocol.codes import RequestCode as Code
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.handshake import Identity

from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.interop import compatibility, fields
from tests.interop.fields import Case

CASES = {case.name: case for table in (fields.NAME_SERVER, fields.BROKER) for case in fields.cases(table)}
THEIRS: dict[str, int | None] = json.loads(fields.RECORDED.read_text())

BODIES = [
    b"", b"\x00\xff{", b"[]", b"5", b"null", b'"x"', b"[" * 5000, b"x" * 100_000,
    b'{"groupName":5,"clientID":5,"topicName":5}',
    b'{"subscriptionData":5,"consumerDataSet":5,"mqSet":5,"groupConfigList":5,"topicConfigList":5}',
]  # fmt: skip


@pytest.fixture(scope="module")
def plain(_targets: Callable[[str], Target]) -> Target:
    """Gantry's broker and NameServer, without Java."""
    target = _targets("gantry")
    fields.prepare(target)
    return target


class Both:
    """A connection to the broker, and two to the NameServer: as a client and as a broker."""

    def __init__(self, plain: Target) -> None:
        self.broker, self.names = Wire(plain.broker_address, 5), Wire(plain.namesrv, 5)
        self.registration = Wire(plain.registration, 5, member=Identity("demo", "fields", 0))

    def ask(self, case: Case) -> Frame:
        if case.code in fields.REGISTRATION:
            return self.registration.ask(case.code, case.ext, case.body)
        wire = self.names if case.code in fields.NAME_SERVER else self.broker
        return wire.ask(case.code, case.ext, case.body)

    def everything(self) -> list[bytes]:
        """Everything that a request could change: configurations with their versions, settings, a queue's end."""
        queue = {"topic": fields.TOPIC, "queueId": "0"}
        asked = (
            self.broker.call(Code.GET_ALL_TOPIC_CONFIG, {}),
            self.broker.call(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
            self.broker.call(Code.GET_BROKER_CONFIG, {}),
            self.names.call(Code.GET_BROKER_CLUSTER_INFO, {}),
            self.names.call(Code.GET_NAMESRV_CONFIG, {}),
        )
        end = self.broker.call(Code.GET_MAX_OFFSET, queue).ext["offset"]
        return [*(answer.body for answer in asked), end.encode()]

    def close(self) -> None:
        self.broker.socket.close()
        self.names.socket.close()
        self.registration.socket.close()


TAKEN = {
    **{
        f"{code} value enormous": "a value may have 1 MiB, and the others do not read it"
        for code in (Code.PUT_KV_CONFIG, Code.GET_KV_CONFIG, Code.DELETE_KV_CONFIG)
    },
    f"{Code.CONSUME_MESSAGE_DIRECTLY} clientId empty": "any member of the group is asked",
}


def problem(case: Case, answer: Frame, fine: Frame) -> str:
    """Returns the faults of an answer; empty: none. `fine` is the answer to a correct request.

    RocketMQ treats many bad fields as absent. Gantry may do so for an empty field; it refuses wrong types and enormous
    values by name.
    """
    theirs, theirs_fine = THEIRS[case.name], THEIRS[f"{case.code} nothing"]
    remark = answer.remark or ""
    if len(remark) > 1_000:
        return f"the remark has {len(remark)} characters"
    if case.name in TAKEN:
        return ""
    refused_there = theirs not in (ResponseCode.SUCCESS, None, theirs_fine)
    if case.wrong == "empty" and not refused_there and (answer.code, answer.remark) == (fine.code, fine.remark):
        return ""
    if answer.code == ResponseCode.SUCCESS:
        return f"accepted; RocketMQ says {theirs}"
    if answer.code != (theirs if refused_there else answer.code):
        return f"code {answer.code}, RocketMQ says {theirs}: {remark}"
    if case.field.lower() not in remark.lower():
        return f"the field is not named: {remark}"
    return ""


def test_every_code_is_in_a_table() -> None:
    own = set(map(int, GantryCode))
    of_brokers = fields.BROKER.keys() | fields.BODIES.keys() | fields.WITHOUT | fields.USERS | fields.POP
    assert of_brokers >= compatibility.BROKER - own
    assert fields.NAME_SERVER.keys() | fields.WITHOUT >= compatibility.NAME_SERVER - own
    assert {*CASES} == {*THEIRS}, "the recording is stale: run `python -m tests.interop.fields`"


@pytest.mark.parametrize("code", sorted({case.code for case in CASES.values()}))
def test_a_bad_field_is_refused_by_name(plain: Target, code: int) -> None:
    both = Both(plain)
    problems = []
    fine, *bad = (case for case in CASES.values() if case.code == code)
    answered = both.ask(fine)
    fields.prepare(plain)  # the correct request may have deleted the topic or group of the others
    for case in bad:
        before = both.everything()
        answer = both.ask(case)
        wrong = problem(case, answer, answered)
        if not wrong and answer.code not in (ResponseCode.SUCCESS, answered.code) and both.everything() != before:
            wrong = "refused, but something was written"
        if wrong:
            problems.append(f"{case.name}: {wrong}")
    both.close()
    assert not problems, "\n".join(problems)
    assert "Traceback" not in plain.log.read_text(), plain.log.read_text()[-3000:]


@pytest.mark.parametrize("code", sorted(fields.BODIES))
def test_a_bad_body_is_refused_by_name(plain: Target, code: int) -> None:
    both = Both(plain)
    before = both.everything()
    bodies = [
        body for body in BODIES if code != Code.CHECK_CLIENT_CONFIG or b'"topicName"' not in body
    ]  # nothing to check
    for body in bodies:
        answer = both.broker.ask(code, {}, body)
        remark = answer.remark or ""
        assert answer.code == ResponseCode.SYSTEM_ERROR, (body[:60], answer)
        assert fields.BODIES[code].lower() in remark.lower() or "body" in remark, (body[:60], remark)
        assert len(remark) < 1_000
    assert both.everything() == before
    both.close()
    assert "Traceback" not in plain.log.read_text(), plain.log.read_text()[-3000:]
