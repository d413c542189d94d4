"""Errors of request handling, and the error answers that RocketMQ clients understand."""

from __future__ import annotations

import logging

from gantry_broker.broker.send.messages import MessageIllegal
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame, FrameError
from gantry_broker.protocol.headers import error_answer
from gantry_broker.protocol.message import RecordError
from gantry_broker.store.errors import MessageTooLarge, StoreError, StoreFull

log = logging.getLogger(__name__)


class RequestRejected(Exception):
    """Raised by a handler: the answer to the request has this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


class NotWritable(Exception):
    """This member does not append now; the text has the reason."""


class NotStored(Exception):
    """A change was not confirmed in time, or was not appended."""


def store_refusal(error: StoreError) -> tuple[int, str]:
    """Return code and remark for a batch that the store refused."""
    if isinstance(error, StoreFull):
        return (
            int(ResponseCode.SERVICE_NOT_AVAILABLE),
            f"service not available now: the broker's disk is full, messages are refused until there is room ({error})",
        )
    if isinstance(error, MessageTooLarge):
        return int(ResponseCode.MESSAGE_ILLEGAL), f"the message is illegal: {error}"
    return int(ResponseCode.SYSTEM_ERROR), f"the store did not take the message: {error}"


def failure_answer(frame: Frame, error: Exception) -> Frame:
    """Return the error answer for an exception of a handler."""
    if isinstance(error, RequestRejected):
        return error_answer(frame, error.code, error.remark)
    if isinstance(error, BadField):
        return error_answer(frame, error.code, str(error))
    if isinstance(error, BodyError):
        return error_answer(frame, ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, (MessageIllegal, RecordError)):
        return error_answer(frame, ResponseCode.MESSAGE_ILLEGAL, str(error))
    if isinstance(error, NotWritable):
        return error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
    if isinstance(error, NotStored):
        return error_answer(frame, ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, StoreError):
        return error_answer(frame, *store_refusal(error))
    if isinstance(error, FrameError):
        return error_answer(frame, ResponseCode.SYSTEM_ERROR, error.reason)
    log.error("request %d failed", frame.code, exc_info=error)
    return error_answer(
        frame, ResponseCode.SYSTEM_ERROR, f"request {frame.code} failed: {type(error).__name__}: {str(error)[:200]}"
    )
