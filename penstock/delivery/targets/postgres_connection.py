"""A connection to PostgreSQL that does not wait for ever, and what its errors ask of the player.

Law: no password is in what is raised, and an error says whether to wait (Unavailable), to look at a
row (BadRow) or to change something (other Refused).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import conninfo, pq
from psycopg.adapt import Dumper

from penstock.config import hide_secrets, masked_uri
from penstock.errors import (
    BadConfig,
    BadRow,
    PenstockError,
    Refused,
    SchemaMismatch,
    Unauthorized,
    Unavailable,
)
from penstock.plain_text import plain_line

Result = TypeVar("Result")

#: `UNIQUE NULLS NOT DISTINCT`; older ones are not maintained any more.
SERVER_VERSION_MIN: Final = 150000
#: A table may be locked for a while; what does not answer for longer is away.
ANSWER_SECONDS: Final = 60.0
#: The server gives up first: its answer says why.
_GRACE_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 10
#: Every plan goes by the index of the key, whatever the statistics of a young table say.
_SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
#: What is said of a user or password that will not do, and of a database that is not there. These
#: have no code, and only English servers say it so; of others the player tries again.
_NO_ENTRY: Final = ("password authentication failed", "no password supplied", "pg_hba.conf")
_NOT_THERE: Final = ("does not exist", "is not permitted to log in")
#: SQLSTATEs, by their beginnings: values, constraints, views, limits, and what triggers raise.
_BAD_ROW: Final = ("22", "23", "44", "54", "P0001")
#: A column, table or schema that is gone; types that do not fit.
_BAD_TABLE: Final = ("42703", "42P01", "42804", "42846", "42P10", "3F")
#: Rights, syntax, and other errors of triggers.
_REFUSED: Final = ("28", "3D", "42", "P0")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """Leaves a server that does not answer: one that is stopped would be waited for for ever."""

    #: For each answer.
    answer_seconds: float = ANSWER_SECONDS + _GRACE_SECONDS

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        return super().wait(_in_time(gen, self.answer_seconds), *arguments, **options)

    def ask(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows that it returns; parameters are $1, $2, …"""
        cursor = self.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    def run(self, statement: str, *parameters: object) -> int:
        """How many rows it changed."""
        return self.execute(statement, parameters).rowcount


class WireBytes:
    """A parameter that is in binary format already."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class _WireBytesDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Any) -> bytes:
        data: bytes = obj.data
        return data


def connect(uri: str, answer_seconds: float) -> Connection:
    """Raises Unavailable, Unauthorized, Refused or BadConfig."""
    try:
        given = conninfo.conninfo_to_dict(uri)
    except psycopg.ProgrammingError as error:
        raise BadConfig(f"{masked_uri(uri)}: {_words(error, uri)}") from None
    seconds = answer_seconds + _GRACE_SECONDS
    wanted: dict[str, Any] = {
        "connect_timeout": _CONNECT_SECONDS,
        "target_session_attrs": "read-write",  # not a copy of the database
        "fallback_application_name": "penstock",
        "tcp_user_timeout": int(1000 * seconds),
    }
    options = {name: value for name, value in wanted.items() if name not in given}
    try:
        connection = Connection.connect(
            uri, autocommit=True, cursor_factory=psycopg.RawCursor, **options
        )
    except psycopg.OperationalError as error:
        raise _no_connection(error, uri) from None
    connection.answer_seconds = seconds
    connection.adapters.register_dumper(WireBytes, _WireBytesDumper)
    try:
        with told(uri):
            _set_up(connection, uri, answer_seconds)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: Connection, uri: str, answer_seconds: float) -> None:
    version = connection.info.server_version
    if version < SERVER_VERSION_MIN:
        raise Refused(f"{masked_uri(uri)} is PostgreSQL {version // 10000}: 15 or newer is needed")
    limit = f"{int(1000 * answer_seconds)}ms"
    limits = {"statement_timeout": limit, "idle_in_transaction_session_timeout": limit}
    for name, value in (_SETTINGS | limits).items():
        connection.ask("SELECT set_config($1, $2, false)", name, value)
    # Our answers say that rows are durable; a server may have been told not to care.
    connection.ask(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )


@contextmanager
def told(uri: str) -> Iterator[None]:
    """What psycopg raises becomes an error that says what to do."""
    try:
        yield
    except psycopg.Error as error:
        words = f"{masked_uri(uri)}: {_words(error, uri)}"
        state = error.sqlstate or ""
        kind: type[PenstockError] = Unavailable
        if state.startswith(_BAD_ROW):
            kind = BadRow
        elif state.startswith(_BAD_TABLE):
            kind = SchemaMismatch
        elif state.startswith(_REFUSED):
            kind = Refused
        raise kind(words) from None


def is_of_rows(error: psycopg.Error) -> bool:
    """Whether rows are to blame, not the moment or the table."""
    return (error.sqlstate or "").startswith(_BAD_ROW)


def _no_connection(error: psycopg.OperationalError, uri: str) -> PenstockError:
    words = f"{masked_uri(uri)}: {_words(error, uri)}"
    if any(text in words for text in _NO_ENTRY):
        return Unauthorized(words)
    return Refused(words) if any(text in words for text in _NOT_THERE) else Unavailable(words)


def _words(error: psycopg.Error, uri: str) -> str:
    return plain_line(hide_secrets(str(error), uri))


def _in_time(steps: Generator[Any, Any, Result], seconds: float) -> Generator[Any, Any, Result]:
    """psycopg wakes its generators now and then, with nothing: that is when the clock is read."""
    deadline = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer for {seconds:g} s")
            wanted = steps.send(ready)
    except StopIteration as end:
        result: Result = end.value
        return result
