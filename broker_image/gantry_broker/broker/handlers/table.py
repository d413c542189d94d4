"""The table of handlers: request code to function. Sends have their own path (`send/sender.py`)."""

from __future__ import annotations

from typing import Final

from gantry_broker.access.requests import USER_CODES
from gantry_broker.broker.handlers import (
    admin,
    assignments,
    clients,
    groupadmin,
    offsets,
    pop,
    pulls,
    query,
    recall,
    reply,
    retry,
    topicadmin,
    transaction,
    users,
)
from gantry_broker.broker.handlers.requests import HandlerFunction
from gantry_broker.protocol.codes import GantryCode, RequestCode

HANDLERS: Final[dict[int, HandlerFunction]] = {
    # the broker as a whole
    RequestCode.UPDATE_BROKER_CONFIG: admin.update_config,
    RequestCode.GET_BROKER_CONFIG: admin.get_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: admin.runtime_info,
    RequestCode.VIEW_BROKER_STATS_DATA: admin.stats_data,
    # clients and their groups
    RequestCode.HEART_BEAT: clients.heartbeat,
    GantryCode.PROXY_CLIENTS: clients.proxy_clients,
    RequestCode.UNREGISTER_CLIENT: clients.unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
    RequestCode.CHECK_CLIENT_CONFIG: clients.check_client,
    RequestCode.LOCK_BATCH_MQ: clients.lock,
    RequestCode.UNLOCK_BATCH_MQ: clients.unlock,
    # consumer groups
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groupadmin.create_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groupadmin.create_groups,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groupadmin.all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groupadmin.group_config,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: groupadmin.delete_group,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: groupadmin.consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: groupadmin.producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: groupadmin.all_producers,
    RequestCode.GET_CONSUMER_RUNNING_INFO: groupadmin.running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: groupadmin.consume_directly,
    RequestCode.GET_CONSUME_STATS: groupadmin.consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: groupadmin.broker_consume_stats,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: groupadmin.topics_by_consumer,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: groupadmin.subscription_by_consumer,
    RequestCode.QUERY_CONSUME_TIME_SPAN: groupadmin.consume_time_span,
    RequestCode.QUERY_CORRECTION_OFFSET: groupadmin.correction_offset,
    RequestCode.CLONE_GROUP_OFFSET: groupadmin.clone_offsets,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: groupadmin.reset_offsets,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: groupadmin.consumer_status,
    RequestCode.GET_ALL_CONSUMER_OFFSET: groupadmin.all_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: groupadmin.all_delay,
    # offsets
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_offset,
    RequestCode.GET_MAX_OFFSET: offsets.max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
    # pulls
    RequestCode.PULL_MESSAGE: pulls.pull,
    RequestCode.LITE_PULL_MESSAGE: pulls.pull,
    # POP
    RequestCode.POP_MESSAGE: pop.pop,
    RequestCode.PEEK_MESSAGE: pop.peek,
    RequestCode.NOTIFICATION: pop.notification,
    RequestCode.POLLING_INFO: pop.polling_info,
    RequestCode.ACK_MESSAGE: pop.ack,
    RequestCode.BATCH_ACK_MESSAGE: pop.batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pop.change_invisible,
    # assignments
    RequestCode.QUERY_ASSIGNMENT: assignments.query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: assignments.set_request_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: assignments.all_request_modes,
    # recalls
    RequestCode.RECALL_MESSAGE: recall.recall,
    # queries
    RequestCode.QUERY_MESSAGE: query.query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: query.view_message,
    RequestCode.QUERY_CONSUME_QUEUE: query.query_consume_queue,
    # replies
    RequestCode.SEND_REPLY_MESSAGE: reply.send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply.send_reply,
    # retries
    RequestCode.CONSUMER_SEND_MSG_BACK: retry.send_back,
    # users
    **dict.fromkeys(USER_CODES, users.manage),
    # topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: topicadmin.create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topicadmin.create_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: topicadmin.delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: topicadmin.all_topics,
    RequestCode.GET_TOPIC_CONFIG: topicadmin.topic_config,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topicadmin.system_topic_list,
    RequestCode.GET_TOPIC_STATS_INFO: topicadmin.topic_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topicadmin.consumed_by,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: topicadmin.clean_queues,
    RequestCode.DELETE_EXPIRED_COMMITLOG: topicadmin.clean_log,
    RequestCode.TRIGGER_DELETE_FILES: topicadmin.clean_log,
    RequestCode.CLEAN_UNUSED_TOPIC: topicadmin.clean_unused,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: topicadmin.unit_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: topicadmin.unit_topics,
    # transactions
    RequestCode.END_TRANSACTION: transaction.end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: transaction.resume_check,
}
