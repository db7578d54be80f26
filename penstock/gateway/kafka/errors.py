"""Kafka's error codes, and which of them an error of ours is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from penstock import errors as e
from penstock.gateway.problems import HttpRefused


class Code(IntEnum):
    """The numbers are Kafka's."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    OPERATION_NOT_ATTEMPTED = 55
    SASL_AUTHENTICATION_FAILED = 58
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    TRANSACTION_ABORTABLE = 120


class KafkaRefused(e.Refused):
    """Something that Kafka itself has a code for."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


#: By class; the nearest parent counts. What is retryable here is retryable to Kafka's clients, too.
_CODES: Final[Mapping[type[BaseException], Code]] = {
    e.Unauthorized: Code.SASL_AUTHENTICATION_FAILED,
    e.Forbidden: Code.TOPIC_AUTHORIZATION_FAILED,
    e.NotFound: Code.UNKNOWN_TOPIC_OR_PARTITION,
    e.Trimmed: Code.OFFSET_OUT_OF_RANGE,
    e.TooLarge: Code.MESSAGE_TOO_LARGE,
    e.BadRow: Code.INVALID_RECORD,
    e.BadFormat: Code.CORRUPT_MESSAGE,
    e.SchemaMismatch: Code.TOPIC_ALREADY_EXISTS,
    e.BadRequest: Code.INVALID_REQUEST,
    e.GuardFailed: Code.REQUEST_TIMED_OUT,
    e.Refused: Code.INVALID_REQUEST,
    e.Retryable: Code.REQUEST_TIMED_OUT,
    e.Unknown: Code.REQUEST_TIMED_OUT,
    TimeoutError: Code.REQUEST_TIMED_OUT,
}


def code_of(error: BaseException) -> Code:
    if isinstance(error, KafkaRefused):
        return error.code
    if isinstance(error, HttpRefused) and error.problem.status == 429:
        return Code.REQUEST_TIMED_OUT  # too much at once, which passes
    for parent in type(error).__mro__:
        if parent in _CODES:
            return _CODES[parent]
    return Code.UNKNOWN_SERVER_ERROR
