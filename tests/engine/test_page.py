"""The page in a real browser, on real queries: what people see is what is so.

Needs Debian's Chromium (`bin/ensure --optional chromium chromium`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from harness.made_up_queries import MadeUpQueries
from harness.ui_page import Watched, browser, keep_picture, ui_thread
from harness.waiting import wait_until
from small_queries import BIDS, T0, append_bids, running

import penstock
from penstock.cli.main import cli
from penstock.protocol.names import control_tag
from penstock.runtime.control import Rescale, decode_message
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.ui.config import UiConfig

#: Until a worker that was killed is shown as such.
SHOWN_SECONDS_MAX = 2.0

pytestmark = pytest.mark.usefixtures("interpreted")


def counted(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.groupBy("auction").agg(F.count("*").alias("n"), F.sum("price").alias("sum"))


@contextmanager
def feeding(stream: penstock.Stream) -> Iterator[None]:
    """Bids come in, a few at a time, until the end of the `with`."""
    ending = threading.Event()

    def feed() -> None:
        at = 0
        while not ending.wait(0.05):
            append_bids(stream, at, 20)
            at += 20

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextmanager
def watched(log: penstock.Log, directory: Path, target: str | None = None) -> Iterator[Watched]:
    config = UiConfig(target=target or log.target, port=0)
    with ui_thread(config) as address, browser(directory) as context:
        seen = Watched(context, address)
        yield seen
        seen.check()


def is_machine_busy() -> bool:
    """Whether twice as much wants to run as there are processors."""
    return os.getloadavg()[0] > 2 * (os.cpu_count() or 1)


def token_of(log: penstock.Log) -> str:
    return Path(log.target, "token").read_text().strip()


def figure(page: Any, query: str, fact: str) -> Any:
    """The value that the page shows for a fact; None while it is n/a."""
    found = page.locator(f'#query data[data-query="{query}"][data-fact="{fact}"]').first
    value = found.get_attribute("value")
    return float(value) if value else None


def test_the_graph_appears_figures_move_and_a_killed_worker_shows_until_it_is_replaced(
    spark: Any,
    own_log: penstock.Log,
    tmp_path: Path,
    tables: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the picture of it in the docs names no place of this machine
    log, result = own_log, "bids_per_auction"
    source = log.create_stream("bids", BIDS)
    with (
        running(counted(source.df(spark)), to=result, workers=2, log=log) as query,
        feeding(source),
        watched(log, tmp_path, "log") as seen,
    ):
        page = seen.sign_in(token_of(log))

        page.wait_for_selector(".node.source >> text=bids")
        page.wait_for_selector(f".node.sink >> text={result}")
        assert page.locator(".node").count() == 4
        page.wait_for_selector("#health.good")
        rows_in = "progress.numInputRowsTotal"
        wait_until(lambda: (figure(page, result, rows_in) or 0) > 0, "no rows are shown")
        before = figure(page, result, rows_in)
        wait_until(lambda: figure(page, result, rows_in) > before, "figures do not move")
        page.wait_for_selector(".node.stage .busy data[value]:not([value=''])")
        page.wait_for_timeout(5000)  # for the charts of the pictures, nothing else
        keep_picture(page, tmp_path, "page-light")
        page.set_viewport_size({"width": 1360, "height": 930})
        keep_picture(page, tmp_path, "page", whole=False)  # docs/figures/page.png

        progress = query.lastProgress
        assert progress is not None
        name, victim = sorted(progress["members"].items())[-1]
        os.kill(victim["pid"], signal.SIGKILL)
        killed = time.monotonic()
        # It shows as a line of trouble, and stays as a move once that is over.
        moved = f'#query data[data-fact$=".from"][value="{name}"]'
        page.wait_for_selector(f"#health.bad, #health.warn, {moved}")
        page.wait_for_function(
            "name => ![...document.querySelectorAll('#query tr td')].some("
            "cell => cell.textContent === name && cell.closest('table').caption.textContent"
            " === 'Workers') || document.querySelector('#health.bad')",
            arg=name,
        )
        shown_s = time.monotonic() - killed
        # Where others take the processors, it is their affair how long a beat takes to be missed.
        assert shown_s <= SHOWN_SECONDS_MAX or is_machine_busy(), f"after {shown_s:.1f} s"
        keep_picture(page, tmp_path, "page-killed")
        page.wait_for_selector(moved)
        page.wait_for_selector("#health.good")
        recovered_s = time.monotonic() - killed
        tables.append(
            f"page: a killed worker shows after {shown_s:.1f} s, its end after {recovered_s:.1f} s"
        )
        workers = "progress.workers"
        wait_until(lambda: figure(page, result, workers) == 2, "no second worker is shown")
        page.emulate_media(color_scheme="dark")
        keep_picture(page, tmp_path, "page-dark")
        page.set_viewport_size({"width": 390, "height": 844})
        keep_picture(page, tmp_path, "page-phone")


SNAPSHOT = """() => Object.fromEntries([...document.querySelectorAll('data[data-fact][data-query]')]
    .map(one => [one.dataset.query + '|' + one.dataset.fact, [one.value, one.textContent]]))"""


def fact_at(facts: Any, path: str) -> Any:
    """By its path; names of tasks and workers have dots of their own."""
    if not path or facts is None:
        return facts
    if isinstance(facts, list):
        head, _, rest = path.partition(".")
        return fact_at(facts[int(head)], rest)
    names = [name for name in facts if path == name or path.startswith(f"{name}.")]
    if not names:
        return None
    name = max(names, key=len)
    return fact_at(facts[name], path[len(name) + 1 :])


def is_shown(value: str, told: Any) -> bool:
    """Whether the page holds this value: a browser writes numbers in its own way."""
    if told is None:
        return value == ""
    return value == told if isinstance(told, str) else float(value) == told


def test_each_figure_is_what_query_status_says_of_the_same_report(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    source = log.create_stream("same_in", BIDS)
    with (
        running(counted(source.df(spark)), to="same_out", workers=2, log=log) as query,
        feeding(source),
        watched(log, tmp_path) as seen,
    ):
        wait_until(lambda: (query.lastProgress or {}).get("numInputRowsTotal"), "nothing is read")
        page = seen.sign_in(token_of(log), "/#query=same_out")
        page.wait_for_selector("#query .node.stage .busy data[value]:not([value=''])")
        command = ["query", "status", "same_out", "--json", "--dir", log.target]

        compared = 0
        for _ in range(40):
            status = json.loads(CliRunner().invoke(cli, command).stdout)
            report, until = status["progress"]["batchId"], time.monotonic() + 2
            while time.monotonic() < until:
                shown = page.evaluate(SNAPSHOT)
                if int(shown["same_out|progress.batchId"][0] or -1) >= report:
                    break
            if shown["same_out|progress.batchId"][0] != str(report):
                continue  # the page was further already
            for where, (value, text) in shown.items():
                query_name, _, path = where.partition("|")
                # Pulses come four times a second: the last one is of another moment.
                if query_name != "same_out" or path == "last_pulse":
                    continue
                told = fact_at(status, path)
                assert is_shown(value, told), (where, value, told)
                assert (text == "n/a") == (told is None), (where, text)
                compared += 1
            break
        assert compared > 60


def slowly(frame: Any, seconds: float) -> Any:
    """Row by row, through a function that sleeps."""
    from pyspark.sql import functions as F

    def doze(price):  # with hints, PySpark would take it for another kind of function
        time.sleep(seconds)
        return price

    return frame.select("auction", F.udf(doze, "long")("price").alias("price"))


@pytest.mark.soak
def test_a_function_that_sleeps_is_found_from_the_page_alone(
    spark: Any, own_log: penstock.Log, tmp_path: Path
) -> None:
    source = own_log.create_stream("sleepy_in", BIDS)
    append_bids(source, 0, 1)
    frame = slowly(source.df(spark), 0.02)
    with running(frame, to="sleepy_out", mode="append", workers=1, log=own_log) as query:
        query.processAllAvailable()
        with feeding(source), watched(own_log, tmp_path) as seen:
            page = seen.sign_in(token_of(own_log))
            page.wait_for_selector("#health.warn >> text=sleepy_out, stage 0")
            page.wait_for_selector("#health li >> text=python doze")
            keep_picture(page, tmp_path, "page-slow-function")


@pytest.mark.soak
def test_a_key_in_most_rows_is_found_from_the_page_alone(
    spark: Any, own_log: penstock.Log, tmp_path: Path
) -> None:
    source = own_log.create_stream("skewed_in", BIDS, key=["auction"])
    rows = [{"auction": 1 if n % 50 else n, "price": n, "ts": T0} for n in range(40)]
    ending = threading.Event()

    def feed() -> None:
        while not ending.wait(0.1):
            source.append(rows)

    frame = slowly(source.df(spark), 0.005)
    with running(frame, to="skewed_out", mode="append", workers=2, log=own_log) as query:
        source.append(rows[:10])
        query.processAllAvailable()
        thread = threading.Thread(target=feed)
        thread.start()
        try:
            with watched(own_log, tmp_path) as seen:
                page = seen.sign_in(token_of(own_log))
                page.wait_for_selector("#health.warn >> text=/takes [0-9]+ % of the rows/")
                page.wait_for_selector("#health li >> text=More workers do not help")
                keep_picture(page, tmp_path, "page-skewed-key")
        finally:
            ending.set()
            thread.join()


def test_a_wrong_token_gets_nothing(log: penstock.Log, tmp_path: Path) -> None:
    log.create_stream("secret_stream", BIDS)
    with watched(log, tmp_path) as seen:
        statuses: list[int] = []
        seen.page.on(
            "response",
            lambda answer: statuses.append(answer.status) if "/v1/" in answer.url else None,
        )
        page = seen.sign_in("0" * 64)
        page.wait_for_selector(".sign-in .problem")
        assert set(statuses) == {401}
        assert "secret_stream" not in page.content()
        assert page.locator("data, table, svg").count() == 0

        page.fill("#token", token_of(log))
        page.click("button[type=submit]")
        page.wait_for_selector("text=secret_stream")
        stored = page.evaluate(
            "() => [document.cookie, Object.keys(localStorage), Object.keys(sessionStorage)]"
        )
        assert stored == ["", [], []]
        page.reload()
        page.wait_for_selector("#token")


#: A key of metadata holds nothing that cannot be printed; a row may hold anything.
MARKUP = "<img src=/x onerror=window.hit=1>"
EVIL = f"<script>window.hit=1</script>{MARKUP}\x1b[31m\u202e\x07"


def test_markup_and_control_characters_are_text(log: penstock.Log, tmp_path: Path) -> None:
    stream = log.create_stream("evil_rows", "words string")
    # Through the front door no stream has such a name; who holds the root token can make one.
    definition = log.client.get("stream/evil_rows")
    assert definition is not None
    log.client.compare_and_set(f"stream/{MARKUP}", expected=None, value=definition.data)
    # Nor a query; the page follows this one by itself, since it is the first.
    query = RegisteredQuery(MARKUP, "id", 1, MARKUP, "append", MARKUP, {MARKUP: 0}, [1], 0)
    log.client.compare_and_set(f"query/{MARKUP}", expected=None, value=encode_query(query))

    with watched(log, tmp_path) as seen:
        page = seen.sign_in(token_of(log))
        page.wait_for_selector(".streams b")
        assert MARKUP in page.locator(".streams b").all_text_contents()
        page.wait_for_selector("#query h2")
        assert MARKUP in page.locator("#query h2").text_content()
        assert page.locator("#lost").count() == 0
        page.locator(".streams > li", has_text="evil_rows").locator("button").first.click()
        page.wait_for_selector(".tail [role=status] >> text=0 rows in the last second")

        stream.append({"words": EVIL})
        page.wait_for_selector(".tail code")
        row = page.locator(".tail code").first.text_content()
        assert "<script>window.hit=1</script><img" in row
        assert not re.search("[\x00-\x1f\u202e]", row)
        page.fill("#explain input", str(log.bounds().tail - 1))
        page.click("#explain button")
        page.wait_for_selector("#explain dd >> text=evil_rows")
        hit = "() => [window.hit, document.querySelectorAll('[onerror], [onload]').length]"
        assert page.evaluate(hit) == [None, 0]


def test_it_is_used_by_keyboard_and_asks_before_it_stops_a_query(
    spark: Any, log: penstock.Log, tmp_path: Path
) -> None:
    source = log.create_stream("stop_in", BIDS)
    append_bids(source, 0, 50)
    with (
        running(counted(source.df(spark)), to="stop_out", workers=1, log=log) as query,
        watched(log, tmp_path) as seen,
    ):
        query.processAllAvailable()
        page = seen.sign_in(token_of(log), "/#query=stop_out")
        page.wait_for_selector("#query .actions")

        page.focus("#query summary")
        page.keyboard.press("Enter")
        page.wait_for_selector("pre.plan >> text=stage 0")

        page.focus("#query .actions button")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open] >> text=with so many workers")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")

        page.focus("#query button.danger")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open] >> text=Stop query")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")
        assert query.isActive

        page.focus("#query button.danger")
        page.keyboard.press("Enter")
        page.click("dialog[open] button[type=submit]")
        assert query.awaitTermination(45)
        page.wait_for_selector("#queries tr.chosen >> text=stopped")
        page.wait_for_selector("#query .past >> text=its last report")
        assert page.locator("#queries tr.chosen .heat").text_content().strip() == "n/a"
        keep_picture(page, tmp_path, "page-stopped-query")


def test_what_is_typed_stays_while_figures_move_and_is_what_is_asked_for(
    log: penstock.Log, tmp_path: Path
) -> None:
    queries = MadeUpQueries(log, 1, 1)
    queries.register()
    ending = threading.Event()

    def report() -> None:
        number = 1
        while not ending.wait(0.25):
            queries.report(number)
            number += 1

    thread = threading.Thread(target=report)
    thread.start()
    try:
        with watched(log, tmp_path) as seen:
            page = seen.sign_in(token_of(log))
            page.click("#query .actions button >> text=rescale")
            page.fill("dialog input[name=workers]", "5")
            before = figure(page, queries.names[0], "progress.batchId")
            wait_until(
                lambda: figure(page, queries.names[0], "progress.batchId") > before + 5,
                "figures do not move",
            )
            assert page.input_value("dialog input[name=workers]") == "5"
            page.keyboard.press("Enter")
            page.wait_for_selector(".actions [role=status] >> text=Asked to rescale")
    finally:
        ending.set()
        thread.join()
    said = [decode_message(one.payload) for one in log.client.read([control_tag(queries.names[0])])]
    assert [(type(one), getattr(one, "workers", None)) for one in said] == [(Rescale, 5)]


@pytest.mark.soak
def test_a_log_that_is_down_is_said_to_be_and_comes_back_by_itself(
    own_log: penstock.Log, tmp_path: Path
) -> None:
    from embedded_server import stop_server

    own_log.create_stream("before", BIDS)
    own_log.close()
    directory, token = Path(own_log.target), token_of(own_log)
    stop_server(directory)

    with watched(own_log, tmp_path) as seen:
        page = seen.sign_in(token)
        page.wait_for_selector("#lost >> text=cannot reach its log")
        assert not directory.joinpath("server.json").exists() or _is_down(directory)

        with penstock.connect(directory) as opened:
            page.wait_for_selector("text=before")
            page.wait_for_selector("#health.good")
        stop_server(directory)
        page.wait_for_selector("#health.down")
        keep_picture(page, tmp_path, "page-log-down")
        assert page.locator(".beat").text_content() == "log away"
        assert _is_down(directory), "the page started the server"
        with penstock.connect(directory) as opened:
            opened.create_stream("after", BIDS)
            page.wait_for_selector("#health.good")
            page.wait_for_selector("text=after")
            # A server that hangs is there, and says nothing.
            pid = json.loads(directory.joinpath("server.json").read_text())["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                page.wait_for_selector("#health.warn >> text=/figures are .* old/")
                page.wait_for_selector(".beat >> text=/figures .* old/")
            finally:
                os.kill(pid, signal.SIGCONT)
            page.wait_for_selector("#health.good")


def _is_down(directory: Path) -> bool:
    from penstock.log.serving.directory import is_locked

    return not is_locked(directory)
