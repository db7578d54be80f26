"""Kafka's clients for tests: unchanged ones from PyPI, with a gateway's address and a token."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Message, Producer

from penstock.log.serving.directory import Address

SECONDS = 30.0


def settings(address: Address, token: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"{address.host}:{address.port}",
        "security.protocol": "SASL_SSL" if address.tls else "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "anybody",
        "sasl.password": token,
        "log_level": 0,
    }


def produce(producer: Producer, topic: str, values: list[bytes], **given: Any) -> list[Message]:
    """Send all, and wait until all are answered. Raises the first error."""
    done: list[Message] = []
    errors: list[Any] = []

    def answered(error: Any, message: Message) -> None:
        errors.append(error) if error else done.append(message)

    for value in values:
        producer.produce(topic, value, on_delivery=answered, **given)
    left = producer.flush(SECONDS)
    assert not errors, errors[0]
    assert not left, f"{left} are not answered"
    return done


def consume(consumer: Consumer, count: int) -> list[Message]:
    """So many messages. Raises the first error."""
    found: list[Message] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        message = consumer.poll(0.2)
        if message is None:
            continue
        assert message.error() is None, message.error()
        found.append(message)
    return found
