"""Whatever fails as a whole is said of each thing that was asked for, in every version.

Java's clients take an answer that says nothing of what they asked for as the end: a group, or a
transactional producer, would be over because the log was away for a moment.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness.kafka_wire import Wire
from kafka_requests import KafkaRequest, requests, versions

from penstock.gateway.kafka import connection
from penstock.gateway.kafka.codec import write_fields
from penstock.gateway.kafka.connection import failure
from penstock.gateway.kafka.errors import Code
from penstock.gateway.kafka.schemas import APIS

CODE = Code.COORDINATOR_NOT_AVAILABLE
#: Answers that have no room for an error of the whole.
SILENT = {"list topics"}
ALL = [each for each in requests(7, 0, 0) if each.name not in SILENT]


def answered(each: KafkaRequest, version: int, told: dict[str, Any]) -> dict[str, Any]:
    api = APIS[each.key]
    out = bytearray((7).to_bytes(4, "big"))
    if api.is_flexible(version) and each.key != 18:
        out.append(0)
    write_fields(out, api.answer, told, version, api.is_flexible(version))
    return Wire.decode(each.key, version, bytes(out))


def lists(asked: dict[str, Any], version: int, key: int) -> list[tuple[str, int]]:
    """What is asked for, and how many of it."""
    fields = {field.name: field for field in APIS[key].answer}
    found = []
    for request, answer in (("topics", "topics"), ("keys", "coordinators"), ("resources",) * 2):
        field = fields.get(answer)
        if field is not None and field.since <= version and asked.get(request):
            found.append((answer, len(asked[request])))
    return found


def codes(told: object) -> list[int]:
    if isinstance(told, dict):
        own = [told["error"]] if "error" in told else []
        return own + [code for value in told.values() for code in codes(value)]
    return [code for each in told for code in codes(each)] if isinstance(told, list) else []


def find_silence(each: KafkaRequest) -> list[str]:
    found = []
    for version in versions(each):
        told = answered(each, version, connection.failure(APIS[each.key], each.asked, CODE))
        for name, count in lists(each.asked, version, each.key):
            if len(told[name]) != count:
                found.append(f"{each.name}, version {version}: {name} has {len(told[name])}")
        if CODE not in codes(told):
            found.append(f"{each.name}, version {version}: no code")
    return found


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_a_failure_is_said_of_everything_that_was_asked_for(each: KafkaRequest) -> None:
    assert not find_silence(each)


def test_a_failure_of_the_whole_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any) -> dict[str, Any]:
        told = failure(*given)
        return {name: told[name] for name in told if name != "coordinators"}

    monkeypatch.setattr(connection, "failure", wrong)
    assert any(find_silence(each) for each in ALL)
