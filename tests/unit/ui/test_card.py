"""A query as a card of HTML, and where its page is."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from ui_samples import a_progress, a_query

from penstock.ui.card import query_card
from penstock.ui.place import Place, find_page, page_of_query


def text_of(card: str) -> str:
    return html.unescape(re.sub("<[^>]*>", " ", card))


def test_a_card_has_the_figures_of_the_page() -> None:
    text = text_of(query_card(a_query(), "Processing new data", "http://here/#query=hot"))
    for one in ("hot", "running", "12 rows/s", "250 ms", "5.0 ms", "20 %", "Processing new data"):
        assert one in text


def test_a_card_says_what_is_wrong() -> None:
    query = a_query(a_progress(exception="ZeroDivisionError"), state="failed")
    text = text_of(query_card(query, "Terminated", None))
    assert "ZeroDivisionError" in text
    assert "start it again" in text


def test_before_the_first_report_nothing_is_zero() -> None:
    text = text_of(query_card(a_query({}), "Starting", None))
    assert text.count("n/a") == 6


def test_nothing_of_the_log_becomes_markup() -> None:
    evil = '<img src=x onerror="1">\x1b\u202e'
    query = a_query(a_progress(exception=evil), name=evil, to=evil, state="failed")
    card = query_card(query, evil, 'http://x/"><script>')
    assert "<img" not in card
    assert "<script" not in card
    assert "\x1b" not in card
    assert "\u202e" not in card


def test_a_page_is_found_while_its_server_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_UI", raising=False)
    assert find_page(str(tmp_path)) is None
    first = Place(tmp_path, "http://127.0.0.1:8090")
    second = Place(tmp_path, "http://127.0.0.1:8091")
    assert find_page(str(tmp_path)) == "http://127.0.0.1:8090"
    assert page_of_query(str(tmp_path), "a b") == "http://127.0.0.1:8090/#query=a%20b"
    second.close()
    assert find_page(str(tmp_path)) == "http://127.0.0.1:8090"
    first.close()
    assert find_page(str(tmp_path)) is None


def test_what_a_dead_server_left_behind_is_no_page(tmp_path: Path) -> None:
    (tmp_path / "ui.json").write_text('{"url": "http://127.0.0.1:8090"}')
    assert find_page(str(tmp_path)) is None


def test_of_a_log_elsewhere_the_environment_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_UI", "https://page.example/")
    assert page_of_query("penstock://there:7070", "hot") == "https://page.example/#query=hot"
