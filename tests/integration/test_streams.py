"""Streams over a real embedded server: what a user's program sees, crashes and forks included."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from datetime import time as day_time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from embedded_server import is_dead, kill_server, server_pid, stop_server
from harness.files import token_file
from harness.waiting import wait_until

import penstock
from penstock.errors import (
    BadConfig,
    BadRequest,
    BadRow,
    DeadlineExceeded,
    NotFound,
    SchemaMismatch,
    SeqGap,
    SeqMismatch,
    StaleInstance,
    TooLarge,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock.log import embedded
from penstock.log.records import NewEntry
from penstock.log.serving.directory import Address, is_locked
from penstock.stream.groups import make_groups
from penstock.stream.producer import producer_name

EVERY_TYPE = (
    "a boolean, b tinyint, c smallint, d int, e bigint NOT NULL, f float, g double, "
    "h decimal(38,10), i string, j binary, k date, l timestamp, m timestamp_ntz, "
    "n interval day to second, o array<int>, p map<string,array<double>>, "
    "q struct<x: int, y: struct<z: string>>, r map<int,string>"
)
EVERY_VALUE: dict[str, Any] = {
    "a": True,
    "b": -128,
    "c": 32767,
    "d": -(2**31),
    "e": 2**63 - 1,
    "f": 0.5,
    "g": 1e300,
    "h": Decimal("1234567890123456789012345678.0123456789"),
    "i": "naïve ☃",
    "j": b"\x00\xff",
    "k": date(9999, 12, 31),
    "l": datetime(2026, 11, 15, 8, 0, 0, 123456, tzinfo=UTC),
    "m": datetime(1, 1, 1),
    "n": timedelta(days=-3, microseconds=1),
    "o": [1, None, 3],
    "p": [("k", [1.5, None])],
    "q": {"x": None, "y": {"z": "deep"}},
    "r": [(1, "one"), (2, None)],
}
#: Incompressible by any trick of ours: 1 MiB of text takes 1 MiB of payload.
KIBIBYTE = "x" * 1024


@pytest.fixture(scope="module")
def shared_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data_dir = tmp_path_factory.mktemp("streams") / "data"
    yield data_dir
    stop_server(data_dir)


@pytest.fixture(scope="module")
def log(shared_dir: Path) -> Iterator[penstock.Log]:
    """One server for all tests that do not harm it; each uses streams of its own."""
    with penstock.connect(shared_dir) as opened:
        yield opened


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory whose server may be killed."""
    yield tmp_path / "data"
    stop_server(tmp_path / "data")


def rows_of(stream: penstock.Stream, column: str = "n") -> list[Any]:
    return stream.read().column(column).to_pylist()


# ---- rows and schemas


def test_rows_of_every_type_come_back_equal_from_dicts_arrow_and_pandas(log: penstock.Log) -> None:
    stream = log.create_stream("every_type", EVERY_TYPE)
    nulls = {"e": 0}
    stream.append([EVERY_VALUE, nulls])
    table = stream.read()

    stream.append(table)
    stream.append(table.to_batches())
    stream.append(pd.DataFrame({"e": [7], "i": ["from pandas"]}))

    found = stream.read().to_pylist()
    full_nulls = dict.fromkeys(EVERY_VALUE) | nulls
    assert found[:6] == [EVERY_VALUE, full_nulls] * 3
    assert found[6] == dict.fromkeys(EVERY_VALUE) | {"e": 7, "i": "from pandas"}
    assert stream.read().schema.equals(stream.schema, check_metadata=True)


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_place_that_cannot_be_a_data_directory_is_refused_at_once(
    tmp_path: Path, below: str
) -> None:
    """It was waited for, until the time was up, without a cause."""
    (tmp_path / "file").write_text("no directory")
    before = time.monotonic()
    with pytest.raises(BadConfig, match="cannot be used as a data directory"):
        penstock.connect(f"{tmp_path}/file{below}", timeout=10)
    assert time.monotonic() - before < 5


def test_a_time_of_day_is_kept_to_the_microsecond(log: penstock.Log) -> None:
    stream = log.create_stream("times", "n time")
    stream.append({"n": day_time(23, 59, 59, 999999)})
    assert rows_of(stream) == [day_time(23, 59, 59, 999999)]


