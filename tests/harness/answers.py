"""What batch Spark answered, remembered: a query that did not change is not run by Spark again.

Owns `answers/<test file>.zip` beside the tests that ask, one entry per answer. An answer is known
by everything that it depends on: the test that asks, the analyzed plan, the rows, the session's
settings and the version of Spark. Law: whatever differs in one of them is asked anew, and so is a
plan whose text does not tell all of it. Of an answer that is too large to keep, it is kept that
Spark agreed with ours, which is then one of the things that it is known by.

PENSTOCK_ANSWERS=anew    ask Spark all the same, and fail where it says something else (`make soak`)
PENSTOCK_ANSWERS=write   ask Spark, and keep what it says (`make answers`)
PENSTOCK_ANSWERS=add     ask Spark only what is not known, and keep that too
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.user_code import code_of
from penstock.testing.oracle import Failed, assert_equal

#: Code of a user (user_code.py), and rows that are no input, are not part of a plan's text.
_CODE = re.compile(r"PythonUD|InPandas|InArrow|TransformWithState")
_ROWS = re.compile(r"LogicalRDD|LocalRelation(?! <empty>)")
#: Numbers that Spark counts up in a session, and directories of the process.
_PASSING = re.compile(
    r'#\d+L?|"id":\d+|"jvmId":"[^"]*"|"createTime":\d+|[\w./-]*penstock-testing-\w+|lambda \w+_\d+'
    r"|_pyspark_[0-9a-f]{32}"
    r'|(?<=EventTimeWatermark )[0-9a-f-]{36}|(?<="nodeId":")[0-9a-f-]{36}'
)
#: A directory of the checkout, where no test has tables.
_WAREHOUSE = "spark.sql.warehouse.dir"
#: The same for every archive, so that the same answers are the same bytes.
_DATE = (2026, 1, 1, 0, 0, 0)
_FAILED = b"failed: "
_AGREED = b"agreed"
#: The modes in which what is kept is not asked again.
_TRUSTING = ("use", "add")
Ask = Callable[[], Any]


class Answers:
    """The answers to the tests of one process, by test file."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._archives: dict[Path, dict[str, bytes]] = {}
        #: What was asked for: all that is written.
        self._asked: dict[Path, dict[str, bytes]] = {}

    def answer(self, spark: Any, frame: Any, tables: Mapping[str, pa.Table], ask: Ask) -> Any:
        """What batch Spark says to the query of a streaming `frame` over these rows."""
        test = _running_test()
        key = _key(spark, frame, _told(tables), test) if test else None
        if key is None:
            return ask()
        archive = _archive_of(test)
        kept = self._read(archive).get(key)
        if kept is not None and self._mode in _TRUSTING:
            self._keep(archive, key, kept)
            return _decode(kept)
        answer = ask()
        if kept is not None and self._mode == "anew":
            assert_equal(answer, _decode(kept), "Spark says something else now: make answers")
        if isinstance(answer, pa.Table | Failed):
            self._keep(archive, key, _encode(answer))
        return answer

    def agree(self, spark: Any, frame: Any, rows: bytes, ours: pa.Table, ask: Ask) -> None:
        """Fail unless batch Spark says the same as we. Large results are not kept: only that Spark
        agreed with this one. `rows` is a digest of all rows that are read, also by the plan."""
        test = _running_test()
        key = _key(spark, frame, [rows, digest_of(ours)], test, rows_are_told=True)
        archive = _archive_of(test)
        is_known = key is not None and key in self._read(archive)
        if not is_known or self._mode not in _TRUSTING:
            assert_equal(ours, ask(), "other than Spark")
        if key is not None:
            self._keep(archive, key, _AGREED)

    def _keep(self, archive: Path, key: str, entry: bytes) -> None:
        self._asked.setdefault(archive, {})[key] = entry

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
        if self._mode not in ("write", "add"):
            return
        for archive, entries in self._asked.items():
            archive.parent.mkdir(exist_ok=True)
            with zipfile.ZipFile(archive, "w") as opened:
                for key in sorted(entries):
                    name = zipfile.ZipInfo(key, _DATE)
                    opened.writestr(name, entries[key], zipfile.ZIP_LZMA)


ANSWERS = Answers(os.environ.get("PENSTOCK_ANSWERS", "use"))


def digest_of(*tables: pa.Table) -> bytes:
    """Tells rows and their order from others."""
    digest = hashlib.blake2b(digest_size=16)
    for table in tables:
        digest.update(_encode(table))
    return digest.digest()


def _running_test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]


def _archive_of(test: str) -> Path:
    path = Path(test.partition("::")[0])
    return Path(__file__).parents[2] / path.parent / "answers" / f"{path.stem}.zip"


def _told(tables: Mapping[str, pa.Table]) -> Iterator[bytes]:
    for name, table in sorted(tables.items()):
        yield f"{name}\0".encode() + _encode(table)


def _key(
    spark: Any, frame: Any, rows: Iterable[bytes], test: str, *, rows_are_told: bool = False
) -> str | None:
    """What the answer depends on, as a hash; None if that cannot be told."""
    analyzed = frame._jdf.queryExecution().analyzed()
    # As text it has what JSON leaves out, as JSON the types of literals.
    text = analyzed.toString()
    plan = f"{text}\n{analyzed.toJSON()}"
    if _ROWS.search(text) and not rows_are_told:
        return None
    code = code_of(analyzed) if _CODE.search(plan) else b""
    if code is None:
        return None
    settings = sorted(
        (name, value)
        for name, value in _settings(spark).items()
        if name.startswith("spark.sql.") and name != _WAREHOUSE
    )
    digest = hashlib.blake2b(digest_size=16)
    for text in (spark.version, test, repr(settings), _lasting(plan)):
        digest.update(text.encode() + b"\0")
    for part in (*rows, code):
        digest.update(part)
    return digest.hexdigest()


def _settings(spark: Any) -> dict[str, str]:
    """All settings of the session, in a few calls: to ask for each takes longer than the plan."""
    settings = spark._jsparkSession.conf().getAll()
    names = settings.keys().mkString("\0").split("\0")
    values = settings.values().mkString("\0").split("\0")
    return dict(zip(names, values, strict=True))


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
