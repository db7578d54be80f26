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

#: A class's code is its place. On the wire since the first version: new classes go to the end, and
#: nothing else changes.
CODES = (
    *("PenstockError", "Unavailable", "Overloaded", "DeadlineExceeded", "Unknown"),
    *("Fenced", "StaleInstance", "ChecksumMismatch", "BadFormat", "MissingFile"),
    *("GuardFailed", "SeqGap", "SeqMismatch", "Trimmed", "NotFound"),
    *("TooLarge", "BadRequest", "BadConfig", "BadRow", "SchemaMismatch"),
    *("Unauthorized", "InvariantBroken", "Refused", "Damaged", "Retryable"),
    *("Defect", "Unsupported", "EvaluationFailed", "PlanChanged", "QueryFailed"),
    *("NotOwner", "VersionConflict", "AlreadyExists", "Forbidden"),
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_travels_as_itself_with_its_message(cls: type[PenstockError]) -> None:
    error = error_from_code(error_code(cls("what happened")), "what happened")

    assert type(error) is cls
    assert str(error) == "what happened"


def test_codes_never_change() -> None:
    assert {cls.__name__: error_code(cls("")) for cls in CLASSES} == {
        name: code for code, name in enumerate(CODES)
    }


def test_a_class_without_a_code_travels_as_its_nearest_parent() -> None:
    class Invented(errors.GuardFailed):
        pass

    assert error_code(Invented("")) == CODES.index("GuardFailed")


@pytest.mark.parametrize("code", [-1, 34, 2**32, 2**64 - 1])
def test_a_code_of_a_newer_version_is_a_plain_refusal(code: int) -> None:
    assert type(error_from_code(code, "m")) is errors.Refused


def test_every_class_says_in_the_tree_what_to_do() -> None:
    assert errors.__doc__ is not None
    for cls in CLASSES:
        assert cls.__name__ in errors.__doc__
