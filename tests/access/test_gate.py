"""The gate: what it remembers never differs from a fresh decision, through changes of the table."""

from __future__ import annotations

import json
import logging
import random
import tracemalloc
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from gantry_broker.access.audit import RECENT, REFUSED_A_SECOND, AuditLog
from gantry_broker.access.decide import Policy
from gantry_broker.access.gate import REASONS, WRONG, Caller, Gate
from gantry_broker.access.guesses import MAX_ADDRESSES, WRONG_A_SECOND, Guesses
from gantry_broker.access.signature import sign
from gantry_broker.access.table import AccessTable
from gantry_broker.admission import admit, admit_again
from gantry_broker.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, RepeatedPull, encode_frame
from gantry_broker.protocol.message import BatchItem, encode_batch
from gantry_broker.protocol.requests import ADMINISTRATIVE, RIGHTS, USER_CODES
from gantry_broker.protocol.rights import ACTIONS

from tests.support.heartbeats import heartbeat
from tests.support.present import present

KEYS = {"orders": "orders-key", "billing": "billing-key", "admin": "admin-key"}


class Records:
    """Each stored record's topic by its offset."""

    def __init__(self) -> None:
        self.topics = {100: "orders", 200: "secret"}

    def topic_at(self, offset: int) -> str:
        return self.topics.get(offset, "")

    def target_at(self, offset: int) -> str:
        return self.topics.get(offset, "")


def policy(users: list[dict[str, Any]], mode: str = "Enabled", version: int = 1, **more: Any) -> Policy:
    whole = [{"keys": [KEYS.get(user["name"], "other-key")], **user} for user in users]
    table = AccessTable.model_validate({"version": version, "mode": mode, "users": whole, **more})
    return Policy.of(table.model_dump())


def gate(*users: dict[str, Any], mode: str = "Enabled", **more: Any) -> Gate:
    made = Gate("demo", "Enabled", Records())
    made.set_policy(policy(list(users), mode, **more))
    return made


def signed(code: int, user: str = "orders", key: str | None = None, body: bytes = b"", **ext: str) -> Frame:
    frame = Frame(int(code), ext={"AccessKey": user, **ext}, body=body)
    frame.ext["Signature"] = sign(frame.ext, body, KEYS.get(user, "x") if key is None else key)
    return frame


def reason(made: Gate, frame: Frame, caller: Caller | None = None, now: float = 0.0) -> str:
    refused = made.check(caller or Caller("10.0.0.1"), frame, now, 0)
    assert refused is None or refused.reason in REASONS
    return "" if refused is None else refused.reason


def passes(made: Gate, caller: Caller, frame: Frame) -> bool:
    """As at a port: what the caller remembers, or else a check. What it remembers never allows more."""
    check = caller.again(made.policy).get(frame.ext.get("AccessKey", ""), {}).get(frame.code)
    again = check is not None and check([frame], 0) == 1
    checked = made.check(caller, frame, 0.0, 0) is None
    assert checked or not again, frame
    return again


SEND = RequestCode.SEND_MESSAGE_V2
PUB = {"type": "Topic", "name": "orders", "actions": ["Pub"]}
SUB = {"type": "Topic", "name": "orders", "actions": ["Sub"]}
GROUP = {"type": "Group", "name": "billing", "actions": ["Sub"]}


def test_permission_to_send() -> None:
    made = gate({"name": "orders", "rules": [PUB]}, {"name": "billing", "enabled": False, "rules": [PUB]})
    assert reason(made, signed(SEND, b="orders")) == ""
    assert reason(made, signed(SEND, b="secret")) == "permission"
    assert reason(made, signed(SEND, b="orders", key="wrong-key")) == "signature"
    assert reason(made, signed(SEND, "billing", b="orders")) == "signature", "disabled"
    assert reason(made, signed(SEND, "nobody", b="orders")) == "signature"
    assert reason(made, Frame(int(SEND), ext={"b": "orders"})) == "anonymous"
    assert reason(made, Frame(int(SEND), ext={"b": "orders", "AccessKey": "orders"})) == "signature"
    assert made.refused == {"permission": 1, "signature": 4, "anonymous": 1}
    assert made.dropped == 0
    assert reason(made, Frame(int(SEND), flag=FLAG_ONEWAY)) == "anonymous"
    assert made.dropped == 1