def test_creating_a_stream_again_with_an_equal_schema_changes_nothing(log: penstock.Log) -> None:
    first = log.create_stream("again", "n long NOT NULL COMMENT 'a number'")
    tail = log.bounds().tail
    from_arrow = log.create_stream("again", pa.schema([pa.field("n", pa.int64(), nullable=False)]))

    assert log.bounds().tail == tail
    assert from_arrow.ddl == first.ddl == "n bigint NOT NULL COMMENT 'a number'"
    assert from_arrow.created == first.created
    assert "again" in [stream.name for stream in log.streams()]
    assert repr(first) == f"Stream('again', {first.ddl!r})"


def test_another_schema_for_the_same_name_is_refused_and_names_the_columns(
    log: penstock.Log,
) -> None:
    log.create_stream("taken", "n long, s string")
    with pytest.raises(SchemaMismatch, match=r"column n: expected bigint, got int; .*s: missing"):
        log.create_stream("taken", "n int")
    assert log.stream("taken").ddl == "n bigint, s string"


def test_of_many_that_create_a_stream_at_once_all_get_the_same_one(shared_dir: Path) -> None:
    found: list[penstock.Stream] = []

    def create() -> None:
        with penstock.connect(shared_dir) as mine:
            found.append(mine.create_stream("raced", "n long"))

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 6
    assert len({stream.created for stream in found}) == 1


@pytest.mark.parametrize("name", ["", "1st", "a/b", "a b", "-x", "ä", "x" * 129, 7])
def test_a_bad_name_is_refused_with_the_rule(log: penstock.Log, name: Any) -> None:
    with pytest.raises(BadRequest, match="a letter or _ first"):
        log.create_stream(name, "n long")


def test_an_unknown_stream_is_not_found_and_close_names_are_offered(log: penstock.Log) -> None:
    log.create_stream("hot_items", "n long")
    with pytest.raises(NotFound, match="did you mean hot_items"):
        log.stream("hot_item")


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"n": "seven"}, "row 999, column n: expected bigint, got str"),
        ({"s": "no number"}, "row 999, column n: .*missing|row 999, column n"),
        ({"n": None}, "row 999, column n: is NOT NULL"),
        ({"n": 1, "t": 2}, "row 999.*t"),
        (17, "row 999: expected a dict"),
    ],
)
def test_one_wrong_row_among_a_thousand_appends_nothing(
    log: penstock.Log, row: Any, complaint: str
) -> None:
    stream = log.create_stream("strict", "n long NOT NULL, s string")
    tail = log.bounds().tail
    with pytest.raises(BadRow, match=complaint):
        stream.append([{"n": number} for number in range(999)] + [row])
    assert log.bounds().tail == tail
    assert stream.read().num_rows == 0


def test_no_rows_append_nothing(log: penstock.Log) -> None:
    stream = log.create_stream("nothing", "n long")
    tail = log.bounds().tail
    done = stream.append([])
    assert (done.rows, done.groups, done.first_lsn, done.last_lsn) == (0, (), None, None)
    assert not done.duplicate
    assert log.bounds().tail == tail


# ---- the cut into entries and groups


def test_an_append_of_several_payloads_is_one_atomic_group(log: penstock.Log) -> None:
    stream = log.create_stream("wide", "n long, s string")
    done = stream.append([{"n": n, "s": KIBIBYTE} for n in range(3000)])

    assert len(done.groups) == 1
    assert done.groups[0].count > 1
    assert rows_of(stream) == list(range(3000))


def test_an_append_beyond_a_group_is_cut_into_several_in_order(log: penstock.Log) -> None:
    stream = log.create_stream("huge", "n long, s string")
    done = stream.append([{"n": n, "s": KIBIBYTE} for n in range(10_000)])

    assert len(done.groups) >= 3
    assert done.rows == 10_000
    assert rows_of(stream) == list(range(10_000))
    assert done.last_lsn == log.bounds().tail - 1


def test_a_row_beyond_a_payload_is_refused_by_its_number_and_nothing_is_appended(
    log: penstock.Log,
) -> None:
    stream = log.create_stream("one_large", "n long, s string")
    large = pa.table({"n": [2, 3], "s": ["small", KIBIBYTE * 1025]})
    with pytest.raises(TooLarge, match="row 3 takes"):
        stream.append([pa.table({"n": [0, 1], "s": ["", ""]}), large])
    assert stream.read().num_rows == 0


