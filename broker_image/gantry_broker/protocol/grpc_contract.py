"""The wire contract of `apache.rocketmq.v2.MessagingService`: the numbers and types of its fields, and the classes.

`MESSAGES` states each message that the proxy reads or writes: number, type and name of its fields, as the published
API definition has them. `*` is repeated, `?` optional, `|name` a field of that oneof. The classes are made from it at
import, in a descriptor pool of their own, so they never meet another copy of the same contract in one process.
"""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any, Final

from google.protobuf import descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"/{PACKAGE}.MessagingService/"


class Code(IntEnum):
    """`status.code` of an answer."""

    CODE_UNSPECIFIED = 0
    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    UNAUTHORIZED = 40100
    PAYMENT_REQUIRED = 40200
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    REQUEST_TIMEOUT = 40800
    PAYLOAD_TOO_LARGE = 41300
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    REQUEST_HEADER_FIELDS_TOO_LARGE = 43100
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_ERROR = 50000
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500
    VERSION_UNSUPPORTED = 50501
    VERIFY_FIFO_MESSAGE_UNSUPPORTED = 50502
    FAILED_TO_CONSUME_MESSAGE = 60000


class TransactionResolution(IntEnum):
    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class TransactionSource(IntEnum):
    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2


class Permission(IntEnum):
    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class FilterType(IntEnum):
    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class AddressScheme(IntEnum):
    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3


class MessageType(IntEnum):
    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class DigestType(IntEnum):
    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class ClientType(IntEnum):
    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class Encoding(IntEnum):
    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class Language(IntEnum):
    LANGUAGE_UNSPECIFIED = 0
    JAVA = 1
    CPP = 2
    DOT_NET = 3
    GOLANG = 4
    RUST = 5
    PYTHON = 6
    PHP = 7
    NODE_JS = 8
    RUBY = 9
    OBJECTIVE_C = 10
    DART = 11
    KOTLIN = 12


class LiteSubscriptionAction(IntEnum):
    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3