def test_answers_do_not_reveal_which_users_exist() -> None:
    made = gate({"name": "orders", "rules": [PUB]}, {"name": "billing", "enabled": False})
    answers = {
        made.check(Caller("10.0.0.1"), signed(SEND, user, "wrong-key", b="orders"), 0, 0)
        for user in ("orders", "billing", "nobody")
    }
    assert len(answers) == 1
    assert next(iter(answers)) == (16, WRONG, "signature", "", False)


def test_the_mode_until_there_is_a_table() -> None:
    made = Gate("demo", "Enabled", Records())
    assert made.active
    assert reason(made, signed(SEND, b="orders")) == "no-table"
    refused = present(made.check(Caller("10.0.0.1"), Frame(int(SEND)), 0, 0))
    assert (refused.code, "no access table yet" in refused.remark) == (ResponseCode.SYSTEM_BUSY, True)
    assert not Gate("demo", "Disabled", Records()).active
    permissive = Gate("demo", "Permissive", Records())
    assert reason(permissive, Frame(int(SEND))) == ""
    assert permissive.anonymous == 1
    permissive.set_policy(policy([], "Disabled"))
    assert not permissive.active


def test_a_repeated_pull_counts_as_the_unsigned_request_that_it_is() -> None:
    fields = {"topic": "orders", "consumerGroup": "billing", "queueId": "0", "queueOffset": "1", "commitOffset": "2"}
    plain, decoder = Frame(RequestCode.PULL_MESSAGE, 7, ext=fields), FrameDecoder()
    frames = [decoder.feed(encode_frame(plain))[0] for _ in range(40)]
    repeated = frames[-1]
    assert type(repeated) is RepeatedPull
    table: Policy | None
    for mode in ("Enabled", "Permissive", "Disabled"):
        for table in (None, policy([{"name": "orders", "rules": [SUB]}], mode)):
            made = Gate("demo", mode, Records())
            if table is not None:
                made.set_policy(table)
            caller = Caller("10.0.0.1")
            assert made.check(caller, repeated, 0.0, 0) == made.check(caller, plain, 0.0, 0)
            assert (reason(made, repeated) == "") == (mode != "Enabled")
            assert made.anonymous == (3 if mode == "Permissive" else 0)


def test_permissive_admits_unsigned_requests_only() -> None:
    made = gate({"name": "orders", "rules": [PUB]}, mode="Permissive")
    assert reason(made, Frame(int(SEND), ext={"b": "secret"})) == ""
    assert reason(made, signed(SEND, b="orders", key="wrong-key")) == "signature"
    assert reason(made, signed(SEND, b="secret")) == "permission"
    for code in USER_CODES:
        assert reason(made, Frame(code)) == "anonymous"
    assert made.anonymous == 1


def test_a_place_of_the_log_counts_as_its_topic() -> None:
    made = gate({"name": "orders", "rules": [SUB, PUB, GROUP]}, {"name": "admin", "super": True})
    back = {"group": "billing", "delayLevel": "0"}
    end = {"producerGroup": "p", "tranStateTableOffset": "0", "commitOrRollback": "8"}
    for offset, wanted in (("100", ""), ("200", "permission"), ("300", "permission")):
        assert reason(made, signed(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)) == wanted
        assert reason(made, signed(RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, **back)) == wanted
        assert reason(made, signed(RequestCode.END_TRANSACTION, commitLogOffset=offset, **end)) == wanted
        view = signed(RequestCode.VIEW_MESSAGE_BY_ID, "admin", offset=offset)
        assert reason(made, view) == "", "the handler says what there is"
    refused = made.check(Caller("10.0.0.1"), signed(RequestCode.VIEW_MESSAGE_BY_ID, offset="200"), 0, 0)
    absent = made.check(Caller("10.0.0.1"), signed(RequestCode.VIEW_MESSAGE_BY_ID, offset="300"), 0, 0)
    assert refused is not None
    assert absent is not None
    assert "secret" not in refused.remark
    assert refused.remark == absent.remark, "nobody learns at which offsets records are"
    assert reason(made, signed(RequestCode.VIEW_MESSAGE_BY_ID, offset="x")) == "malformed"


