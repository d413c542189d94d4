"""Writes and checks the table of docs/compatibility.md: every request code of RocketMQ 4.9.7 and 5.5.0.

    python -m tests.interop.compatibility     # rewrites the table

The served codes come from the handler tables; PROOF below names the test for each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gantry_broker.broker.handlers.table import HANDLERS
from gantry_broker.namesrv.service import SERVED
from gantry_broker.protocol.codes import RequestCode as Code
from gantry_broker.protocol.requests import REQUESTS, TO_SENDER

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "compatibility.md"
CODES = ROOT / "tests" / "data" / "request_codes.json"
BEGIN, END = "<!-- request codes: begin -->", "<!-- request codes: end -->"

ANSWERS = "tests/interop/test_compatibility.py::test_answers"
_CONSUME = "tests/interop/test_consume.py::"
_SEND = "tests/interop/test_send.py::"
_ADMIN = "tests/interop/test_mqadmin.py::"
_QUERY = "tests/interop/test_query.py::"
_TRANSACTION = "tests/interop/test_transactions.py::test_commit_rollback_and_check"
_REQUESTS = "tests/broker/test_requests.py::"
_MANY = "tests/integration/test_slave_reads.py::test_many_topics_groups_and_connections_in_little_memory"
_WHERE = "tests/client/test_consumer_admin.py::test_a_broker_asks_a_consumer_for_its_offsets"
_SHAPES = "tests/interop/test_mqadmin_shapes.py::test_outputs_have_the_shape_of_apache_rocketmq"
_PUSH = "tests/interop/test_pop_push.py::"
_POP = "tests/interop/test_pop_answers.py::test_gantry_answers_as_recorded"
_USERS = "tests/interop/test_access.py::test_mqadmin_manages_users"
PROOF: dict[int, str] = {
    **dict.fromkeys(
        (
            Code.UPDATE_BROKER_CONFIG,
            Code.GET_BROKER_CONFIG,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Code.DELETE_SUBSCRIPTIONGROUP,
            Code.GET_ALL_TOPIC_CONFIG,
            Code.GET_CONSUMER_CONNECTION_LIST,
            Code.GET_PRODUCER_CONNECTION_LIST,
            Code.GET_ALL_PRODUCER_INFO,
            Code.WIPE_WRITE_PERM_OF_BROKER,
            Code.ADD_WRITE_PERM_OF_BROKER,
            Code.GET_CONSUME_STATS,
            Code.GET_BROKER_CONSUME_STATS,
            Code.DELETE_TOPIC_IN_BROKER,
            Code.DELETE_TOPIC_IN_NAMESRV,
            Code.PUT_KV_CONFIG,
            Code.GET_KV_CONFIG,
            Code.DELETE_KV_CONFIG,
            Code.INVOKE_BROKER_TO_RESET_OFFSET,
            Code.RESET_CONSUMER_CLIENT_OFFSET,
            Code.QUERY_TOPIC_CONSUME_BY_WHO,
            Code.CLEAN_EXPIRED_CONSUMEQUEUE,
            Code.DELETE_EXPIRED_COMMITLOG,
            Code.CLEAN_UNUSED_TOPIC,
            Code.GET_CONSUMER_RUNNING_INFO,
            Code.CONSUME_MESSAGE_DIRECTLY,
            Code.CLONE_GROUP_OFFSET,
            Code.VIEW_BROKER_STATS_DATA,
            Code.QUERY_CONSUME_QUEUE,
            Code.GET_NAMESRV_CONFIG,
            Code.UPDATE_NAMESRV_CONFIG,
        ),
        _SHAPES,
    ),
    Code.SEND_MESSAGE: "tests/fuzz/test_live.py::test_broker",
    Code.SEND_MESSAGE_V2: f"{_SEND}test_modes",
    Code.SEND_BATCH_MESSAGE: f"{_SEND}test_batch_offsets",
    Code.SEND_REPLY_MESSAGE_V2: f"{_SEND}test_request_reply",
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: f"{_SEND}test_request_reply",
    Code.PULL_MESSAGE: f"{_CONSUME}test_ways",
    Code.QUERY_CONSUMER_OFFSET: f"{_CONSUME}test_committed_offsets_hold",
    Code.UPDATE_CONSUMER_OFFSET: f"{_CONSUME}test_committed_offsets_hold",
    Code.GET_CONSUMER_LIST_BY_GROUP: f"{_CONSUME}test_clustering_shares",
    Code.NOTIFY_CONSUMER_IDS_CHANGED: f"{_CONSUME}test_clustering_shares",
    Code.HEART_BEAT: f"{_CONSUME}test_clustering_shares",
    Code.UNREGISTER_CLIENT: f"{_CONSUME}test_committed_offsets_hold",
    Code.LOCK_BATCH_MQ: f"{_CONSUME}test_orderly_locks",
    Code.UNLOCK_BATCH_MQ: f"{_CONSUME}test_orderly_locks",
    Code.CONSUMER_SEND_MSG_BACK: f"{_CONSUME}test_dead_letters",
    Code.CHECK_CLIENT_CONFIG: f"{_CONSUME}test_bad_sql_is_refused",
    Code.END_TRANSACTION: _TRANSACTION,
    Code.CHECK_TRANSACTION_STATE: _TRANSACTION,
    Code.RESUME_CHECK_HALF_MESSAGE: f"{_REQUESTS}test_a_half_message_that_was_given_up_is_taken_up_again",
    Code.QUERY_MESSAGE: f"{_QUERY}test_by_key_and_id",
    Code.VIEW_MESSAGE_BY_ID: f"{_QUERY}test_by_key_and_id",
    Code.SEARCH_OFFSET_BY_TIMESTAMP: f"{_QUERY}test_offsets_and_times",
    Code.GET_MAX_OFFSET: f"{_QUERY}test_offsets_and_times",
    Code.GET_MIN_OFFSET: f"{_QUERY}test_offsets_and_times",
    Code.GET_EARLIEST_MSG_STORETIME: f"{_QUERY}test_offsets_and_times",
    Code.UPDATE_AND_CREATE_TOPIC: f"{_SEND}test_read_and_write_queues_differ",
    Code.GET_ROUTEINFO_BY_TOPIC: f"{_ADMIN}test_topic_route",
    Code.GET_BROKER_CLUSTER_INFO: f"{_ADMIN}test_cluster_list",
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: f"{_ADMIN}test_topic_list",
    Code.GET_TOPIC_STATS_INFO: f"{_ADMIN}test_topic_status",
    Code.GET_BROKER_RUNTIME_INFO: f"{_ADMIN}test_broker_status",
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _MANY,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _WHERE,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: _WHERE,
    Code.REGISTER_BROKER: "tests/fuzz/test_live.py::test_name_server",
    Code.AUTH_CREATE_USER: _USERS,
    Code.AUTH_DELETE_USER: _USERS,
    Code.AUTH_LIST_USER: _USERS,
    Code.AUTH_CREATE_ACL: _USERS,
    Code.AUTH_LIST_ACL: _USERS,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _USERS,
    Code.DELETE_ACL_CONFIG: _USERS,
    Code.POP_MESSAGE: f"{_PUSH}test_every_message_comes_once",
    Code.ACK_MESSAGE: f"{_PUSH}test_acknowledged_messages_do_not_come_again",
    Code.CHANGE_MESSAGE_INVISIBLETIME: f"{_PUSH}test_a_failed_message_comes_again",
    Code.QUERY_ASSIGNMENT: f"{_PUSH}test_two_members_share",
    Code.SET_MESSAGE_REQUEST_MODE: f"{_PUSH}test_the_mode_changes_while_members_run",
    **dict.fromkeys(
        (Code.BATCH_ACK_MESSAGE, Code.PEEK_MESSAGE, Code.NOTIFICATION, Code.POLLING_INFO, Code.RECALL_MESSAGE), _POP
    ),
}
WHY_NOT: dict[int, str] = {
    Code.GET_TIMER_CHECK_POINT: "for RocketMQ's slaves; followers have the log",
    Code.GET_TIMER_METRICS: "`gantry_timer_messages` in metrics",
    Code.SWITCH_TIMER_ENGINE: "there is one kind of timer",
    Code.POP_ROLLBACK: "for a change of RocketMQ's store of POP records",
    **dict.fromkeys(
        (
            Code.POP_LITE_MESSAGE,
            Code.LITE_SUBSCRIPTION_CTL,
            Code.ACK_LITE_MESSAGE,
            Code.NOTIFY_UNSUBSCRIBE_LITE,
            Code.GET_BROKER_LITE_INFO,
            Code.GET_PARENT_TOPIC_INFO,
            Code.GET_LITE_TOPIC_INFO,
            Code.GET_LITE_CLIENT_INFO,
            Code.GET_LITE_GROUP_INFO,
            Code.TRIGGER_LITE_DISPATCH,
        ),
        "lite topics need one queue in the store for each of millions of names",
    ),
}
"""Why a code of 5.5.0 is not served."""

TO_CLIENTS = {int(code) for code, row in REQUESTS.items() if row.to_client}
BROKER = {int(code) for code in HANDLERS} | TO_SENDER
NAME_SERVER = set(SERVED)


def codes() -> list[dict[str, Any]]:
    """name, in_4_9_7, in_5_5_0 (numbers or None) and served_by_4_9_7 (found by requests to its servers)."""
    found: list[dict[str, Any]] = json.loads(CODES.read_text())
    return found


def state(code: int) -> str:
    """Returns the server of Gantry that serves this code."""
    served = [name for name, table in (("broker", BROKER), ("NameServer", NAME_SERVER)) if code in table]
    if served:
        return ", ".join(served)
    if code in TO_CLIENTS:
        return "sent to clients"
    return f"not supported: {WHY_NOT[code]}" if code in WHY_NOT else "not supported"


def table() -> str:
    """Returns the Markdown between the marks."""
    lines = ["| request | 4.9.7 | 5.5.0 | in 4.9.7 served by | in Gantry | proof |", "|---|---|---|---|---|---|"]
    for row in codes():
        code = row["in_4_9_7"] if row["in_4_9_7"] is not None else row["in_5_5_0"]
        theirs = ", ".join(row["served_by_4_9_7"]).replace("name server", "NameServer")
        if not theirs:
            theirs = "" if row["in_4_9_7"] is None else "(to clients)" if code in TO_CLIENTS else "none"
        numbers = [str(row[version]) if row[version] is not None else "-" for version in ("in_4_9_7", "in_5_5_0")]
        proof = PROOF.get(code, ANSWERS).removeprefix("tests/")
        lines.append(f"| {row['name']} | {numbers[0]} | {numbers[1]} | {theirs} | {state(code)} | `{proof}` |")
    return "\n".join(lines)


def rendered() -> str:
    """Returns the document with an up-to-date table. Raises ValueError when the marks are missing."""
    text = DOCUMENT.read_text()
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:start]}\n{table()}\n{text[stop:]}"


if __name__ == "__main__":
    DOCUMENT.write_text(rendered())