MESSAGES: Final = """
FilterExpression: 1 FilterType type, 2 string expression
ExponentialBackoff: 1 Duration initial, 2 Duration max, 3 float multiplier
CustomizedBackoff: 1 Duration* next
RetryPolicy: 1 int32 max_attempts, 2 ExponentialBackoff|strategy exponential_backoff,
  3 CustomizedBackoff|strategy customized_backoff
Resource: 1 string resource_namespace, 2 string name
SubscriptionEntry: 1 Resource topic, 2 FilterExpression expression
Address: 1 string host, 2 int32 port
Endpoints: 1 AddressScheme scheme, 2 Address* addresses
Broker: 1 string name, 2 int32 id, 3 Endpoints endpoints
MessageQueue: 1 Resource topic, 2 int32 id, 3 Permission permission, 4 Broker broker,
  5 MessageType* accept_message_types
Digest: 1 DigestType type, 2 string checksum
DeadLetterQueue: 1 string topic, 2 string message_id
SystemProperties: 1 string? tag, 2 string* keys, 3 string message_id, 4 Digest body_digest, 5 Encoding body_encoding,
  6 MessageType message_type, 7 Timestamp born_timestamp, 8 string born_host, 9 Timestamp? store_timestamp,
  10 string store_host, 11 Timestamp? delivery_timestamp, 12 string? receipt_handle, 13 int32 queue_id,
  14 int64? queue_offset, 15 Duration? invisible_duration, 16 int32? delivery_attempt, 17 string? message_group,
  18 string? trace_context, 19 Duration? orphaned_transaction_recovery_duration,
  20 DeadLetterQueue? dead_letter_queue, 21 string? lite_topic, 22 int32? priority
Message: 1 Resource topic, 2 map user_properties, 3 SystemProperties system_properties, 4 bytes body
Assignment: 1 MessageQueue message_queue
Status: 1 Code code, 2 string message
UA: 1 Language language, 2 string version, 3 string platform, 4 string hostname
Publishing: 1 Resource* topics, 2 int32 max_body_size, 3 bool validate_message_type
Subscription: 1 Resource? group, 2 SubscriptionEntry* subscriptions, 3 bool? fifo, 4 int32? receive_batch_size,
  5 Duration? long_polling_timeout, 6 int32? lite_subscription_quota, 7 int32? max_lite_topic_size
Metric: 1 bool on, 2 Endpoints? endpoints
Settings: 1 ClientType? client_type, 2 Endpoints? access_point, 3 RetryPolicy? backoff_policy,
  4 Duration? request_timeout, 5 Publishing|pub_sub publishing, 6 Subscription|pub_sub subscription, 7 UA user_agent,
  8 Metric metric
QueryRouteRequest: 1 Resource topic, 2 Endpoints endpoints
QueryRouteResponse: 1 Status status, 2 MessageQueue* message_queues
SendMessageRequest: 1 Message* messages
SendResultEntry: 1 Status status, 2 string message_id, 3 string transaction_id, 4 int64 offset, 5 string recall_handle
SendMessageResponse: 1 Status status, 2 SendResultEntry* entries
QueryAssignmentRequest: 1 Resource topic, 2 Resource group, 3 Endpoints endpoints
QueryAssignmentResponse: 1 Status status, 2 Assignment* assignments
ReceiveMessageRequest: 1 Resource group, 2 MessageQueue message_queue, 3 FilterExpression filter_expression,
  4 int32 batch_size, 5 Duration? invisible_duration, 6 bool auto_renew, 7 Duration? long_polling_timeout,
  8 string? attempt_id
ReceiveMessageResponse: 1 Status|content status, 2 Message|content message, 3 Timestamp|content delivery_timestamp
AckMessageEntry: 1 string message_id, 2 string receipt_handle, 3 string? lite_topic
AckMessageRequest: 1 Resource group, 2 Resource topic, 3 AckMessageEntry* entries
AckMessageResultEntry: 1 string message_id, 2 string receipt_handle, 3 Status status
AckMessageResponse: 1 Status status, 2 AckMessageResultEntry* entries
ForwardMessageToDeadLetterQueueRequest: 1 Resource group, 2 Resource topic, 3 string receipt_handle,
  4 string message_id, 5 int32 delivery_attempt, 6 int32 max_delivery_attempts, 7 string? lite_topic
ForwardMessageToDeadLetterQueueResponse: 1 Status status
HeartbeatRequest: 1 Resource? group, 2 ClientType client_type
HeartbeatResponse: 1 Status status
EndTransactionRequest: 1 Resource topic, 2 string message_id, 3 string transaction_id,
  4 TransactionResolution resolution, 5 TransactionSource source, 6 string trace_context
EndTransactionResponse: 1 Status status
PrintThreadStackTraceCommand: 1 string nonce
ReconnectEndpointsCommand: 1 string nonce
ThreadStackTrace: 1 string nonce, 2 string? thread_stack_trace
VerifyMessageCommand: 1 string nonce, 2 Message message
VerifyMessageResult: 1 string nonce
RecoverOrphanedTransactionCommand: 1 Message message, 2 string transaction_id
NotifyUnsubscribeLiteCommand: 1 string lite_topic
TelemetryCommand: 1 Status? status, 2 Settings|command settings, 3 ThreadStackTrace|command thread_stack_trace,
  4 VerifyMessageResult|command verify_message_result,
  5 RecoverOrphanedTransactionCommand|command recover_orphaned_transaction_command,
  6 PrintThreadStackTraceCommand|command print_thread_stack_trace_command,
  7 VerifyMessageCommand|command verify_message_command,
  8 ReconnectEndpointsCommand|command reconnect_endpoints_command,
  9 NotifyUnsubscribeLiteCommand|command notify_unsubscribe_lite_command
NotifyClientTerminationRequest: 1 Resource? group
NotifyClientTerminationResponse: 1 Status status
ChangeInvisibleDurationRequest: 1 Resource group, 2 Resource topic, 3 string receipt_handle,
  4 Duration invisible_duration, 5 string message_id, 6 string? lite_topic, 7 bool? suspend
ChangeInvisibleDurationResponse: 1 Status status, 2 string receipt_handle
RecallMessageRequest: 1 Resource topic, 2 string recall_handle
RecallMessageResponse: 1 Status status, 2 string message_id
SyncLiteSubscriptionRequest: 1 LiteSubscriptionAction action, 2 Resource topic, 3 Resource group,
  4 string* lite_topic_set, 5 int64? version
SyncLiteSubscriptionResponse: 1 Status status
"""