def test_every_topic_is_no_right_to_a_record_that_may_come() -> None:
    every = {"type": "Any", "pattern": "Any", "actions": ["Any"]}
    made = gate({"name": "orders", "rules": [every]})
    back = {"group": "billing", "delayLevel": "0"}
    for offset, wanted in (("100", ""), ("300", "permission")):
        assert reason(made, signed(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)) == wanted
        assert reason(made, signed(RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, **back)) == wanted
    message_id = f"{0:024X}{300:08X}"
    direct = {"consumerGroup": "billing", "msgId": message_id}
    assert reason(made, signed(RequestCode.CONSUME_MESSAGE_DIRECTLY, **direct)) == "permission"


def test_long_names_take_no_memory() -> None:
    every = {"type": "Any", "pattern": "Any", "actions": ["Any"]}
    for rules in ([], [every]):
        made, caller = gate({"name": "orders", "rules": rules}), Caller("10.0.0.1")
        tracemalloc.start()
        try:
            for number in range(200):
                assert reason(made, signed(SEND, b=f"{number}{'x' * 50_000}"), caller) == "permission"
            assert tracemalloc.get_traced_memory()[0] < 2_000_000
        finally:
            tracemalloc.stop()


def test_a_pull_of_another_groups_retries_needs_that_group() -> None:
    made = gate({"name": "orders", "rules": [GROUP, {"type": "Topic", "pattern": "Any", "actions": ["Sub"]}]})
    assert reason(made, signed(RequestCode.PULL_MESSAGE, topic="%RETRY%billing", consumerGroup="billing")) == ""
    assert reason(made, signed(RequestCode.PULL_MESSAGE, topic="%RETRY%x", consumerGroup="billing")) == "permission"
    assert reason(made, signed(RequestCode.PULL_MESSAGE, topic="orders", consumerGroup="x")) == "permission"


def test_pops_need_topic_and_group_and_retry_topics_belong_to_it() -> None:
    made = gate({"name": "orders", "rules": [GROUP, SUB]})
    for code in (RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.NOTIFICATION):
        assert reason(made, signed(code, topic="orders", consumerGroup="billing")) == ""
        assert reason(made, signed(code, topic="secret", consumerGroup="billing")) == "permission"
        assert reason(made, signed(code, topic="orders", consumerGroup="x")) == "permission"
        assert reason(made, signed(code, topic="%RETRY%x+orders", consumerGroup="billing")) == "permission"
    for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        for topic in ("%RETRY%billing_orders", "%RETRY%billing+orders"):
            assert reason(made, signed(code, topic=topic, consumerGroup="billing")) == ""
        for topic in ("%RETRY%x_orders", "%RETRY%billing_secret", "%RETRY%billing_", "%RETRY%x+orders"):
            assert reason(made, signed(code, topic=topic, consumerGroup="billing")) == "permission"
    assert reason(made, signed(RequestCode.RECALL_MESSAGE, topic="orders")) == "permission"
    assert reason(gate({"name": "orders", "rules": [PUB]}), signed(RequestCode.RECALL_MESSAGE, topic="orders")) == ""


