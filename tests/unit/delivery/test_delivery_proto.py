"""delivery.proto, which people and other languages read, says what delivery.binpb says."""

from __future__ import annotations

import re
from importlib import resources

from google.protobuf import descriptor_pb2

from penstock.delivery.remote.grpc_messages import (
    METHOD,
    FromTarget,
    encode_refused,
    error_of,
)
from penstock.errors import BadRow, Fenced, PenstockError, Refused, Trimmed, Unavailable

FILES = resources.files("penstock.delivery.remote")
TYPES = {8: "bool", 9: "string", 12: "bytes", 13: "uint32", 4: "uint64"}


def text_of_descriptor() -> tuple[set[tuple[str, ...]], str]:
    """Every field as (message, label, type, name, number), and the method."""
    data = FILES.joinpath("delivery.binpb").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(data).file
    found = set()
    for message in file.message_type:
        for field in message.field:
            kind = TYPES.get(field.type) or field.type_name.rpartition(".")[2]
            label = "repeated" if field.label == 3 else "optional" * field.proto3_optional
            found.add((message.name, label, kind, field.name, str(field.number)))
    for enum in file.enum_type:
        found |= {(enum.name, "", "", one.name, str(one.number)) for one in enum.value}
    (service,) = file.service
    (method,) = service.method
    assert method.client_streaming and method.server_streaming
    return found, f"/{file.package}.{service.name}/{method.name}"


def text_of_proto() -> set[tuple[str, ...]]:
    lines = FILES.joinpath("delivery.proto").read_text().splitlines()
    found = set()
    owner = ""
    for line in (line.split("//")[0].strip() for line in lines):
        if begin := re.match(r"(?:message|enum) (\w+) \{", line):
            owner = begin[1]
        elif field := re.fullmatch(r"(?:(repeated|optional) )?(\w+) (\w+) = (\d+);", line):
            found.add((owner, field[1] or "", *field.groups()[1:]))
        elif value := re.fullmatch(r"([A-Z_]+) = (\d+);", line):
            found.add((owner, "", "", *value.groups()))
    return found


def test_both_say_the_same() -> None:
    fields, method = text_of_descriptor()

    assert fields == text_of_proto()
    assert len(fields) > 30
    assert method == METHOD


def test_an_error_comes_back_as_what_it_asks_for() -> None:
    def came(error: Exception) -> PenstockError:
        return error_of(FromTarget.FromString(encode_refused(error)).refused)

    for error, kind in (
        (Unavailable("away"), Unavailable),
        (OSError("away"), Unavailable),
        (Refused("away"), Refused),
        (Trimmed("away"), Refused),
        (Fenced("away"), Fenced),
        (BadRow("away"), BadRow),
    ):
        found = came(error)
        assert type(found) is kind
        assert "away" in str(found)
    bad = came(BadRow("long", row=3)), came(BadRow("long", row=0)), came(BadRow("long"))
    assert [one.row for one in bad if isinstance(one, BadRow)] == [3, 0, None]


def test_a_cause_of_a_later_version_asks_to_try_again() -> None:
    later = FromTarget(refused={"cause": 99, "message": "new\nwords"}).refused

    assert type(error_of(later)) is Unavailable
    assert str(error_of(later)) == "new words"
