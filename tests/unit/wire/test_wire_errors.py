"""Error classes as wire codes: stable for ever, and nothing is lost on the way."""

from __future__ import annotations

import inspect

import pytest

from penstock import errors
from penstock.errors import PenstockError
from penstock.wire.errors import error_code, error_from_code

CLASSES = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, PenstockError)
]

#: On the wire since the first version. Never change a line; new classes get the next number.
CODES = {
    "PenstockError": 0,
    "Unavailable": 1,
    "Overloaded": 2,
    "DeadlineExceeded": 3,
    "Unknown": 4,
    "Fenced": 5,
    "StaleInstance": 6,
    "ChecksumMismatch": 7,
    "BadFormat": 8,
    "MissingFile": 9,
    "GuardFailed": 10,
    "SeqGap": 11,
    "SeqMismatch": 12,
    "Trimmed": 13,
    "NotFound": 14,
    "TooLarge": 15,
    "BadRequest": 16,
    "BadConfig": 17,
    "BadRow": 18,
    "SchemaMismatch": 19,
    "Unauthorized": 20,
    "InvariantBroken": 21,
    "Refused": 22,
    "Damaged": 23,
    "Retryable": 24,
    "Defect": 25,
    "Unsupported": 26,
    "EvaluationFailed": 27,
    "PlanChanged": 28,
    "QueryFailed": 29,
    "NotOwner": 30,
    "VersionConflict": 31,
    "AlreadyExists": 32,
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_travels_as_itself_with_its_message(cls: type[PenstockError]) -> None:
    error = error_from_code(error_code(cls("what happened")), "what happened")

    assert type(error) is cls
    assert str(error) == "what happened"


def test_codes_never_change() -> None:
    assert {cls.__name__: error_code(cls("")) for cls in CLASSES} == CODES


def test_a_class_without_a_code_travels_as_its_nearest_parent() -> None:
    class Invented(errors.GuardFailed):
        pass

    assert error_code(Invented("")) == CODES["GuardFailed"]


@pytest.mark.parametrize("code", [-1, 33, 2**32, 2**64 - 1])
def test_a_code_of_a_newer_version_is_a_plain_refusal(code: int) -> None:
    assert type(error_from_code(code, "m")) is errors.Refused


def test_every_class_says_in_the_tree_what_to_do() -> None:
    assert errors.__doc__ is not None
    for cls in CLASSES:
        assert cls.__name__ in errors.__doc__
