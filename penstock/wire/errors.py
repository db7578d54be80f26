"""Error classes as small stable integers on the wire, and back.

Law: a code never changes its class. An unknown code becomes plain `Refused`.
"""

from __future__ import annotations

from penstock import errors
from penstock.errors import PenstockError

#: Append new classes at the end; never renumber.
_CLASSES: tuple[type[PenstockError], ...] = (
    errors.PenstockError,
    errors.Unavailable,
    errors.Overloaded,
    errors.DeadlineExceeded,
    errors.Unknown,
    errors.Fenced,
    errors.StaleInstance,
    errors.ChecksumMismatch,
    errors.BadFormat,
    errors.MissingFile,
    errors.GuardFailed,
    errors.SeqGap,
    errors.SeqMismatch,
    errors.Trimmed,
    errors.NotFound,
    errors.TooLarge,
    errors.BadRequest,
    errors.BadConfig,
    errors.BadRow,
    errors.SchemaMismatch,
    errors.Unauthorized,
    errors.InvariantBroken,
    errors.Refused,
    errors.Damaged,
    errors.Retryable,
    errors.Defect,
    errors.Unsupported,
    errors.EvaluationFailed,
    errors.PlanChanged,
    errors.QueryFailed,
    errors.NotOwner,
    errors.VersionConflict,
    errors.AlreadyExists,
    errors.Forbidden,
)
_CODES = {cls: code for code, cls in enumerate(_CLASSES)}


def error_code(error: PenstockError) -> int:
    """The code of the nearest class on the wire."""
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return 0


def error_from_code(code: int, message: str) -> PenstockError:
    cls = _CLASSES[code] if 0 <= code < len(_CLASSES) else errors.Refused
    return cls(message)