_ENUMS: Final[tuple[type[IntEnum], ...]] = (
    Code,
    TransactionResolution,
    TransactionSource,
    Permission,
    FilterType,
    AddressScheme,
    MessageType,
    DigestType,
    ClientType,
    Encoding,
    Language,
    LiteSubscriptionAction,
)
_F: Final = FieldDescriptorProto
_SCALARS: Final = {
    "string": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
    "bool": _F.TYPE_BOOL,
    "int32": _F.TYPE_INT32,
    "int64": _F.TYPE_INT64,
    "float": _F.TYPE_FLOAT,
}
_WELL_KNOWN: Final = ("Timestamp", "Duration")


def describe() -> FileDescriptorProto:
    """Return the contract as a file of protobuf."""
    file = FileDescriptorProto(name="gantry/rocketmq_v2.proto", package=PACKAGE, syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"])
    for kind in _ENUMS:
        enum = file.enum_type.add(name=kind.__name__)
        for member in kind:
            enum.value.add(name=member.name, number=member.value)
    enums = {kind.__name__ for kind in _ENUMS}
    for line in MESSAGES.replace("\n  ", " ").strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        oneofs: dict[str, int] = {}
        optional = []
        for text in fields.split(", "):
            number, kind_name, field_name = text.split(" ")
            kind_name, _, oneof = kind_name.partition("|")
            field = message.field.add(name=field_name, number=int(number), label=_F.LABEL_OPTIONAL)
            if oneof:
                if oneof not in oneofs:
                    oneofs[oneof] = len(oneofs)
                    message.oneof_decl.add(name=oneof)
                field.oneof_index = oneofs[oneof]
            if kind_name.endswith("*"):
                field.label = _F.LABEL_REPEATED
            elif kind_name.endswith("?"):
                optional.append(field)
            _set_type(file, message, field, kind_name.rstrip("*?"), enums)
        for field in optional:  # protobuf wants these oneofs behind the real ones
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
    return file


def _set_type(
    file: FileDescriptorProto, message: DescriptorProto, field: FieldDescriptorProto, kind: str, enums: set[str]
) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind == "map":  # of string to string
        entry = message.nested_type.add(name="".join(part.title() for part in field.name.split("_")) + "Entry")
        entry.options.map_entry = True
        for number, name in ((1, "key"), (2, "value")):
            entry.field.add(name=name, number=number, label=_F.LABEL_OPTIONAL, type=_F.TYPE_STRING)
        field.label, field.type = _F.LABEL_REPEATED, _F.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
    elif kind in enums:
        field.type, field.type_name = _F.TYPE_ENUM, f".{PACKAGE}.{kind}"
    else:
        field.type = _F.TYPE_MESSAGE
        field.type_name = f".google.protobuf.{kind}" if kind in _WELL_KNOWN else f".{PACKAGE}.{kind}"


def _classes() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    file = describe()
    pool.AddSerializedFile(file.SerializeToString())
    return SimpleNamespace(
        **{
            message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{message.name}"))
            for message in file.message_type
        }
    )


v2: Final = _classes()
"""The message classes by name: `v2.SendMessageRequest` and so on."""
