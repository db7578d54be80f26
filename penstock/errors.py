"""Every exception that Penstock raises, classed by what the catcher must do next.

PenstockError
├─ Retryable            try again, same request
│  ├─ Unavailable       no server answers, or it is stopping
│  │  └─ NotOwner       another proxy owns this log: its address is in the message
│  ├─ Overloaded        a limit on connections or in-flight bytes is reached
│  └─ DeadlineExceeded  no answer in time; nothing was sent that changes the log
├─ Unknown              a change may or may not have taken effect: look, or retry with the same seq
├─ Fenced               stop: somebody newer owns this
│  └─ StaleInstance     a newer instance of this producer exists
├─ Damaged              these bytes must not be used
│  ├─ ChecksumMismatch  a CRC does not match: names file, position, structure
│  ├─ BadFormat         bytes that no version of ours wrote
│  └─ MissingFile       the manifest names a file that is not there
├─ Refused              definitely not done, never visible: the caller must change something
│  ├─ GuardFailed       a metadata key was not what the guard expected
│  ├─ SeqGap            a sequence number is missing before this one
│  ├─ SeqMismatch       the sequence number was used for a group of another shape
│  ├─ Trimmed           the position lies below the trim point
│  ├─ NotFound          no such stream, tag, entry or key
│  ├─ VersionConflict   the cluster's metadata was changed by somebody else meanwhile
│  ├─ AlreadyExists     the cluster's metadata has this path already
│  ├─ TooLarge          beyond a limit of limits.py
│  ├─ BadRequest        the request makes no sense
│  ├─ BadConfig         a setting is wrong: lists every problem
│  ├─ BadRow            a row does not fit its stream, or its target: names row and column
│  ├─ SchemaMismatch    the stream exists with another schema
│  ├─ Unauthorized      the token is missing, wrong, revoked, or has expired
│  │  └─ Forbidden      the token is good, but does not allow this
│  ├─ Unsupported       a query that cannot run here: lists every reason
│  ├─ EvaluationFailed  an expression failed on a row: Spark's own condition, e.g. DIVIDE_BY_ZERO
│  └─ PlanChanged       a query of this name exists with another plan: shows what differs
├─ QueryFailed          a running query stopped: carries the cause, a user's traceback if it has one
└─ Defect               our bug: the process should crash
   └─ InvariantBroken

Law (I22): a `Refused` or `Fenced` append was never and will never be visible. Whatever is not sure
raises `Unknown`. Wire codes and exit codes of these classes are in wire/errors.py and
cli/output.py.
"""

from __future__ import annotations

from dataclasses import dataclass


class PenstockError(Exception):
    """The root; catch it to catch everything that Penstock raises on purpose."""


class Retryable(PenstockError):
    """Nothing happened; the same request may be sent again."""


class Unavailable(Retryable):
    """No server answers at this address, or it is shutting down."""


class NotOwner(Unavailable):
    """This proxy does not own the log; the message is the owner's address, empty if unknown."""


class Overloaded(Retryable):
    """The server is at a limit; wait, then send again."""


class DeadlineExceeded(Retryable):
    """No answer within the caller's deadline, to a request that may be repeated."""


class Unknown(PenstockError):
    """The change (an append, a claim, a trim) was sent, and may or may not have taken effect.

    An append is safe to retry with the same seq only, a trim as it is. A claim that is made again
    opens the next instance.
    """


class Fenced(PenstockError):
    """A newer owner exists; drop everything and stop."""


class StaleInstance(Fenced):
    """This producer was opened again elsewhere with a higher instance number."""


class Damaged(PenstockError):
    """Stored or received bytes are wrong; they were not returned to anybody."""


class ChecksumMismatch(Damaged):
    """A CRC-32C does not match."""


class BadFormat(Damaged):
    """A length, magic number, version or reference cannot be right."""


class MissingFile(Damaged):
    """A file that the manifest names does not exist."""


class Refused(PenstockError):
    """Definitely not done; the caller must change something before it can succeed."""


class GuardFailed(Refused):
    """A guarded metadata key did not hold the expected value when the group was to be ordered."""


class SeqGap(Refused):
    """The group's first seq is beyond the producer's next one."""


class SeqMismatch(Refused):
    """The seq lies inside an earlier group, but no group with this shape starts there."""


class Trimmed(Refused):
    """The position is below the trim point; its entries are gone for good."""


class NotFound(Refused):
    """The named thing does not exist."""


class VersionConflict(Refused):
    """Somebody else changed this metadata first: read it again and decide again."""


class AlreadyExists(Refused):
    """The metadata path exists; nothing was changed."""


class TooLarge(Refused):
    """A size or count is beyond limits.py."""


class BadRequest(Refused):
    """The request is not one that this server answers."""


class BadConfig(Refused):
    """A configuration cannot be used; the message lists every problem."""


class BadRow(Refused):
    """A row does not fit the schema, or its table; nothing was done with any row beside it."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        #: Its index among those that were handed over, if it is known.
        self.row = row


class SchemaMismatch(Refused):
    """A stream of this name exists with another schema."""


class Unauthorized(Refused):
    """The server did not accept the token."""


class Forbidden(Unauthorized):
    """The token was accepted, but it was narrowed, and does not allow this request."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps a query from running here."""

    #: The plan node, as Spark prints it.
    node: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}\n    in: {self.node}\n    instead: {self.remedy}"


class Unsupported(Refused):
    """A query has parts that cannot run here; nothing was started. `reasons` lists all of them."""

    def __init__(self, message: str, reasons: tuple[Reason, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class EvaluationFailed(Refused):
    """A row made an expression fail, as it would in Spark; `condition` is Spark's name for it."""

    def __init__(self, condition: str, message: str | None = None) -> None:
        # Alone, it is the whole text of an error that came over the wire.
        super().__init__(condition if message is None else f"[{condition}] {message}".strip())
        self.condition = condition.removeprefix("[").partition("]")[0]


class PlanChanged(Refused):
    """The query exists with another plan, whose state this one cannot take over."""


class QueryFailed(PenstockError):
    """A running query stopped by itself; the message ends with the traceback of what stopped it."""


class Defect(PenstockError):
    """A bug in Penstock."""


class InvariantBroken(Defect):
    """A stated invariant does not hold; the message carries the story that led here."""
