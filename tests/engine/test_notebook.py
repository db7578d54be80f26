"""A query as the last thing of a notebook's cell: a card that is kept up to date."""

from __future__ import annotations

import re
from typing import Any

import pytest
from harness.ui_page import ui_thread
from harness.waiting import wait_until
from small_queries import BIDS, append_bids, running

import penstock
from penstock.ui.config import UiConfig

pytestmark = pytest.mark.usefixtures("interpreted")


def a_shell(monkeypatch: pytest.MonkeyPatch) -> Any:
    """IPython, with what it displays in a list."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell()
    monkeypatch.setattr(shell, "display_pub", CapturingDisplayPublisher())
    monkeypatch.setattr(InteractiveShell, "initialized", classmethod(lambda cls: True))
    monkeypatch.setattr(InteractiveShell, "instance", classmethod(lambda cls: shell))
    return shell


def test_a_card_is_shown_and_kept_up_to_date_until_the_query_ends(
    spark: Any, log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = a_shell(monkeypatch)
    source = log.create_stream("card_in", BIDS)
    append_bids(source, 0, 100)
    frame = source.df(spark).where("price > 50")
    with running(frame, to="card_out", mode="append", workers=1, log=log) as query:
        terminal.display_formatter.format(query)
        notebook = a_shell(monkeypatch)
        notebook.kernel = "where a card can be replaced"
        formatted, _ = notebook.display_formatter.format(query)
        assert formatted == {}, "it shows itself"
        outputs = notebook.display_pub.outputs
        assert "card_out" in outputs[0]["data"]["text/html"]
        assert outputs[0]["data"]["text/plain"] == "<StreamingQuery card_out active>"
        query.processAllAvailable()
        append_bids(source, 100, 500)
        wait_until(
            lambda: re.search(r"[1-9][0-9.,]* rows/s", outputs[-1]["data"]["text/html"]),
            "the card does not move",
        )
        query.stop()
        wait_until(lambda: "stopped" in outputs[-1]["data"]["text/html"], "its end is not shown")
        assert len(terminal.display_pub.outputs) == 1, "a terminal is told once"


def test_a_query_knows_its_page(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("linked_in", BIDS)
    frame = source.df(spark).where("price > 50")
    with running(frame, to="linked_out", mode="append", workers=1, log=log) as query:
        assert query.ui is None
        with ui_thread(UiConfig(target=log.target, port=0)) as address:
            assert query.ui == f"http://127.0.0.1:{address.port}/#query=linked_out"
            assert query.ui in query._repr_html_()
        assert query.ui is None