def test_threads_append_through_one_log_and_nothing_is_lost_or_mixed(log: penstock.Log) -> None:
    stream = log.create_stream("threads", "n long")

    def append(first: int) -> None:
        for number in range(first, first + 50):
            stream.append({"n": number})

    threads = [threading.Thread(target=append, args=(100 * at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = rows_of(stream)
    assert len(found) == 200
    for at in range(4):
        mine = [n for n in found if n // 100 == at]
        assert mine == list(range(100 * at, 100 * at + 50))


# ---- positions


def test_read_takes_lsns_names_and_times_as_positions(log: penstock.Log) -> None:
    stream = log.create_stream("positions", "n long")
    first = stream.append({"n": 0}).first_lsn
    wait_for_next_millisecond()
    between = datetime.now(UTC)
    wait_for_next_millisecond()
    second = stream.append({"n": 1}).first_lsn
    assert first is not None and second is not None

    assert rows_of(stream) == [0, 1]
    assert stream.read(start=second).column("n").to_pylist() == [1]
    assert stream.read("earliest", second).column("n").to_pylist() == [0]
    assert stream.read(start=between).column("n").to_pylist() == [1]
    assert stream.read(end=between).column("n").to_pylist() == [0]
    assert stream.read(start=between.replace(tzinfo=None)).column("n").to_pylist() == [1]
    assert stream.read(start="latest").num_rows == 0
    assert stream.read(start=second, end=first).num_rows == 0
    assert stream.read(start=0, end=10**9).num_rows == 2
    assert stream.read(start=datetime(1960, 1, 1)).num_rows == 2


def wait_for_next_millisecond() -> None:
    now_ms = time.time_ns() // 10**6
    while time.time_ns() // 10**6 <= now_ms + 1:
        pass


@pytest.mark.parametrize("position", ["first", -1, True, 1.5, None, 2**64])
def test_what_is_no_position_is_refused_with_those_that_are(
    log: penstock.Log, position: Any
) -> None:
    stream = log.create_stream("positions", "n long")
    with pytest.raises(BadRequest, match=r"use earliest, latest, an LSN .* or a time"):
        stream.tail(start=position)


def test_what_was_trimmed_cannot_be_read_and_earliest_starts_behind_it(data_dir: Path) -> None:
    with penstock.connect(data_dir) as log:
        stream = log.create_stream("trimmed", "n long")
        first = stream.append({"n": 0}).first_lsn
        second = stream.append({"n": 1}).first_lsn
        assert first is not None and second is not None

        assert log.trim(second) == second

        assert log.bounds().trim_point == second
        assert log.stream("trimmed").read().column("n").to_pylist() == [1]
        with pytest.raises(Trimmed, match="below the trim point"):
            stream.read(start=first)


# ---- tails


def test_a_tail_waits_for_new_rows_and_its_position_resumes_without_gap(log: penstock.Log) -> None:
    stream = log.create_stream("followed", "n long")
    with stream.tail() as tail:
        assert tail.lsn is None
        done = [stream.append({"n": n}) for n in range(3)]
        seen = [next(tail).column("n").to_pylist() for _ in range(2)]
        assert tail.lsn == done[1].first_lsn
        resumed = stream.tail(start=tail.position, end="latest")

    assert seen == [[0], [1]]
    assert [batch.column("n").to_pylist() for batch in resumed] == [[2]]
    assert resumed.position == log.bounds().tail
    assert list(resumed) == []


def test_every_position_between_two_batches_resumes_exactly_there(log: penstock.Log) -> None:
    stream = log.create_stream("resumed", "n long")
    stream.append([pa.record_batch({"n": pa.array([n])}) for n in range(5)])
    log.client.append([NewEntry(b"", ("other",))])

    seen: list[int] = []
    position: int | str = "earliest"
    for _ in range(5):
        with stream.tail(position, timeout=60) as tail:
            seen += next(tail).column("n").to_pylist()
            position = tail.position

    assert seen == [0, 1, 2, 3, 4]


def test_a_tail_with_a_timeout_ends_when_nothing_comes(log: penstock.Log) -> None:
    stream = log.create_stream("quiet", "n long")
    stream.append({"n": 1})
    tail = stream.tail("earliest", timeout=60)

    assert next(tail).num_rows == 1
    tail._timeout = 0.05  # what is there may take longer to come; what is not never does
    assert list(tail) == []
    assert tail.position == log.bounds().tail


def test_a_tail_ends_at_its_end_even_if_that_is_written_later(log: penstock.Log) -> None:
    stream = log.create_stream("ended", "n long")
    end = log.bounds().tail + 2
    with stream.tail("latest", end) as tail:
        for n in range(3):
            stream.append({"n": n})
        assert [n for batch in tail for n in batch.column("n").to_pylist()] == [0, 1]


def test_a_foreign_payload_under_a_streams_tag_is_named_by_its_lsn(log: penstock.Log) -> None:
    stream = log.create_stream("spoiled", "n long")
    lsn = log.client.append([NewEntry(b"not arrow", ("s/spoiled",))]).first_lsn
    with pytest.raises(penstock.Damaged, match=f"stream spoiled, LSN {lsn}"):
        stream.read()


def test_closing_in_any_order_is_quiet(shared_dir: Path) -> None:
    log = penstock.connect(shared_dir)
    stream = log.create_stream("closing", "n long")
    tail, producer = stream.tail(), stream.producer("p")
    log.close()
    log.close()
    tail.close()
    producer.close()
    assert repr(log).endswith(", closed)")
    with pytest.raises(Unavailable, match="was closed"):
        stream.append({"n": 1})


# ---- producers


def test_a_batch_sent_again_is_acknowledged_with_its_first_lsns(log: penstock.Log) -> None:
    stream = log.create_stream("replayed", "n long")
    with stream.producer("loader") as producer:
        first = [producer.append({"n": n}, seq=n) for n in range(50)]
        assert producer.next_seq == 50

    with stream.producer("loader") as restarted:
        assert (restarted.instance, restarted.next_seq) == (2, 50)
        again = [restarted.append({"n": n}, seq=n) for n in range(52)]

    assert [done.first_lsn for done in again[:50]] == [done.first_lsn for done in first]
    assert [done.duplicate for done in again] == [True] * 50 + [False] * 2
    assert rows_of(stream) == list(range(52))


def test_a_seq_beyond_the_next_is_a_gap_and_another_shape_is_a_mismatch(log: penstock.Log) -> None:
    stream = log.create_stream("gaps", "n long")
    with stream.producer("p") as producer:
        producer.append({"n": 0})
        with pytest.raises(SeqGap, match="the next is 1"):
            producer.append({"n": 2}, seq=2)
        two = [pa.record_batch({"n": pa.array([n])}) for n in range(2)]
        with pytest.raises(SeqMismatch):
            producer.append(two, seq=0)
        with pytest.raises(BadRow):
            producer.append({"n": "text"})
        producer.append({"n": 1})
    assert rows_of(stream) == [0, 1]


def test_a_replay_appends_what_a_crash_left_out_of_a_large_append(log: penstock.Log) -> None:
    """The first program dies after the first of several groups; the second sends all again."""
    stream = log.create_stream("half_done", "n long, s string")
    rows = [{"n": n, "s": KIBIBYTE} for n in range(10_000)]
    turns = itertools.count()
    groups = make_groups(rows, schema=stream.schema, lanes=stream.spread, turns=turns)
    with log.client.appender(producer_name(stream.name, "loader")) as died:
        died.append(groups[0])

    with stream.producer("loader") as restarted:
        done = restarted.append(rows, seq=0)

    assert [group.duplicate for group in done.groups] == [True] + [False] * (len(groups) - 1)
    assert not done.duplicate
    assert rows_of(stream) == list(range(10_000))


def test_opening_a_producer_fences_the_older_one(log: penstock.Log) -> None:
    stream = log.create_stream("fenced", "n long")
    with stream.producer("p") as zombie, stream.producer("p") as owner:
        owner.append({"n": 1})
        with pytest.raises(StaleInstance):
            zombie.append({"n": 0})
    assert rows_of(stream) == [1]


def test_the_same_id_on_two_streams_is_two_producers(log: penstock.Log) -> None:
    one, two = (log.create_stream(name, "n long") for name in ("side_a", "side_b"))
    with one.producer("p") as first, two.producer("p") as second:
        first.append({"n": 1}, seq=0)
        second.append({"n": 2}, seq=0)
    assert (rows_of(one), rows_of(two)) == ([1], [2])


@pytest.mark.parametrize("id", ["", "tab\t", "x" * 200, 5])
def test_a_bad_producer_id_is_refused(log: penstock.Log, id: Any) -> None:
    stream = log.create_stream("ids", "n long")
    with pytest.raises(BadRequest, match="producer id"):
        stream.producer(id)


# ---- one server for a directory


APPEND_PROGRAM = """
import sys, penstock
log = penstock.connect(sys.argv[1])
stream = log.create_stream("shared", "n long")
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    stream.append({"n": n})
print(log.status()["pid"])
"""


def start_program(source: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def test_programs_that_start_together_share_one_server(data_dir: Path) -> None:
    programs = [start_program(APPEND_PROGRAM, data_dir, 10 * at, 10 * at + 10) for at in range(3)]
    pids = {program.communicate(timeout=120)[0] for program in programs}

    assert len(pids) == 1
    with penstock.connect(data_dir) as log:
        assert sorted(rows_of(log.stream("shared"))) == list(range(30))
        # They just ended, without close(): still no producer of theirs is left behind.
        wait_until(lambda: log.status()["producers"] == 0, "a producer is left behind")


def test_a_killed_server_is_replaced_and_nothing_acknowledged_is_lost(data_dir: Path) -> None:
    with penstock.connect(data_dir) as log:
        stream = log.create_stream("survivors", "n long")
        tail = stream.tail()
        for n in range(3):
            stream.append({"n": n})
            killed = kill_server(data_dir)
            stream.append({"n": 10 + n})
            assert server_pid(data_dir) != killed

        assert rows_of(stream) == [0, 10, 1, 11, 2, 12]
        with tail:
            followed = [next(tail).column("n").to_pylist()[0] for _ in range(6)]
        assert followed == [0, 10, 1, 11, 2, 12]


def test_of_the_clients_of_a_killed_server_one_starts_the_next(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    launch = embedded._launch_server

    def count(data_dir: Path, log_path: Path) -> Address:
        started.append(data_dir)
        return launch(data_dir, log_path)

    monkeypatch.setattr(embedded, "_launch_server", count)
    with ExitStack() as stack:
        logs = [stack.enter_context(penstock.connect(data_dir)) for _ in range(5)]
        kill_server(data_dir)
        tails = [log.bounds().tail for log in logs]

    assert len(set(tails)) == 1
    assert started == [data_dir, data_dir]


def test_files_of_a_dead_server_mislead_nobody(data_dir: Path) -> None:
    with penstock.connect(data_dir) as log:
        log.create_stream("kept", "n long").append({"n": 1})
    kill_server(data_dir)
    assert (data_dir / "server.json").exists()
    assert (data_dir / "lock").exists()

    with penstock.connect(data_dir) as log:
        assert rows_of(log.stream("kept")) == [1]


def test_a_server_whose_directory_was_replaced_leaves_the_new_ones_address_alone(
    data_dir: Path,
) -> None:
    with penstock.connect(data_dir):
        removed = server_pid(data_dir)
    shutil.rmtree(data_dir)

    with penstock.connect(data_dir) as log:
        assert server_pid(data_dir) != removed
        os.kill(removed, signal.SIGTERM)
        wait_until(lambda: is_dead(removed), "the old server did not stop")
        assert log.status()["pid"] == server_pid(data_dir)


def test_a_server_that_nobody_uses_stops_and_the_next_program_starts_one(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "IDLE_EXIT_SECONDS", 0.2)
    with penstock.connect(data_dir) as log:
        log.create_stream("rested", "n long").append({"n": 1})
        assert is_locked(data_dir)
    wait_until(lambda: not is_locked(data_dir), "the idle server did not stop")
    assert not (data_dir / "server.json").exists()

    with penstock.connect(data_dir) as log:
        assert rows_of(log.stream("rested")) == [1]


def impatient(data_dir: Path) -> penstock.Log:
    """Who waits some seconds for an answer, of a server that is there: a start may take longer,
    and so may a busy machine, now and then."""
    with penstock.connect(data_dir):
        return penstock.connect(data_dir, timeout=5.0)


def test_a_server_that_answers_late_leaves_unknown_behind_and_the_log_usable(
    data_dir: Path,
) -> None:
    """The outage outlasts the timeout; afterwards the same Log appends again."""
    with impatient(data_dir) as log:
        stream = log.create_stream("outage", "n long")
        stream.append({"n": 0})
        pid = server_pid(data_dir)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises((Unknown, DeadlineExceeded)):
                stream.append({"n": 1})
        finally:
            os.kill(pid, signal.SIGCONT)

        stream.append({"n": 2})

        found = rows_of(stream)
        assert [n for n in found if n != 1] == [0, 2]
        assert found.count(1) <= 1


def test_after_unknown_a_producer_opened_again_sends_at_the_same_seq_and_nothing_is_double(
    data_dir: Path,
) -> None:
    with impatient(data_dir) as log:
        stream = log.create_stream("retried", "n long")
        with stream.producer("p") as producer:
            producer.append({"n": 0})
            pid = server_pid(data_dir)
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(Unknown):
                    producer.append({"n": 1}, seq=1)
            finally:
                os.kill(pid, signal.SIGCONT)
            with pytest.raises(Unknown):
                producer.append({"n": 2}, seq=2)  # this instance cannot know what its seqs mean

        with stream.producer("p") as again:
            assert again.next_seq in (1, 2)
            for n in (1, 2):
                again.append({"n": n}, seq=n)

        assert rows_of(stream) == [0, 1, 2]


def test_an_address_needs_a_token_file_and_a_wrong_token_is_refused(
    shared_dir: Path, log: penstock.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = embedded.read_address(shared_dir).port  # type: ignore[union-attr]
    url = f"penstock://127.0.0.1:{port}"
    wrong = token_file(tmp_path / "token")
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE", raising=False)

    with pytest.raises(BadConfig, match="give the token file"):
        penstock.connect(url)
    with pytest.raises(penstock.Refused, match="token"):
        penstock.connect(url, token_file=wrong)
    with penstock.connect(url, token_file=shared_dir / "token") as other:
        assert other.bounds().tail >= log.bounds().trim_point


# ---- forks


def test_parent_and_child_append_through_the_same_log_and_nothing_is_mixed(data_dir: Path) -> None:
    with penstock.connect(data_dir) as log:
        stream = log.create_stream("forked", "n long")
        stream.append({"n": -1})
        producer, tail = stream.producer("parents"), stream.tail("earliest")

        child = os.fork()
        if child == 0:
            os._exit(child_of_fork(log, stream, producer, tail))
        for n in range(100):
            stream.append({"n": n})
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        found = rows_of(stream)
        assert [n for n in found if n < 1000] == list(range(-1, 100))
        assert [n for n in found if n >= 1000] == list(range(1000, 1100))
        producer.append({"n": -2})
        assert next(tail).num_rows == 1
        producer.close()
        tail.close()


def child_of_fork(log: penstock.Log, stream: penstock.Stream, producer: Any, tail: Any) -> int:
    """What the child does; an exit code, since nothing else of it may reach pytest."""
    try:
        for n in range(1000, 1100):
            stream.append({"n": n})
        for refused in (lambda: producer.append({"n": 0}), lambda: next(tail)):
            try:
                refused()
                return 2
            except Unavailable:
                pass
        producer.close()
        tail.close()
        log.close()
        return 0
    except BaseException:
        return 1


# ---- the package


IMPORT_PROGRAM = """
import sys, penstock
heavy = {"pyarrow", "uvloop", "numpy", "asyncio", "pyspark"} & set(sys.modules)
assert not heavy, heavy
assert all(getattr(penstock, name) is not None for name in penstock.__all__)
try:
    penstock.conect
except AttributeError as error:
    assert "conect" in str(error)
else:
    raise AssertionError("a wrong name was found")
"""


def test_importing_penstock_is_cheap_and_every_public_name_exists() -> None:
    program = start_program(IMPORT_PROGRAM)
    program.communicate(timeout=120)
    assert program.returncode == 0