def test_batches_of_acknowledgements_need_each_topic_and_group() -> None:
    made = gate({"name": "orders", "rules": [GROUP, SUB]})

    def batch(*places: tuple[str, str]) -> Frame:
        one = {"r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "AQ=="}
        acks = [{**one, "c": group, "t": topic} for group, topic in places]
        return signed(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps({"brokerName": "a", "acks": acks}).encode())

    assert reason(made, batch(("billing", "orders"))) == ""
    assert reason(made, batch(("billing", "orders"), ("billing", "secret"))) == "permission"
    assert reason(made, batch(("billing", "orders"), ("x", "orders"))) == "permission"
    assert reason(made, signed(RequestCode.BATCH_ACK_MESSAGE, body=b"{")) == "permission"


def test_the_mode_of_a_group_is_for_those_who_may_update_it() -> None:
    body = json.dumps({"topic": "orders", "consumerGroup": "billing", "mode": "POP"}).encode()
    frame = signed(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
    assert reason(gate({"name": "orders", "rules": [GROUP, SUB]}), frame) == "permission"
    update = {"type": "Group", "name": "billing", "actions": ["Update"]}
    shown = {"type": "Topic", "name": "orders", "actions": ["Get"]}
    assert reason(gate({"name": "orders", "rules": [update, shown]}), frame) == ""
    asked = signed(RequestCode.QUERY_ASSIGNMENT, body=body)
    assert reason(gate({"name": "orders", "rules": [GROUP, SUB]}), asked) == ""
    assert reason(gate({"name": "orders", "rules": [update, shown]}), asked) == "permission"


def test_a_heartbeat_needs_each_group_and_subscription() -> None:
    made = gate({"name": "orders", "rules": [GROUP, SUB]})

    def beat(group: str, *topics: str) -> Frame:
        body = heartbeat(group, *topics) | {"producerDataSet": [{"groupName": "anything"}]}
        return signed(RequestCode.HEART_BEAT, body=orjson.dumps(body))

    assert reason(made, beat("billing", "orders", "%RETRY%billing")) == ""
    assert reason(made, beat("billing", "orders", "secret")) == "permission"
    assert reason(made, beat("billing", "%RETRY%other")) == "permission"
    assert reason(made, beat("other", "orders")) == "permission"
    assert reason(made, signed(RequestCode.HEART_BEAT, body=b"{")) == "malformed"


@pytest.mark.parametrize("code", sorted({int(code) for code in RequestCode} - {int(code) for code in RIGHTS}))
def test_a_code_outside_the_table_needs_a_super_user(code: int) -> None:
    everything = {"type": "Any", "pattern": "Any", "actions": ["Any"]}
    made = gate({"name": "orders", "rules": [everything]}, {"name": "admin", "super": True})
    assert reason(made, signed(code)) == "permission"
    assert reason(made, signed(code, "admin")) == ""


@pytest.mark.parametrize("code", sorted(int(code) for code in RIGHTS))
def test_no_request_passes_without_a_rule(code: int) -> None:
    """Also one without any field, which its handler would refuse: that answer is not given to a stranger."""
    made = gate({"name": "orders"}, {"name": "billing", "rules": [{"type": "Topic", "name": "x", "actions": ["Any"]}]})
    for user in ("orders", "billing"):
        found = reason(made, signed(code, user))
        nothing_named = code == RequestCode.UNREGISTER_CLIENT
        assert found in ({""} if nothing_named else {"permission", "malformed"})


def test_remembered_decisions_are_those_of_a_fresh_gate() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        made = Gate("demo", "Enabled", Records())
        callers = [Caller("10.0.0.1"), Caller("10.0.0.2")]
        for version in range(1, 5):
            users = []
            for name in rng.sample(list(KEYS), rng.randint(0, 3)):
                rules = [
                    {
                        "type": rng.choice(["Topic", "Group", "Any"]),
                        "name": rng.choice(["orders", "o", "billing"]),
                        "pattern": rng.choice(["Literal", "Prefix"]),
                        "actions": rng.sample(ACTIONS, 3),
                        "decision": rng.choice(["Allow", "Allow", "Deny"]),
                        "sources": rng.choice([[], ["10.0.0.2"]]),
                    }
                    for _ in range(rng.randint(0, 4))
                ]
                users.append({"name": name, "rules": rules, "super": rng.random() < 0.1, "enabled": rng.random() < 0.9})
            made.set_policy(policy(users, version=version))
            for _ in range(12):
                caller, user = rng.choice(callers), rng.choice(list(KEYS))
                topic = rng.choice(["orders", "other", "%RETRY%billing"])
                frame = rng.choice(
                    [
                        signed(SEND, user, b=topic),
                        signed(RequestCode.PULL_MESSAGE, user, topic=topic, consumerGroup="billing"),
                        signed(RequestCode.GET_MAX_OFFSET, user, topic=topic),
                        signed(SEND, user, "old-key!", b=topic),
                    ]
                )
                fresh = Gate("demo", "Enabled", Records())
                fresh.set_policy(policy(users))
                wanted = reason(fresh, frame, Caller(caller.address))
                assert reason(made, frame, caller) == wanted, (seed, version, users, frame.code, user, topic)


def test_a_user_has_so_many_connections() -> None:
    made = gate({"name": "orders", "rules": [PUB], "connections": 2})
    first, second, third = (Caller("10.0.0.1") for _ in range(3))
    frame = signed(SEND, b="orders")
    assert [reason(made, frame, caller) for caller in (first, second, third, first)] == ["", "", "connections", ""]
    made.closed(first)
    assert reason(made, frame, third) == ""
    assert reason(made, frame, second) == ""
    made.closed(second)
    made.closed(third)
    assert reason(made, frame, Caller("10.0.0.1")) == ""


def test_quotas_of_users_and_topics() -> None:
    quotas = [{"topic": "orders", "bytesPerSecond": 1_000}]
    made = gate({"name": "orders", "rules": [PUB], "messagesPerSecond": 2}, topicQuotas=quotas)
    caller = Caller("10.0.0.1")
    small = signed(SEND, b="orders")
    assert [reason(made, small, caller) for _ in range(3)] == ["", "", "user-quota"]
    assert reason(made, small, caller, now=1.0) == ""
    large = signed(SEND, body=bytes(3_000), b="orders")
    assert reason(made, large, caller, now=2.0) == ""
    assert reason(made, small, caller, now=3.0) == "topic-quota"
    assert reason(made, small, caller, now=4.5) == ""
    batch = encode_batch([BatchItem(b"x", b"")] * 20)
    assert reason(made, signed(RequestCode.SEND_BATCH_MESSAGE, body=batch, b="orders"), caller, now=10.0) == ""
    assert reason(made, small, caller, now=18.0) == "user-quota", "each message of a batch counts"
    assert reason(made, small, caller, now=20.0) == ""
    refused = (
        made.check(caller, large, 20.0, 0) or made.check(caller, large, 20.0, 0) or made.check(caller, large, 20, 0)
    )
    assert present(refused).code == ResponseCode.SYSTEM_BUSY


def test_quotas_of_topics_count_without_authentication() -> None:
    made = gate(mode="Disabled", topicQuotas=[{"topic": "orders", "messagesPerSecond": 1}])
    assert made.active
    send = Frame(int(SEND), ext={"b": "orders"})
    assert [reason(made, send), reason(made, send)] == ["", "topic-quota"]
    assert reason(made, Frame(int(SEND), ext={"b": "other"})) == ""


def test_requests_to_a_producer_are_checked() -> None:
    made = gate({"name": "orders", "rules": [PUB]})
    caller = Caller("10.0.0.1")
    assert not made.may_be_asked(caller, "Topic", "orders", ["Pub"]), "nobody has signed here"
    assert reason(made, signed(SEND, b="orders"), caller) == ""
    assert made.may_be_asked(caller, "Topic", "orders", ["Pub"])
    assert not made.may_be_asked(caller, "Topic", "secret", ["Pub"])
    made.set_policy(policy([], version=2))
    assert not made.may_be_asked(caller, "Topic", "orders", ["Pub"])
    made.set_policy(policy([], "Disabled", version=3))
    assert made.may_be_asked(None, "Topic", "orders", ["Pub"])


def test_the_audit_log_has_what_was_refused_and_administrators_and_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    made = gate({"name": "orders", "rules": [PUB]}, {"name": "admin", "super": True})
    caplog.set_level(logging.INFO, logger="gantry.audit")
    frame = signed(SEND, b="secret")
    assert reason(made, frame) == "permission"
    assert reason(made, signed(SEND, b="orders")) == ""
    assert reason(made, signed(RequestCode.DELETE_TOPIC_IN_BROKER, "admin", topic="orders")) == ""
    lines = [orjson.loads(record.getMessage()) for record in caplog.records]
    assert [(line["result"], line["user"], line["request"], line["resource"]) for line in lines] == [
        ("refused", "orders", "SEND_MESSAGE_V2", "Topic:secret"),
        ("allowed", "admin", "DELETE_TOPIC_IN_BROKER", "Topic:orders"),
    ]
    assert lines[0]["reason"] == "permission"
    assert lines[0]["address"] == "10.0.0.1"
    assert frame.ext["Signature"] not in caplog.text
    assert not [key for key in KEYS.values() if key in caplog.text]


def test_the_audit_log_is_limited_and_says_what_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gantry.audit")
    audit = AuditLog(0.0)

    def write(now: float) -> None:
        audit.write(now, 0, reason="signature", user="u" * 10_000, address="10.0.0.1", code=10, resource="r" * 10_000)

    for _ in range(1_000):
        write(0.0)
    assert len(caplog.records) == REFUSED_A_SECOND
    write(1.0)
    assert orjson.loads(caplog.records[-1].getMessage())["suppressed"] == 1_000 - REFUSED_A_SECOND
    assert len(caplog.records[-1].getMessage()) < 1_000
    assert [orjson.loads(record.getMessage()) for record in caplog.records] == list(audit.recent)
    for second in range(2, 2 * RECENT):
        write(second)
    assert len(audit.recent) == RECENT
    assert audit.recent[-1] == orjson.loads(caplog.records[-1].getMessage())


def test_each_administrative_request_has_a_name() -> None:
    assert {int(code) for code in RequestCode} >= ADMINISTRATIVE


def test_a_repeated_request_is_allowed_only_as_it_was() -> None:
    made = gate({"name": "orders", "rules": [PUB]}, {"name": "admin", "super": True})
    caller = Caller("10.0.0.1")
    assert not passes(made, caller, signed(SEND, b="orders"))
    assert passes(made, caller, signed(SEND, b="orders", body=b"x" * 5_000))
    assert not passes(made, caller, signed(SEND, b="secret"))
    assert not passes(made, caller, signed(SEND, b="orders", key="wrong-key"))
    assert not passes(made, caller, signed(SEND, b="orders", c="TBW102")), "another header"
    assert not passes(made, caller, signed(RequestCode.SEND_MESSAGE, b="orders"))
    assert not passes(made, Caller("10.0.0.1"), signed(SEND, b="orders")), "another connection"
    large = signed(SEND, b="orders")
    large.body = b"y"
    assert not passes(made, caller, large)
    broken = signed(SEND, b="orders")
    broken.ext["b"] = "orders\ud800"
    assert not passes(made, caller, broken)
    assert not passes(made, caller, signed(RequestCode.DELETE_TOPIC_IN_BROKER, "admin", topic="a"))
    assert not passes(made, caller, signed(RequestCode.DELETE_TOPIC_IN_BROKER, "admin", topic="a")), "for the audit"
    made.set_policy(policy([{"name": "orders", "rules": [PUB]}], topicQuotas=[{"topic": "x", "bytesPerSecond": 1}]))
    for _ in range(2):
        assert not passes(made, caller, signed(SEND, b="orders")), "quotas count each request"


def test_what_a_connection_remembers_never_allows_more_than_a_check() -> None:
    rng = random.Random(11)
    made = gate()
    caller = Caller("10.0.0.1")
    again = 0
    for number in range(3_000):
        if number % 100 == 0:
            rules = rng.sample([PUB, SUB, GROUP], 2)
            users = [{"name": "orders", "rules": rules, "enabled": rng.random() < 0.8}, {"name": "billing"}]
            made.set_policy(policy([*users, {"name": "admin", "super": True}], rng.choice(["Enabled", "Permissive"])))
        names = {"topic": rng.choice(["orders", "secret"]), "consumerGroup": rng.choice(["billing", "other"])}
        ext = dict(rng.sample(sorted(names.items()), rng.randint(0, 2)))
        code = rng.choice([RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET, RequestCode.DELETE_TOPIC_IN_BROKER])
        user = rng.choice(["orders", "orders", "billing", "admin"])
        again += passes(made, caller, signed(code, user, rng.choice([None, None, None, "wrong-key"]), **ext))
    assert again > 50


def test_a_read_is_admitted_as_its_requests_one_by_one() -> None:
    rng = random.Random(12)
    users = [
        {"name": "orders", "rules": [PUB, SUB, GROUP], "keys": ["newer-key", KEYS["orders"]]},
        {"name": "billing", "rules": [PUB]},
        {"name": "admin", "super": True},
    ]
    made = gate(*users)
    answers: list[Frame] = []
    conn: Any = SimpleNamespace(attrs={}, peer=("10.0.0.1", 4711), send=answers.append)
    kinds: list[tuple[RequestCode, dict[str, str]]] = [
        (SEND, {"b": "orders", "e": "1"}),
        (SEND, {"b": "secret", "e": "2"}),
        (SEND, {"e": "3", "b": "orders"}),
        (RequestCode.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "billing"}),
        (RequestCode.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "other"}),
    ]
    most = 0
    for _ in range(400):
        frames: list[Frame] = []
        for _ in range(rng.choice([1, 2, 20])):
            code, ext = rng.choice(kinds)
            user, key = rng.choice([("orders", None), ("orders", "newer-key"), ("billing", None), ("admin", None)])
            bodies = [rng.randbytes(rng.choice([0, 1_500])) for _ in range(2)]
            run = [signed(code, user, key, body=rng.choice(bodies), **ext) for _ in range(9)]
            odd, secret = rng.choice(run), KEYS.get(user, "x") if key is None else key
            match rng.randrange(12):
                case 0:
                    odd.ext["Signature"] = rng.choice(["", "x", "\u00e9"])
                case 1:
                    odd.body = rng.choice(bodies)
                case 2:
                    odd.code = int(rng.choice([SEND, RequestCode.DELETE_TOPIC_IN_BROKER]))
                case 3 | 4 as kind:
                    name = rng.choice([*odd.ext, "more"])
                    odd.ext[name] = rng.choice(["orders", "billing", "admin", "\u00e9"])
                    if kind == 4 and name != "Signature":
                        odd.ext["Signature"] = sign(odd.ext, odd.body, secret)
            frames += run
        alone, caller = gate(*users), Caller("10.0.0.1")
        refused = [alone.check(caller, frame, 0.0, 0) for frame in frames]
        if sum(found.reason == "signature" for found in refused if found is not None) > WRONG_A_SECOND:
            continue
        expected = [frame for frame, found in zip(frames, refused, strict=True) if found is None]
        made.guesses = Guesses()
        answers.clear()
        if rng.random() < 0.1:
            made.set_policy(policy(users))
        assert [id(frame) for frame in admit(made, conn, frames)] == [id(frame) for frame in expected]
        assert [answer.code for answer in answers] == [found.code for found in refused if found is not None]
        most = max(most, len(expected))
    assert most > 100


