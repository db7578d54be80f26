"""What batch Spark answered, remembered: a query that did not change is not run by Spark again.

Owns `answers/<test file>.zip` beside the tests that ask, one entry per answer. An answer is known
by everything that it depends on: the test that asks, the analyzed plan, the rows, the session's
settings and the version of Spark. Law: whatever differs in one of them is asked anew, and so is a
plan whose text does not tell all of it.

PENSTOCK_ANSWERS=anew    ask Spark all the same, and fail where it says something else (`make soak`)
PENSTOCK_ANSWERS=write   ask Spark, and keep what it says (`make answers`)
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.testing.oracle import Failed, assert_equal

#: Code of a user, and rows that are no input, are not part of a plan's text.
_UNTOLD = re.compile(r"PythonUD|InPandas|InArrow|TransformWithState|LogicalRDD|LocalRelation")
#: Numbers that Spark counts up in a session, and directories of the process.
_PASSING = re.compile(
    r'#\d+L?|"id":\d+|"jvmId":"[^"]*"|"createTime":\d+|[\w./-]*penstock-testing-\w+|lambda \w+_\d+'
)
#: A directory of the checkout, where no test has tables.
_WAREHOUSE = "spark.sql.warehouse.dir"
#: The same for every archive, so that the same answers are the same bytes.
_DATE = (2026, 1, 1, 0, 0, 0)
_FAILED = b"failed: "


class Answers:
    """The answers to the tests of one process, by test file."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._archives: dict[Path, dict[str, bytes]] = {}
        #: What was asked for: all that is written.
        self._asked: dict[Path, dict[str, bytes]] = {}

    def answer(
        self, spark: Any, frame: Any, tables: Mapping[str, pa.Table], ask: Callable[[], Any]
    ) -> Any:
        """What batch Spark says to the query of a streaming `frame` over these rows."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        key = _key(spark, frame, tables, test) if test else None
        if key is None:
            return ask()
        archive = _archive_of(test)
        kept = self._read(archive).get(key)
        if kept is not None and self._mode == "use":
            return _decode(kept)
        answer = ask()
        if kept is not None and self._mode == "anew":
            assert_equal(answer, _decode(kept), "Spark says something else now: make answers")
        if isinstance(answer, pa.Table | Failed):
            self._asked.setdefault(archive, {})[key] = _encode(answer)
        return answer

    def _read(self, archive: Path) -> dict[str, bytes]:
        if archive not in self._archives:
            entries: dict[str, bytes] = {}
            if archive.exists():
                with zipfile.ZipFile(archive) as opened:
                    entries = {name: opened.read(name) for name in opened.namelist()}
            self._archives[archive] = entries
        return self._archives[archive]

    def close(self) -> None:
        """Keep what Spark said, if asked to: an archive has what its tests asked for last."""
        if self._mode != "write":
            return
        for archive, entries in self._asked.items():
            archive.parent.mkdir(exist_ok=True)
            with zipfile.ZipFile(archive, "w") as opened:
                for key in sorted(entries):
                    name = zipfile.ZipInfo(key, _DATE)
                    opened.writestr(name, entries[key], zipfile.ZIP_LZMA)


ANSWERS = Answers(os.environ.get("PENSTOCK_ANSWERS", "use"))


def _archive_of(test: str) -> Path:
    path = Path(test.partition("::")[0])
    return Path(__file__).parents[2] / path.parent / "answers" / f"{path.stem}.zip"


def _key(spark: Any, frame: Any, tables: Mapping[str, pa.Table], test: str) -> str | None:
    """What the answer depends on, as a hash; None if that cannot be told."""
    analyzed = frame._jdf.queryExecution().analyzed()
    # As text it has what JSON leaves out, as JSON the types of literals.
    plan = f"{analyzed.toString()}\n{analyzed.toJSON()}"
    if _UNTOLD.search(plan):
        return None
    settings = sorted(
        (name, value)
        for name, value in spark.conf.getAll.items()
        if name.startswith("spark.sql.") and name != _WAREHOUSE
    )
    digest = hashlib.blake2b(digest_size=16)
    for text in (spark.version, test, repr(settings), _lasting(plan)):
        digest.update(text.encode() + b"\0")
    for name, table in sorted(tables.items()):
        digest.update(f"{name}\0".encode() + _encode(table))
    return digest.hexdigest()


def _lasting(plan: str) -> str:
    """The plan with what passes numbered in the order of its first mention."""
    numbers: dict[str, str] = {}
    return _PASSING.sub(lambda seen: numbers.setdefault(seen.group(), f"#{len(numbers)}"), plan)


def _encode(answer: pa.Table | Failed) -> bytes:
    if isinstance(answer, Failed):
        return _FAILED + answer.condition.encode()
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, answer.schema) as writer:
        writer.write_table(answer.combine_chunks())
    return sink.getvalue()


def _decode(kept: bytes) -> Any:
    if kept.startswith(_FAILED):
        return Failed(kept.removeprefix(_FAILED).decode())
    return pa.ipc.open_stream(kept).read_all()