def test_wrong_signatures_of_one_address_are_limited_and_right_ones_are_not() -> None:
    made = gate({"name": "orders", "rules": [PUB]})
    wrong, right = signed(SEND, b="orders", key="wrong-key"), signed(SEND, b="orders")

    def ends(address: str, now: float) -> bool:
        return present(made.check(Caller(address), wrong, now, 0)).ends

    assert [ends("10.0.0.1", 0.0) for _ in range(WRONG_A_SECOND + 2)] == [False] * WRONG_A_SECOND + [True] * 2
    assert made.guesses.held == 2
    assert reason(made, right, Caller("10.0.0.1")) == "", "another user behind the same router"
    assert not ends("10.0.0.2", 0.0)
    assert not ends("10.0.0.1", 1.0), "after a second"
    assert {ends(f"2001:db8::{number:x}", 1.0) for number in range(1, WRONG_A_SECOND + 2)} == {False, True}


def test_the_table_of_wrong_signatures_is_bounded() -> None:
    guesses = Guesses()
    for number in range(3 * MAX_ADDRESSES):
        guesses.too_many(f"10.0.{number >> 8}.{number & 255}", 0.0)
        if number % 100 == 0:
            guesses.too_many("192.0.2.1", 0.0)
    assert len(guesses._buckets) == MAX_ADDRESSES
    assert guesses.held == 3 * MAX_ADDRESSES // 100 + 1 - WRONG_A_SECOND, "the busy address is not forgotten"


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.END_TRANSACTION, {"commitLogOffset": "%d"}),
        (RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": "7F00000100002A9F%016X"}),
    ],
)
def test_a_place_without_a_record_is_nobodys_in_advance(code: RequestCode, ext: dict[str, str]) -> None:
    """The record may come while the request waits, for a master or for what a new one has to read first."""
    more = {"producerGroup": "p", "tranStateTableOffset": "0", "commitOrRollback": "8"}
    everywhere = {"type": "Topic", "pattern": "Any", "actions": ["Pub"]}
    made = gate({"name": "orders", "rules": [everywhere, {**PUB, "name": "secret", "decision": "Deny"}]})

    def at(offset: int) -> str:
        fields = {name: value % offset for name, value in ext.items()}
        return reason(made, signed(code, **(more if code == RequestCode.END_TRANSACTION else {}), **fields))

    assert [at(100), at(200), at(300)] == ["", "permission", "permission"]


def test_forwarded_requests_about_a_place_are_checked_by_this_members_log() -> None:
    made = gate({"name": "orders", "connections": 1, "rules": [PUB]})
    sent: list[Frame] = []
    conn: Any = SimpleNamespace(send=sent.append)
    more = {"producerGroup": "p", "tranStateTableOffset": "0", "commitOrRollback": "8"}
    own, of_others = (signed(RequestCode.END_TRANSACTION, commitLogOffset=str(offset), **more) for offset in (100, 200))
    again = Frame(of_others.code, ext=of_others.ext, flag=FLAG_ONEWAY)
    sending = signed(SEND, b="secret")
    for _ in range(2):  # No connection counts for longer than this: the limit of the user is one.
        assert admit_again(made, conn, "10.0.0.1", [own, of_others, again, sending]) == [own, sending]
    assert [frame.code for frame in sent] == [ResponseCode.NO_PERMISSION] * 2
    assert made.dropped == 2
